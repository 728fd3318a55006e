"""Selects an encoder's layers: the last layer, any layer, several concatenated layers, or a scalar mix.

Shape legend: T tokens of a packed batch, D width, L layers above the embedding layer, R selected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.errors import ConfigError
from lmtransfer.transfer.pooling import lengths_on, owners, segment_sum


class LayerSelection(nn.Module):
    """The base class of layer selections, which turn layers into one vector per token.

    Args:
        indices: the layers that the selection needs, from 0 (embeddings) to L.
        widths: width of the result in multiples of the encoder's width.
    """

    reads_padded: bool = True

    def __init__(self, *, indices: tuple[int, ...], widths: int = 1) -> None:
        super().__init__()
        self.indices = indices
        self.widths = widths

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Combine the needed layers, (T, D) each, of sequences with lengths (B,) into one tensor (T, widths * D)."""
        raise NotImplementedError

    def learned_weights(self) -> dict[str, Any] | None:
        """Return the trained parameters as plain values; None if there are none."""
        return None


class OneLayer(LayerSelection):
    """A single layer, unchanged; a negative index counts from the end."""

    def __init__(self, *, index: int, num_layers: int, key: str = "transfer.layers") -> None:
        super().__init__(indices=(resolve_index(index, num_layers=num_layers, setting=f"{key}={index}"),))

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Return the layer, ((T, D),) -> (T, D)."""
        return layers[0]


class SideBySide(LayerSelection):
    """Several layers concatenated into each token's vector, such as word embeddings and contextual vectors.

    A layer that is listed twice, such as 0 and the last layer of word vectors, is read once.
    """

    def __init__(self, *, indices: Sequence[int], num_layers: int, key: str = "transfer.layers") -> None:
        setting = f"{key}=[{','.join(map(str, indices))}]"
        if not indices:
            raise ConfigError(f"{setting} must have at least one layer, such as [0,last]")
        resolved = dict.fromkeys(resolve_index(index, num_layers=num_layers, setting=setting) for index in indices)
        super().__init__(indices=tuple(resolved), widths=len(resolved))

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Concatenate R tensors, (T, D) -> (T, R * D), float32."""
        return torch.cat([layer.float() for layer in layers], dim=1)


def resolve_index(index: int, *, num_layers: int, setting: str) -> int:
    """Convert an index that may count from the end to a layer index from 0 to L."""
    if not -num_layers - 1 <= index <= num_layers:
        raise ConfigError(
            f"{setting}: the encoder has layers 0 (embeddings) to {num_layers}; set one of these layers, "
            "last, a list of layers, or mix"
        )
    return index % (num_layers + 1)


class ScalarMix(LayerSelection):
    """ELMo's mixture ``gamma * sum_j softmax(s)_j h_j`` over all layers (Peters et al. 2018, equation 1).

    The scalars start at 0 (equal weights) and gamma at 1. ``layer_norm`` normalizes each layer first, which helps if
    the layers' scales differ greatly (pre-norm encoders).

    Difference from the paper: the optional layer norm without parameters computes its mean and variance over the
    positions and features of each sequence rather than over all real positions of the batch. A sentence's vector
    therefore does not depend on the other sentences in the batch.
    """

    def __init__(self, *, num_layers: int, layer_norm: bool = False) -> None:
        super().__init__(indices=tuple(range(num_layers + 1)))
        self.layer_norm, self.reads_padded = layer_norm, not layer_norm
        self.scalars = nn.Parameter(torch.zeros(num_layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))

    def learned_weights(self) -> dict[str, Any]:
        """Return ``gamma``, and ``weights``: softmax(s), one per layer from the embeddings up, as plain values."""
        weights = torch.softmax(self.scalars.detach().double(), dim=0)
        return {"gamma": float(self.gamma.detach()), "weights": weights.tolist()}

    def forward(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Mix L + 1 tensors, (T, D) -> (T, D), float32."""
        weights = torch.softmax(self.scalars, dim=0)
        hidden = [layer.float() for layer in layers]
        if self.layer_norm:
            hidden = [normalize_sequences(layer, lengths) for layer in hidden]
        mixed: Tensor = self.gamma * sum(weight * layer for weight, layer in zip(weights, hidden, strict=True))
        return mixed


def normalize_sequences(hidden_TD: Tensor, lengths: Tensor, epsilon: float = 1e-12) -> Tensor:
    """Normalize each sequence to mean 0 and variance 1 over its positions and features, (T, D) -> (T, D)."""
    lengths = lengths_on(lengths, hidden_TD.device)
    owner_T = owners(lengths, num_tokens=len(hidden_TD))

    def sequence_mean(values_T: Tensor) -> Tensor:
        return (segment_sum(values_T[:, None], lengths) / lengths[:, None])[owner_T]

    centred_TD = hidden_TD - sequence_mean(hidden_TD.mean(1))
    return centred_TD * torch.rsqrt(sequence_mean(centred_TD.square().mean(1)) + epsilon)

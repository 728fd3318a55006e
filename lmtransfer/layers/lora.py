"""Low-rank updates of fixed matrices, LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

Shape legend: T tokens, D input width, E output width of a matrix, R rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lmtransfer.layers.dropout import Dropout
from lmtransfer.layers.stacked_linear import StackedLinear

#: The name of a tensor of an update: the layer, the number of its matrix, and A, B or the scale.
_OF_AN_UPDATE = re.compile(r"(.+)\.updates\.(\d+)\.(a\.weight|b\.weight|scale)")


class LowRankUpdate(nn.Module):
    """The update ``alpha / R * B A`` of a matrix (section 4.1). B starts at 0, so the update changes nothing at first.

    A starts as in the published code (uniform, as torch's linear layers); in the paper it is Gaussian.

    Args:
        input_dim: D.
        output_dim: E.
        rank: R.
        alpha: scales the update, so that the learning rate need not change with the rank.
        dropout: probability of dropping an input feature of A.

    Attributes:
        scale: ``alpha / R``, saved with A and B, so that a checkpoint alone determines the update.
    """

    scale: Tensor

    def __init__(self, input_dim: int, output_dim: int, *, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.a = nn.Linear(input_dim, rank, bias=False)
        self.b = nn.Linear(rank, output_dim, bias=False)
        nn.init.zeros_(self.b.weight)
        self.register_buffer("scale", torch.tensor(alpha / rank))

    def forward(self, input_TD: Tensor) -> Tensor:
        """(T, D) -> (T, E)."""
        return self.scale * self.b(self.a(self.dropout(input_TD)))


class LoraLinear(StackedLinear):
    """A linear layer, or stacked ones, with low-rank updates of some of the matrices.

    The tensors of the layer keep their names; those of the updates are ``updates.<number of the matrix>.*``.

    Args:
        layer: the layer; its weights are shared.
        updates: the updates by the number of their matrix in the stack; 0 for a layer with a single matrix.
    """

    def __init__(self, layer: nn.Linear, updates: Mapping[int, LowRankUpdate]) -> None:
        parts = layer.parts if isinstance(layer, StackedLinear) else ("",)
        with torch.device("meta"):
            super().__init__(
                layer.in_features, layer.out_features // len(parts), parts=parts, bias=layer.bias is not None
            )
        self.weight, self.bias = layer.weight, layer.bias
        self.updates = nn.ModuleDict({str(number): update for number, update in updates.items()})

    def forward(self, input_TD: Tensor) -> Tensor:
        """The outputs of all layers side by side."""
        return self.some(input_TD, 0, len(self.parts))

    def some(self, input_TD: Tensor, first: int, stop: int) -> Tensor:
        """See ``StackedLinear``."""
        outputs = list(super().some(input_TD, first, stop).chunk(stop - first, dim=-1))
        for number, update in self.updates.items():
            if first <= int(number) < stop:
                outputs[int(number) - first] = outputs[int(number) - first] + update(input_TD)
        return torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]

    def merged(self) -> nn.Linear:
        """An ordinary layer that computes the same without dropout."""
        bias = self.bias is not None
        with torch.device("meta"):
            if len(self.parts) > 1:
                width = self.out_features // len(self.parts)
                layer: nn.Linear = StackedLinear(self.in_features, width, parts=self.parts, bias=bias)
            else:
                layer = nn.Linear(self.in_features, self.out_features, bias=bias)
        weight = merged_tensors({f".{name}": tensor for name, tensor in self.state_dict().items()})[".weight"]
        layer.weight, layer.bias = nn.Parameter(weight), self.bias
        return layer


def replace_layers(module: nn.Module, replacements: Mapping[nn.Linear, nn.Linear]) -> None:
    """Replace layers wherever they are in a module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child in replacements:
                setattr(parent, name, replacements[child])


def merge_updates(module: nn.Module) -> None:
    """Add all low-rank updates in a module to their matrices; the layers are ordinary ones afterwards."""
    updated = [layer for layer in module.modules() if isinstance(layer, LoraLinear)]
    replace_layers(module, {layer: layer.merged() for layer in updated})


@torch.no_grad()
def merged_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the low-rank updates among named tensors to their matrices.

    Updates that are incomplete or of other shapes than their matrix are returned as they are.

    Args:
        tensors: tensors by name, such as those of a checkpoint.
    """
    found: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _OF_AN_UPDATE.fullmatch(name)
        if match is not None:
            found.setdefault((match[1], int(match[2])), {})[match[3]] = tensor
    merged = dict(tensors)
    for (layer, number), update in found.items():
        matrix = merged.get(f"{layer}.weight")
        if len(update) < 3 or matrix is None or not _fits(matrix, number, update):
            continue
        width = len(update["b.weight"])
        matrix = matrix.clone()
        matrix[number * width : (number + 1) * width] += update["scale"] * (update["b.weight"] @ update["a.weight"])
        merged[f"{layer}.weight"] = matrix
        for part in update:
            del merged[f"{layer}.updates.{number}.{part}"]
    return merged


def _fits(matrix: Tensor, number: int, update: Mapping[str, Tensor]) -> bool:
    a_RD, b_ER, scale = update["a.weight"], update["b.weight"], update["scale"]
    if (matrix.ndim, a_RD.ndim, b_ER.ndim, scale.ndim) != (2, 2, 2, 0):
        return False
    return a_RD.shape[0] == b_ER.shape[1] and (
        a_RD.shape[1] == matrix.shape[1] and (number + 1) * b_ER.shape[0] <= matrix.shape[0]
    )

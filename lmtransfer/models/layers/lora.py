"""LoRA: low-rank updates of fixed matrices (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

Shape legend: T tokens, D input width, E output width of a matrix, R rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.models.layers.building_blocks import Dropout, StackedLinear

_PARTS = ("a.weight", "b.weight", "scale")
#: The name of a tensor in an update: the layer, the index of the matrix in it, and one of ``_PARTS``.
_UPDATE_NAME = re.compile(rf"(.*)\.updates\.(\d+)\.({'|'.join(map(re.escape, _PARTS))})")


class LowRankUpdate(nn.Module):
    """The update ``alpha / R * B A`` of a matrix (section 4.1). B starts at 0, so that the update is 0 at first.

    A is initialized as in the published code (uniform, like PyTorch's linear layers), not with the Gaussian of the
    paper.

    Args:
        alpha: factor of the update; with it, the learning rate need not change with the rank.

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
        """Compute the update of the outputs, (T, D) -> (T, E)."""
        return self.scale * self.b(self.a(self.dropout(input_TD)))


class LoraLinear(StackedLinear):
    """A linear layer, possibly of several stacked matrices, with low-rank updates of some of the matrices.

    The layer's tensors keep their names; those of the updates are named ``updates.<index of the matrix>.*``.

    Args:
        updates: the updates by the index of their matrix in the stack; 0 for a layer with a single matrix.
    """

    def __init__(self, layer: nn.Linear, updates: Mapping[int, LowRankUpdate]) -> None:
        parts = layer.parts if isinstance(layer, StackedLinear) else ("",)
        with torch.device("meta"):
            super().__init__(
                layer.in_features, layer.out_features // len(parts), parts=parts, bias=layer.bias is not None
            )
        self.weight, self.bias = layer.weight, layer.bias
        self.updates = nn.ModuleDict({str(index): update for index, update in updates.items()})

    def forward(self, input_TD: Tensor) -> Tensor:
        """Return the outputs of all layers side by side."""
        return self.forward_slice(input_TD, 0, len(self.parts))

    @override
    def forward_slice(self, input_TD: Tensor, first: int, stop: int) -> Tensor:
        outputs = list(super().forward_slice(input_TD, first, stop).chunk(stop - first, dim=-1))
        for index, update in self.updates.items():
            if first <= int(index) < stop:
                outputs[int(index) - first] = outputs[int(index) - first] + update(input_TD)
        return torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]

    def merge(self) -> nn.Linear:
        """Return an ordinary layer with the updates added to its matrices."""
        bias = self.bias is not None
        with torch.device("meta"):
            if len(self.parts) > 1:
                width = self.out_features // len(self.parts)
                layer: nn.Linear = StackedLinear(self.in_features, width, parts=self.parts, bias=bias)
            else:
                layer = nn.Linear(self.in_features, self.out_features, bias=bias)
        weight = merge_saved_updates({f".{name}": tensor for name, tensor in self.state_dict().items()})[".weight"]
        layer.weight, layer.bias = nn.Parameter(weight), self.bias
        return layer


def replace_layers(module: nn.Module, replacements: Mapping[nn.Linear, nn.Linear]) -> None:
    """Replace linear layers wherever they occur in a module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child in replacements:
                setattr(parent, name, replacements[child])


def merge_updates(module: nn.Module) -> None:
    """Add all low-rank updates in a module to their matrices, and restore ordinary layers."""
    updated = [layer for layer in module.modules() if isinstance(layer, LoraLinear)]
    replace_layers(module, {layer: layer.merge() for layer in updated})


@dataclass(frozen=True, slots=True)
class SavedUpdate:
    """An update as stored in a checkpoint, for the matrix with index ``index`` in a layer."""

    layer: str
    index: int
    a_RD: Tensor
    b_ER: Tensor
    scale: Tensor

    @property
    def rows(self) -> slice:
        """The rows of the matrix in the layer's weight."""
        return slice(self.index * len(self.b_ER), (self.index + 1) * len(self.b_ER))

    def fits(self, weight: Tensor) -> bool:
        """Whether the shapes of A and B match the layer's weight."""
        if (weight.ndim, self.a_RD.ndim, self.b_ER.ndim, self.scale.ndim) != (2, 2, 2, 0):
            return False
        inner = self.a_RD.shape[0] == self.b_ER.shape[1] and self.a_RD.shape[1] == weight.shape[1]
        return inner and self.rows.stop <= len(weight)


def split_updates(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[SavedUpdate]]:
    """Separate the low-rank updates of matrices from the other tensors.

    The tensors of an update that is incomplete or does not match its matrix remain among the other tensors.
    """
    of_layers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _UPDATE_NAME.fullmatch(name)
        if match is not None:
            of_layers.setdefault((match[1], int(match[2])), {})[match[3]] = tensor
    own, updates = dict(tensors), []
    for (layer, index), parts in of_layers.items():
        weight = own.get(f"{layer}.weight")
        if weight is None or len(parts) < len(_PARTS):
            continue
        update = SavedUpdate(layer, index, *(parts[part] for part in _PARTS))
        if update.fits(weight):
            updates.append(update)
            for part in _PARTS:
                del own[f"{layer}.updates.{index}.{part}"]
    return own, updates


@torch.no_grad()
def merge_saved_updates(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with their low-rank updates added to their matrices; see ``split_updates``."""
    merged, updates = split_updates(tensors)
    for name in {f"{update.layer}.weight" for update in updates}:
        merged[name] = merged[name].clone()
    for update in updates:
        merged[f"{update.layer}.weight"][update.rows] += update.scale * (update.b_ER @ update.a_RD)
    return merged

"""LoRA on an encoder (Hu et al. 2021, https://arxiv.org/abs/2106.09685): which matrices get a low-rank update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.attention.layout import AttentionLayer
from lmtransfer.models.layers.building_blocks import StackedLinear
from lmtransfer.models.layers.lora import LoraLinear, LowRankUpdate, replace_layers

#: The value of ``matrices`` that stands for all matrices.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a block.

    Attributes:
        name: name of the matrix, the same in all blocks: ``query``, ``key``, ``value``, ``output``, ``expand``, ...
        layer: the linear layer that holds it.
        number: index among the matrices stacked in the layer.
    """

    name: str
    layer: nn.Linear
    number: int

    @property
    def shape(self) -> tuple[int, int]:
        """Output width and input width."""
        stacked = len(self.layer.parts) if isinstance(self.layer, StackedLinear) else 1
        return self.layer.out_features // stacked, self.layer.in_features


def matrices_of(encoder: Encoder) -> list[Matrix]:
    """Return the matrices in an encoder's attention blocks, which can have a low-rank update, each once."""
    blocks = [block for block in encoder.blocks() if any(isinstance(part, AttentionLayer) for part in block.modules())]
    return list(dict.fromkeys(matrix for block in blocks for matrix in _matrices_in(block)))


def _matrices_in(block: nn.Module) -> Iterator[Matrix]:
    for path, layer in block.named_modules():
        if isinstance(layer, StackedLinear):
            yield from (Matrix(part, layer, number) for number, part in enumerate(layer.parts))
        elif isinstance(layer, nn.Linear):
            yield Matrix(path.rpartition(".")[2], layer, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The settings of LoRA.

    Attributes:
        rank: rank of each update.
        alpha: scales the updates by ``alpha / rank``.
        dropout: probability of dropping an input feature of an update.
        matrices: names of the matrices that get an update, or "all".
    """

    rank: int
    alpha: float
    dropout: float
    matrices: str | Sequence[str]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"transfer.lora_rank={self.rank}: the rank of an update must be 1 or more, such as 8")
        if not self.alpha > 0:
            raise ConfigError(f"transfer.lora_alpha={self.alpha}: the scale of the updates must be above 0, such as 16")
        if not self.names:
            raise ConfigError("transfer.lora_matrices=[]: set at least one matrix, such as [query,value], or all")

    @property
    def names(self) -> Sequence[str]:
        """The names of the matrices."""
        return [self.matrices] if isinstance(self.matrices, str) else list(self.matrices)

    def adapt(self, encoder: Encoder) -> None:
        """Add the matrices' updates in place, without changing the encoder's outputs."""
        updates: dict[nn.Linear, dict[int, LowRankUpdate]] = {}
        for matrix in self._select_matrices(encoder):
            output_dim, input_dim = matrix.shape
            updates.setdefault(matrix.layer, {})[matrix.number] = LowRankUpdate(
                input_dim, output_dim, rank=self.rank, alpha=self.alpha, dropout=self.dropout
            )
        replace_layers(encoder, {layer: LoraLinear(layer, own) for layer, own in updates.items()})

    def _select_matrices(self, encoder: Encoder) -> list[Matrix]:
        matrices = matrices_of(encoder)
        names = list(dict.fromkeys(matrix.name for matrix in matrices))
        if not matrices:
            raise ConfigError(
                f"transfer=lora: {type(encoder).__name__} has no attention layers, whose matrices LoRA updates; choose "
                "transfer=frozen, full or gradual, or the run of a transformer (lmtransfer list models)"
            )
        unknown = [name for name in self.names if name not in names and name != ALL]
        if unknown:
            raise ConfigError(
                [
                    f"transfer.lora_matrices: {type(encoder).__name__} has no matrix {name}; "
                    f"{hint(name, [*names, ALL], what='matrices')}"
                    for name in unknown
                ]
            )
        selection = matrices if ALL in self.names else [matrix for matrix in matrices if matrix.name in self.names]
        smallest = min(selection, key=lambda matrix: min(matrix.shape))
        if self.rank > min(smallest.shape):
            rows, columns = smallest.shape
            raise ConfigError(
                f"transfer.lora_rank={self.rank}: must not be higher than the rank of the matrix {smallest.name} "
                f"({rows} x {columns}); set {min(smallest.shape)} or less, such as 8"
            )
        return selection

"""The rules that decide which parts of the encoder are trained, and the low-rank updates of LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.attention.self_attention import AttentionLayer
from lmtransfer.models.layers.building_blocks import StackedLinear
from lmtransfer.models.layers.lora import LoraLinear, LowRankUpdate, replace_layers
from lmtransfer.models.layers.relative_attention import RelativeBiases

#: The value of ``matrices`` that stands for all matrices.
ALL = "all"


class Freezing:
    """A rule that decides which parameters of an encoder are trained; this base class trains the whole encoder."""

    is_frozen = False

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return the encoder parameters that are trained at some point; all others never get a gradient."""
        return encoder.parameters()

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Set the encoder's mode for a learner in training mode or in evaluation mode."""
        encoder.train(training)

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Whether a layer is trained in the next step; a layer not trained at the end of the budget is never trained.

        ``depth`` counts layers down from the head, from 1 to ``deepest`` (the embeddings); ``fraction`` is the share of
        the budget that has been used.
        """
        return True


class FrozenEncoder(Freezing):
    """The encoder is a fixed function: no gradients, no dropout, no changes to buffers."""

    is_frozen = True

    @override
    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        return ()

    @override
    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        encoder.eval()

    @override
    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        return False


class LowRankTraining(Freezing):
    """Only the low-rank updates of LoRA are trained (Hu et al. 2021, section 4.1)."""

    @override
    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        updates = [module for module in encoder.modules() if isinstance(module, LowRankUpdate)]
        return [parameter for update in updates for parameter in update.parameters()]


class BiasTraining(Freezing):
    """Only the biases are trained, including those of norm layers (BitFit: Ben Zaken et al. 2022, section 3).

    The query biases of relative attention are included, because its linear layers have no biases.
    """

    @override
    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        biases = {
            id(parameter): parameter
            for module in encoder.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if name.startswith("bias") or (isinstance(module, RelativeBiases) and parameter.ndim == 1)
        }
        if not biases:
            raise ConfigError(
                f"transfer=bitfit: {type(encoder).__name__} has no biases with this run's settings; choose "
                "transfer=frozen, full or gradual, or transfer=lora for an encoder with attention layers"
            )
        return biases.values()


class GradualUnfreezing(Freezing):
    """Gradual unfreezing (Howard & Ruder 2018, section 3.3): first only the head, then one more layer at a time.

    The layers are unfrozen at equal intervals, the topmost first and the embeddings last. A frozen layer gets no
    gradient, so the optimizer does not change it by weight decay or momentum either.

    Difference from the paper: the paper unfreezes one layer per epoch. Here everything is trained after ``share`` of
    the budget, whatever the kind of budget and the number of layers. (``share=0.8`` is the paper's schedule for 3
    layers and embeddings in 5 epochs.)
    """

    def __init__(self, *, share: float) -> None:
        if not 0 < share < 1:
            raise ConfigError(
                f"transfer.unfreeze_share={share}: the share of the budget after which every layer is trained must "
                "be between 0 and 1, such as 0.5"
            )
        self.share = share

    @override
    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        return fraction >= self.share * depth / deepest - 1e-9


class FixedEmbeddings(Freezing):
    """A rule combined with a frozen embedding layer: nothing that layer 0 depends on ever changes.

    These parameters get no gradient and are not passed to the optimizer.
    """

    def __init__(self, rule: Freezing) -> None:
        self.rule = rule

    @override
    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        return self.rule.parameters(encoder)  # the depths determine later which of them belong to the embeddings

    @override
    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        self.rule.set_mode(encoder, training)

    @override
    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        return depth < deepest and self.rule.is_trained_at(depth, deepest=deepest, fraction=fraction)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a block.

    Attributes:
        name: name of the matrix, the same in all blocks: ``query``, ``key``, ``value``, ``output``, ``expand``, ...
        index: index among the matrices stacked in the layer.
    """

    name: str
    layer: nn.Linear
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        """Output width and input width."""
        stacked = len(self.layer.parts) if isinstance(self.layer, StackedLinear) else 1
        return self.layer.out_features // stacked, self.layer.in_features


def matrices_of(encoder: Encoder) -> list[Matrix]:
    """Return the distinct matrices in an encoder's attention blocks, which can get low-rank updates."""
    blocks = [block for block in encoder.blocks() if any(isinstance(part, AttentionLayer) for part in block.modules())]
    return list(dict.fromkeys(matrix for block in blocks for matrix in _matrices_in(block)))


def _matrices_in(block: nn.Module) -> Iterator[Matrix]:
    for path, layer in block.named_modules():
        if isinstance(layer, StackedLinear):
            yield from (Matrix(part, layer, index) for index, part in enumerate(layer.parts))
        elif isinstance(layer, nn.Linear):
            yield Matrix(path.rpartition(".")[2], layer, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The settings of LoRA: the matrices named in ``matrices``, or "all", get an update with scale ``alpha / rank``."""

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
            raise ConfigError("transfer.lora_matrices=[]: list at least one matrix, as in [query,value], or set all")

    @property
    def names(self) -> Sequence[str]:
        """The names of the matrices."""
        return [self.matrices] if isinstance(self.matrices, str) else list(self.matrices)

    def adapt(self, encoder: Encoder) -> None:
        """Add the matrices' updates in place, without changing the encoder's outputs."""
        updates: dict[nn.Linear, dict[int, LowRankUpdate]] = {}
        for matrix in self._select_matrices(encoder):
            output_dim, input_dim = matrix.shape
            updates.setdefault(matrix.layer, {})[matrix.index] = LowRankUpdate(
                input_dim, output_dim, rank=self.rank, alpha=self.alpha, dropout=self.dropout
            )
        replace_layers(encoder, {layer: LoraLinear(layer, own) for layer, own in updates.items()})

    def _select_matrices(self, encoder: Encoder) -> list[Matrix]:
        matrices = matrices_of(encoder)
        names = list(dict.fromkeys(matrix.name for matrix in matrices))
        if not matrices:
            raise ConfigError(
                f"transfer=lora: LoRA updates attention layers, but {type(encoder).__name__} has none; choose "
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
                f"transfer.lora_rank={self.rank} must not be higher than the rank of the matrix {smallest.name} "
                f"({rows} x {columns}); set {min(smallest.shape)} or less, such as 8"
            )
        return selection

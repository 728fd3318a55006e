"""The rules that decide which parts of the encoder are trained.

Every rule is a ``Freezing``, which names the trained parameters, sets the encoder's mode while the rest of the learner
is trained, and decides when each layer is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.models.layers.lora import LowRankUpdate
from lmtransfer.models.layers.relative_attention import RelativeBiases


class Freezing(Protocol):
    """A rule that decides which parameters of an encoder are trained.

    Attributes:
        is_frozen: whether the encoder never changes, so that its features can be computed once and stored.
    """

    is_frozen: bool

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return the encoder parameters that are trained at some time; all others never get a gradient."""
        ...

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Set the encoder's mode for a learner in training mode or in evaluation mode."""
        ...

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Whether a layer is trained in the next step; if not at the end of the budget, it is never trained.

        Args:
            depth: depth of the layer below the head; 1 is the topmost layer.
            deepest: depth of the lowest layer, the embeddings.
            fraction: share of the budget already used, in [0, 1].
        """
        ...


class FrozenEncoder:
    """The encoder is a fixed function: no gradients, no dropout, no changes of buffers."""

    is_frozen = True

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return no parameters."""
        return ()

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Set evaluation mode in any case."""
        encoder.eval()

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Return False."""
        return False


class FullTraining:
    """The whole encoder is trained."""

    is_frozen = False

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return all parameters."""
        return encoder.parameters()

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Set the learner's own mode."""
        encoder.train(training)

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Return True."""
        return True


class LowRankTraining(FullTraining):
    """Only the low-rank updates of LoRA are trained (Hu et al. 2021, section 4.1); see ``transfer.lora``."""

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return both matrices of each update."""
        updates = [module for module in encoder.modules() if isinstance(module, LowRankUpdate)]
        return [parameter for update in updates for parameter in update.parameters()]


class BiasTraining(FullTraining):
    """Only the biases are trained, including those of norms (BitFit: Ben Zaken et al. 2022, section 3).

    The query biases of relative attention are included, because its linear layers have no biases.
    """

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return every bias once.

        Raises:
            ConfigError: the encoder has no biases.
        """
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


class GradualUnfreezing(FullTraining):
    """Gradual unfreezing (Howard & Ruder 2018, section 3.3): first only the head, then one more layer at a time.

    The layers are unfrozen at equal intervals, the topmost first and the embeddings last. A frozen layer gets no
    gradient, so the optimizer does not change it by weight decay or momentum either.

    Difference from the paper: the paper unfreezes one layer per epoch. Here the intervals are shares of the budget, for
    any kind of budget and number of layers. (The paper's schedule over 3 layers and embeddings in 5 epochs is
    ``share=0.8``.)

    Args:
        share: share of the budget after which everything is trained.

    Raises:
        ConfigError: ``share`` is not between 0 and 1.
    """

    def __init__(self, *, share: float) -> None:
        if not 0 < share < 1:
            raise ConfigError(
                f"transfer.unfreeze_share={share}: the share of the budget after which every layer is trained must "
                "be between 0 and 1, such as 0.5"
            )
        self.share = share

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Return True from ``share * depth / deepest`` of the budget on."""
        return fraction >= self.share * depth / deepest - 1e-9


class FixedEmbeddings:
    """A rule combined with a frozen embedding layer: nothing that layer 0 depends on ever changes.

    These parameters get no gradient and are not passed to the optimizer.

    Args:
        rule: the rule for the layers above.
    """

    is_frozen = False

    def __init__(self, rule: Freezing) -> None:
        self.rule = rule

    def parameters(self, encoder: nn.Module) -> Iterable[nn.Parameter]:
        """Return the rule's parameters; the depths determine later which of them belong to the embeddings."""
        return self.rule.parameters(encoder)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Set the rule's mode."""
        self.rule.set_mode(encoder, training)

    def is_trained_at(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Return False for the lowest layer; the rule decides for the other layers."""
        return depth < deepest and self.rule.is_trained_at(depth, deepest=deepest, fraction=fraction)

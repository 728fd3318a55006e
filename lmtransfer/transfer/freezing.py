"""How much of the encoder learns.

Every way of transfer that lets parts of an encoder learn is a ``Freezing``: it prepares the encoder once, says in which
mode it runs while the rest of the learner trains, and which of its layers learn at which time.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from lmtransfer.errors import ConfigError


class Freezing(Protocol):
    """A rule about which parameters of an encoder learn.

    Attributes:
        frozen: nothing of the encoder ever changes, so its features may be computed once and kept.
    """

    frozen: bool

    def prepare(self, encoder: nn.Module) -> None:
        """Set ``requires_grad`` of the encoder's parameters."""
        ...

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Put the encoder into the mode that it has while the learner is in training (or not)."""
        ...

    def learns(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Whether a layer learns in the next step; one that does not at the end of the budget never does.

        Args:
            depth: of the layer below the head: 1 is the topmost.
            deepest: depth of the lowest layer, the embeddings.
            fraction: share of the budget that is used up, in [0, 1].
        """
        ...


class Frozen:
    """The encoder is a fixed function: no gradient, no dropout, no buffer that moves."""

    frozen = True

    def prepare(self, encoder: nn.Module) -> None:
        """Turn off all gradients."""
        encoder.requires_grad_(False)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Evaluation mode, always."""
        encoder.eval()

    def learns(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Never."""
        return False


class Full:
    """Everything learns."""

    frozen = False

    def prepare(self, encoder: nn.Module) -> None:
        """Turn on all gradients."""
        encoder.requires_grad_(True)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """The learner's own mode."""
        encoder.train(training)

    def learns(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Always."""
        return True


class Gradual:
    """Gradual unfreezing (Howard & Ruder 2018, section 3.3): first the head alone, then one layer more at a time.

    The layers join at even intervals, the topmost first and the embeddings last. Until then a layer gets no gradient,
    so no optimiser touches it: neither weight decay nor an old momentum moves it.

    Where we differ: the paper adds a layer an epoch; here the intervals are shares of the budget, whatever its kind and
    the number of layers (its schedule over 3 layers and embeddings in 5 epochs is ``share=0.8``).

    Args:
        share: share of the budget after which everything learns.

    Raises:
        ConfigError: ``share`` is not between 0 and 1.
    """

    frozen = False

    def __init__(self, *, share: float) -> None:
        if not 0 < share < 1:
            raise ConfigError(
                f"transfer.unfreeze_share={share}: the share of the budget after which every layer learns must lie "
                "between 0 and 1, such as 0.5"
            )
        self.share = share

    def prepare(self, encoder: nn.Module) -> None:
        """Turn on all gradients, so that an optimiser knows what will learn; ``learns`` says when."""
        encoder.requires_grad_(True)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """The learner's own mode."""
        encoder.train(training)

    def learns(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """From ``share * depth / deepest`` of the budget on."""
        return fraction >= self.share * depth / deepest - 1e-9


class FixedEmbeddings:
    """Another rule, but that the embedding layer never learns: everything that layer 0 depends on stays as it is.

    No gradient is computed for it, and no optimiser knows it.

    Args:
        rule: of the layers above.
    """

    frozen = False

    def __init__(self, rule: Freezing) -> None:
        self.rule = rule

    def prepare(self, encoder: nn.Module) -> None:
        """As the rule says; which parameters the embeddings are is known once the layers are told apart."""
        self.rule.prepare(encoder)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """As the rule says."""
        self.rule.set_mode(encoder, training)

    def learns(self, depth: int, *, deepest: int, fraction: float) -> bool:
        """Never the lowest layer; the others as the rule says."""
        return depth < deepest and self.rule.learns(depth, deepest=deepest, fraction=fraction)

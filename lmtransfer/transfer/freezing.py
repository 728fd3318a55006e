"""How much of the encoder learns.

Every way of transfer that lets parts of an encoder learn (gradual unfreezing too) is a ``Freezing``: it prepares the
encoder once, and says in which mode it runs while the rest of the learner trains.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn


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


class Frozen:
    """The encoder is a fixed function: no gradient, no dropout, no buffer that moves."""

    frozen = True

    def prepare(self, encoder: nn.Module) -> None:
        """Turn off all gradients."""
        encoder.requires_grad_(False)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """Evaluation mode, always."""
        encoder.eval()


class Full:
    """Everything learns."""

    frozen = False

    def prepare(self, encoder: nn.Module) -> None:
        """Turn on all gradients."""
        encoder.requires_grad_(True)

    def set_mode(self, encoder: nn.Module, training: bool) -> None:
        """The learner's own mode."""
        encoder.train(training)

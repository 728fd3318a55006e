"""The sizes of BERT base, and of the tiny model that replaces it on a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lmtransfer.training.flops import training_flops_per_token


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a BERT."""

    dim: int
    num_layers: int
    num_heads: int
    hidden_dim: int

    @property
    def words(self) -> list[str]:
        """The sizes as words of a command line."""
        return [f"model.{name}={size}" for name, size in asdict(self).items()]

    def flops_per_token(self, mean_length: float) -> float:
        """Compute the FLOP of the layers per token, forward and backward.

        Args:
            mean_length: mean length of the texts, in tokens.
        """
        layer = 4 * self.dim**2 + 2 * self.dim * self.hidden_dim
        return training_flops_per_token(
            num_weights=self.num_layers * layer, num_layers=self.num_layers, dim=self.dim, mean_length=mean_length
        )


BASE = Sizes(dim=768, num_layers=12, num_heads=12, hidden_dim=3072)
TINY = Sizes(dim=32, num_layers=2, num_heads=2, hidden_dim=64)

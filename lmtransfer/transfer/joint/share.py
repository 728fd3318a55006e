"""The share of text in joint training."""

from __future__ import annotations

from dataclasses import dataclass

from lmtransfer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextShare:
    """Weight, amount and duration of text in joint training (TLM: Yao et al. 2021, arXiv 2111.04130).

    Each step's loss is the task's loss on a batch of labelled examples plus ``weight`` times the pretraining
    objective's loss on a batch of text. After a share of the budget, only labels are used, as in the paper's second
    stage. Differences from the paper: the paper selects text similar to the task's from a large corpus, and also reads
    the task's text without labels. Here the text is a given corpus without selection.

    Attributes:
        weight: weight of the objective's loss.
        tokens: maximum number of text tokens per step, over all ranks and micro-batches; only whole rows are used.
        until: share of the budget after which no text is read.

    Raises:
        ConfigError: ``until`` is not in (0, 1].
    """

    weight: float
    tokens: int
    until: float

    def __post_init__(self) -> None:
        if not 0 < self.until <= 1:
            raise ConfigError(
                f"transfer.text_until={self.until}: the share of the budget after which only labels are used must be "
                "in (0, 1], such as 0.8; with 1, text is used until the end"
            )

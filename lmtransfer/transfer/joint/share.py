"""How much of a joint training is text."""

from __future__ import annotations

from dataclasses import dataclass

from lmtransfer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextShare:
    """What is learnt from text beside labels (TLM: Yao et al. 2021, arXiv 2111.04130).

    Each step's loss is the task's on a batch of labelled examples plus ``weight`` times the pretraining objective's on
    a batch of text, until a share of the budget is used up; then labels alone count, as in the paper's second stage.
    Where we differ: the paper searches the text that is like the task's in a large corpus, and reads the task's own
    without its labels too; here the text is a corpus as it is.

    Attributes:
        weight: of the objective's loss.
        tokens: of text in each step, over all ranks and micro-batches, as far as whole rows fill them.
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
                f"transfer.text_until={self.until}: the share of the budget after which labels alone count must lie "
                "in (0, 1], such as 0.8; 1 reads text to the end"
            )

"""What stands for a tokenizer that is yet to be trained, while it is told whether the parts of a pretraining fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from omegaconf import DictConfig

_LIKELY_SIZE = 8192


class UntrainedTokenizer:
    """As many pieces as the config asks for, none of which is known: each is a word with a capital letter.

    It encodes nothing; parts are built with it to see whether they can be.

    Args:
        node: ``cfg.tokenizer``.
    """

    def __init__(self, node: DictConfig) -> None:
        size = node.get("vocab_size")
        self.vocab_size = self.num_pieces = max(8, size) if isinstance(size, int) else _LIKELY_SIZE
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = range(4)
        self.is_special = np.arange(self.vocab_size) < 4
        self.starts_word = np.ones(self.vocab_size, dtype=bool)

    def decode(self, ids: Sequence[int]) -> str:
        """A word."""
        return "Word"

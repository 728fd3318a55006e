"""Putting the special tokens around a row's text."""

from __future__ import annotations

from typing import Literal

import numpy as np

#: Where special tokens frame a row: ``[CLS] text [SEP]``, ``[CLS] text``, or bare text.
Frame = Literal["both", "start", "none"]

NUM_SPECIAL: dict[Frame, int] = {"both": 2, "start": 1, "none": 0}


def framed(text: np.ndarray, *, frame: Frame, cls_id: int, sep_id: int) -> np.ndarray:
    """``text`` with its frame, int32, shape (len(text) + NUM_SPECIAL[frame],)."""
    if frame == "none":
        return text
    row = np.empty(len(text) + NUM_SPECIAL[frame], dtype=np.int32)
    row[0] = cls_id
    row[1 : 1 + len(text)] = text
    if frame == "both":
        row[-1] = sep_id
    return row

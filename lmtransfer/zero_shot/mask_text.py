"""A text in which [MASK] is written, as ids."""

from __future__ import annotations

from typing import Final

import numpy as np

from lmtransfer.tokenizers.base import Tokenizer

MASK: Final = "[MASK]"
#: Private characters, of which vocabularies hold no pieces.
_STAND_INS = [chr(0xE000 + place) for place in range(8)]


def encode_with_masks(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """The ids of a text, each ``[MASK]`` in it the tokenizer's mask id, int64, shape (n,).

    No tokenizer lets a text spell a special token, so what lies between the masks is encoded by itself. What follows a
    mask without white space goes on with its word (``[MASK].``, ``[MASK]ly``) and gets no mark of a word's beginning.
    """
    first, *rest = text.split(MASK)
    parts = [tokenizer.encode(first.rstrip()).ids]
    for part in rest:
        goes_on = part != "" and not part[0].isspace()
        parts += [np.array([tokenizer.mask_id]), _going_on(part, tokenizer) if goes_on else _new(part, tokenizer)]
    return np.concatenate(parts).astype(np.int64)


def _new(part: str, tokenizer: Tokenizer) -> np.ndarray:
    text = part.strip()
    return tokenizer.encode(" " + text if text else "").ids


def _going_on(part: str, tokenizer: Tokenizer) -> np.ndarray:
    """The ids of a text behind a character that is none of them."""
    after = np.zeros(0, dtype=np.int64)
    for stand_in in _STAND_INS:
        encoding = tokenizer.encode(stand_in + part.rstrip())
        of_stand_in = np.flatnonzero(encoding.offsets[:, 0] == 0)
        last = int(of_stand_in[-1]) if len(of_stand_in) else -1
        after = encoding.ids[last + 1 :]
        if last == -1 or encoding.offsets[last, 1] <= 1:
            return after
    # One [UNK] holds the stand-in and the unknown characters behind it.
    return np.append(tokenizer.unk_id, after)

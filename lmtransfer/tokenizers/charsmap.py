"""Checks of the normalization rules in a sentencepiece model or a ``tokenizer.json``.

Both libraries follow the rules without checking them: a damaged file ends the process or makes it read foreign memory.
"""

from __future__ import annotations

import struct
from math import isfinite
from typing import Final

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto

#: The trie comes in blocks of 256 units, one for each byte that may follow.
_BLOCK_UNITS: Final = 256
#: Maximum number of characters that one rule may write; in published models it is 18.
_LONGEST_TARGET: Final = 100


def check_charsmap(charsmap: bytes) -> None:
    """Check compiled rules: every offset in the trie leads into the trie, and every rule to a whole text.

    The format is the size of the trie in bytes as a uint32, the trie, and the texts that the rules write, each followed
    by a zero byte. The trie is a double array of uint32 units as in darts-clone. Bit 31 marks the end of a rule; the
    other bits are then the place of its text. Otherwise, bits 10 to 30 are the offset of the unit's children (in
    multiples of 256 if bit 9 is set), and bit 8 tells whether a rule ends here.

    Raises:
        ValueError: the rules are damaged.
    """
    if len(charsmap) < 4:
        raise ValueError("the normalization rules are incomplete")
    (size,) = struct.unpack_from("<I", charsmap)
    if not size or size % (4 * _BLOCK_UNITS) or 4 + size > len(charsmap):
        raise ValueError(f"the trie of the normalization rules cannot have {size:,} bytes")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = charsmap[4 + size :]
    places = np.flatnonzero(units < 1 << 31)
    nodes = units[places]
    children = places ^ nodes >> 10 << ((nodes & 1 << 9) >> 6)
    if len(children) and int(children.max()) >= len(units):
        raise ValueError("an offset in the normalization rules leads out of their trie")
    ends = units[children[nodes & 1 << 8 != 0]] & ~(1 << 31)
    if not len(ends):
        return
    if not texts.endswith(b"\0"):
        raise ValueError("the texts of the normalization rules are incomplete")
    lengths = [len(text.decode("utf-8")) for text in texts.split(b"\0")]  # raises a UnicodeDecodeError, a ValueError
    if max(lengths) > _LONGEST_TARGET:
        raise ValueError(f"a normalization rule writes {max(lengths):,} characters, more than {_LONGEST_TARGET}")
    if int(ends.max()) >= len(texts) or (np.frombuffer(texts, np.uint8)[ends] & 0xC0 == 0x80).any():
        raise ValueError("a normalization rule leads to no text")


def read_sentencepiece(model: bytes) -> ModelProto:
    """Parse a sentencepiece model, and check what the library does not.

    Raises:
        Exception: the file is damaged; the parser raises errors of several classes.
    """
    proto = ModelProto.FromString(model)
    if not proto.pieces:
        raise ValueError("it has no pieces")
    for piece in proto.pieces:
        if not isinstance(piece.piece, str) or not isfinite(piece.score):  # a piece that is not UTF-8 is bytes
            raise ValueError(f"the piece {piece.piece!r} with the score {piece.score} is invalid")
    for spec in (proto.normalizer_spec, proto.denormalizer_spec):
        if spec.precompiled_charsmap:
            check_charsmap(spec.precompiled_charsmap)
    return proto

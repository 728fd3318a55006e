"""Read the compiled normalisation rules of a sentencepiece model: replacements of strings, the longest match first.

Layout (``Normalizer::DecodePrecompiledCharsMap`` in google/sentencepiece): the size of a trie in bytes, uint32; the
trie, a double array of uint32 units as the library darts-clone stores it; and the replacement strings, each ended by a
zero byte and found by its byte offset. A unit holds the byte that leads to it (bits 0 to 7), whether a string ends
there (bit 8), and the offset of its children (bits 10 to 30, in steps of 256 if bit 9 is set), or, if bit 31 is set,
the offset of a replacement string.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

_ENDS, _FAR, _IS_PLACE = 1 << 8, 1 << 9, 1 << 31
_BYTES: Final = np.arange(256)
_LETTERS: Final = [bytes([byte]) for byte in range(256)]
_BLOCK = 4096  # number of nodes whose children are looked up at once
_MOST_NODES = 1 << 22  # maximum number of trie nodes; published rules have about 300,000


def read_charsmap(data: bytes) -> dict[str, str]:
    """Return the replacement of each string.

    Rules that pass this check are also safe for the ``tokenizers`` library, which does not check them.

    Args:
        data: the compiled rules, not empty.

    Raises:
        ValueError: the rules are damaged.
    """
    size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if size % 4 or not 4 <= size <= len(data) - 4 or not data.endswith(b"\0"):
        raise ValueError("its normalisation rules are damaged or incomplete")
    units, targets = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64), data[4 + size :]
    rules: dict[str, str] = {}
    level, prefixes = np.zeros(1, np.int64), [b""]
    num_nodes = 0
    while len(level):
        num_nodes += len(level)
        if num_nodes > _MOST_NODES:
            raise ValueError("its normalisation rules form a loop")
        below: list[np.ndarray] = []
        longer: list[bytes] = []
        for start in range(0, len(level), _BLOCK):
            nodes = level[start : start + _BLOCK]
            children = (nodes ^ _first_child(units[nodes]))[:, None] ^ _BYTES
            if children.max() >= len(units):
                raise ValueError("its normalisation rules contain an invalid offset")
            row, byte = np.nonzero(units[children] & (_IS_PLACE | 0xFF) == _BYTES)
            row, byte = row[byte > 0], byte[byte > 0]
            below.append(children[row, byte])
            longer += [prefixes[start + i] + _LETTERS[j] for i, j in zip(row.tolist(), byte.tolist(), strict=True)]
        level, prefixes = np.concatenate(below), longer
        ends = np.flatnonzero(units[level] & _ENDS)
        leaves = level[ends] ^ _first_child(units[level[ends]])
        if len(leaves) and leaves.max() >= len(units):
            raise ValueError("its normalisation rules contain an invalid offset")
        for i, unit in zip(ends.tolist(), units[leaves].tolist(), strict=True):
            rules[prefixes[i].decode()] = _target(targets, unit)
    return rules


def _target(targets: bytes, unit: int) -> str:
    place = unit & ~_IS_PLACE
    if unit < _IS_PLACE or place >= len(targets):
        raise ValueError("its normalisation rules contain an invalid offset")
    return targets[place : targets.index(b"\0", place)].decode()


def _first_child(units: np.ndarray) -> np.ndarray:
    """Return the offset of a node's children for byte 0; the exclusive or with the node's index gives their index."""
    return units >> 10 << ((units & _FAR) >> 6)

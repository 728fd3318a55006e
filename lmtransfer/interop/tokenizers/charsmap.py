"""The compiled normalisation rules of a sentencepiece model: which strings become which, the longest match first.

Layout (``Normalizer::DecodePrecompiledCharsMap`` in google/sentencepiece): the size of a trie in bytes, uint32; the
trie, a double array of uint32 units as the library darts-clone stores it; and what the strings become, each ended by a
zero byte, found by its place. A unit holds the byte that leads to it (bits 0 to 7), whether a string ends there (bit
8), and where its children lie (bits 10 to 30, in steps of 256 where bit 9 is set), or, with bit 31, a place.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

_ENDS, _FAR, _IS_PLACE = 1 << 8, 1 << 9, 1 << 31
_BYTES: Final = np.arange(256)
_LETTERS: Final = [bytes([byte]) for byte in range(256)]
_BLOCK = 4096  # nodes whose children are looked for at once
_MOST_NODES = 1 << 22  # that strings lead through; those of published rules lead through some 300,000


def read_charsmap(data: bytes) -> dict[str, str]:
    """What each string becomes.

    Rules that pass are safe with the ``tokenizers`` library too, which follows them without looking.

    Args:
        data: the compiled rules, not empty.

    Raises:
        ValueError: they are torn.
    """
    size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if size % 4 or not 4 <= size <= len(data) - 4 or not data.endswith(b"\0"):
        raise ValueError("its normalisation rules are torn")
    units, targets = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64), data[4 + size :]
    rules: dict[str, str] = {}
    level, spelt = np.zeros(1, np.int64), [b""]
    num_nodes = 0
    while len(level):
        num_nodes += len(level)
        if num_nodes > _MOST_NODES:
            raise ValueError("its normalisation rules do not end")
        below: list[np.ndarray] = []
        longer: list[bytes] = []
        for start in range(0, len(level), _BLOCK):
            nodes = level[start : start + _BLOCK]
            children = (nodes ^ _first_child(units[nodes]))[:, None] ^ _BYTES
            if children.max() >= len(units):
                raise ValueError("its normalisation rules lead nowhere")
            row, byte = np.nonzero(units[children] & (_IS_PLACE | 0xFF) == _BYTES)
            row, byte = row[byte > 0], byte[byte > 0]
            below.append(children[row, byte])
            longer += [spelt[start + i] + _LETTERS[j] for i, j in zip(row.tolist(), byte.tolist(), strict=True)]
        level, spelt = np.concatenate(below), longer
        ends = np.flatnonzero(units[level] & _ENDS)
        leaves = level[ends] ^ _first_child(units[level[ends]])
        if len(leaves) and leaves.max() >= len(units):
            raise ValueError("its normalisation rules lead nowhere")
        for i, unit in zip(ends.tolist(), units[leaves].tolist(), strict=True):
            rules[spelt[i].decode()] = _target(targets, unit)
    return rules


def _target(targets: bytes, unit: int) -> str:
    place = unit & ~_IS_PLACE
    if unit < _IS_PLACE or place >= len(targets):
        raise ValueError("its normalisation rules lead nowhere")
    return targets[place : targets.index(b"\0", place)].decode()


def _first_child(units: np.ndarray) -> np.ndarray:
    """How far a node's children are, for their byte 0: to be combined with the node's own place by exclusive or."""
    return units >> 10 << ((units & _FAR) >> 6)

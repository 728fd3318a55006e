"""Counter-based random numbers: every draw depends on the seed, its purpose and its index, never on earlier draws.

There is no global generator to save or restore: batch k, row r or mask m of epoch e is the same in an uninterrupted
run, in a resumed run, and for any number of workers or ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

#: 32-bit words.
Words = npt.NDArray[np.uint32]

#: Constants of numpy's ``SeedSequence``, and the multiplier of PCG64 (O'Neill 2014).
_HASH_START, _HASH_MULTIPLIER = 0x43B0D7E5, 0x931E8875
_STATE_START, _STATE_MULTIPLIER = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_POOL = 4
_PCG64_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_MASK32, _MASK64, _MASK128 = 2**32 - 1, 2**64 - 1, 2**128 - 1


def _words(seed: int, counters: tuple[int | str, ...]) -> list[int]:
    words = [int(seed) & 0xFFFFFFFFFFFFFFFF]
    for counter in counters:
        words.append(zlib.crc32(counter.encode()) if isinstance(counter, str) else int(counter))
    return words


def generator(seed: int, *counters: int | str) -> np.random.Generator:
    """Create a numpy generator for the draws identified by ``counters``.

    Args:
        counters: the purpose of the draws (a string such as ``"mask"``) and their index (non-negative integers such as
            epoch and row).
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_words(seed, counters))))


def generators(seed: int, *counters: int | str, indices: np.ndarray) -> Iterator[np.random.Generator]:
    """Yield ``generator(seed, *counters, index)`` for each index, several times as fast.

    All are the same object, reseeded: use each before requesting the next. The seeds of all indices are computed
    together, by the steps of numpy's ``SeedSequence``, whose results numpy guarantees to stay the same.

    Args:
        counters: the purpose of the draws and the first counters, as in ``generator``.
        indices: the last counter of each generator, int64, from 0 to 2^32 - 1, shape (n,).
    """
    if len(indices) == 0:
        return
    bits: Any = np.random.PCG64(0)
    rng = np.random.Generator(bits)
    for high, low, sequence_high, sequence_low in _seeds(_words(seed, counters), indices).tolist():
        increment = ((sequence_high << 64 | sequence_low) << 1 | 1) & _MASK128
        start = (increment + (high << 64 | low)) * _PCG64_MULTIPLIER + increment
        state = {"state": start & _MASK128, "inc": increment}
        bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
        yield rng


def _seeds(words: list[int], indices: np.ndarray) -> np.ndarray:
    """``SeedSequence([*words, index]).generate_state(4, np.uint64)`` for each index, uint64, shape (n, 4)."""
    assert 0 <= indices.min() <= indices.max() <= _MASK32
    halves = [half for word in words for half in ((word & _MASK32, word >> 32) if word > _MASK32 else (word,))]
    entropy = [np.full(len(indices), half, np.uint32) for half in halves] + [indices.astype(np.uint32)]
    entropy += [np.zeros(len(indices), np.uint32)] * (_POOL - len(entropy))
    constant = _HASH_START

    def hash_words(value: Words) -> Words:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * _HASH_MULTIPLIER & _MASK32
        value = value * np.uint32(constant)
        return value ^ (value >> np.uint32(16))

    def mix(left: Words, right: Words) -> Words:
        value = _MIX_LEFT * left - _MIX_RIGHT * right
        return value ^ (value >> np.uint32(16))

    with np.errstate(over="ignore"):  # arithmetic modulo 2^32
        pool = [hash_words(value) for value in entropy[:_POOL]]
        for source in range(_POOL):
            for target in range(_POOL):
                if source != target:
                    pool[target] = mix(pool[target], hash_words(pool[source]))
        for value in entropy[_POOL:]:
            for target in range(_POOL):
                pool[target] = mix(pool[target], hash_words(value))
        constant, state = _STATE_START, np.empty((len(indices), 2 * _POOL), np.uint32)
        for place in range(2 * _POOL):
            value = pool[place % _POOL] ^ np.uint32(constant)
            constant = constant * _STATE_MULTIPLIER & _MASK32
            value = value * np.uint32(constant)
            state[:, place] = value ^ (value >> np.uint32(16))
    pairs = state.astype(np.uint64)
    return pairs[:, 0::2] | (pairs[:, 1::2] << np.uint64(32))


def derive_seed(seed: int, *counters: int | str) -> int:
    """Derive a 63-bit seed from ``counters``, for generators that take an integer (torch)."""
    state = np.random.SeedSequence(_words(seed, counters)).generate_state(1, np.uint64)
    return int(state[0]) & 0x7FFFFFFFFFFFFFFF


def permutation(size: int, seed: int, *counters: int | str) -> np.ndarray:
    """Return a random order of ``range(size)``, int64, determined by the seed and ``counters``."""
    return generator(seed, *counters).permutation(size)


class Uniforms:
    """Random numbers in [0, 1) for whole arrays of indices, computed with the mixing function of splitmix64."""

    def __init__(self, seed: int, *counters: int | str) -> None:
        self._key = np.random.SeedSequence(_words(seed, counters)).generate_state(1, np.uint64)[0]

    def at(self, indices: np.ndarray, draw: int) -> np.ndarray:
        """Return the random numbers at ``indices``, float64.

        Args:
            indices: non-negative integers less than 2^60.
            draw: which of the 16 numbers at each index, from 0.
        """
        with np.errstate(over="ignore"):
            z = indices.astype(np.uint64) * np.uint64(16) + np.uint64(draw + 1)
            z *= np.uint64(0x9E3779B97F4A7C15)
            z += self._key
            z ^= z >> np.uint64(30)
            z *= np.uint64(0xBF58476D1CE4E5B9)
            z ^= z >> np.uint64(27)
            z *= np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
        return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53

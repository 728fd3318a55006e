"""Random numbers from counters: every draw depends on the seed, its purpose and its index, never on earlier draws.

There is no global generator to save or restore: batch k, row r or mask m of epoch e is the same in an uninterrupted
run, in a resumed run, and with any number of workers or ranks.
"""

from __future__ import annotations

import zlib

import numpy as np


def _words(seed: int, counters: tuple[int | str, ...]) -> list[int]:
    words = [int(seed) & 0xFFFFFFFFFFFFFFFF]
    for counter in counters:
        words.append(zlib.crc32(counter.encode()) if isinstance(counter, str) else int(counter))
    return words


def generator(seed: int, *counters: int | str) -> np.random.Generator:
    """A new numpy generator for the place named by ``counters``.

    Args:
        seed: the run's seed.
        counters: the purpose of the draws (a string such as ``"mask"``) and their index (non-negative integers such as
            epoch and row).
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_words(seed, counters))))


def derived_seed(seed: int, *counters: int | str) -> int:
    """A 63-bit seed for the place named by ``counters``, for generators that take an integer (torch)."""
    state = np.random.SeedSequence(_words(seed, counters)).generate_state(1, np.uint64)
    return int(state[0]) & 0x7FFFFFFFFFFFFFFF


def permutation(size: int, seed: int, *counters: int | str) -> np.ndarray:
    """A random order of ``range(size)``, int64, for the place named by ``counters``."""
    return generator(seed, *counters).permutation(size)

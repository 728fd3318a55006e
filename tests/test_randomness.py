"""Random numbers from counters, against numpy's own seeding."""

from __future__ import annotations

import numpy as np
import pytest

from lmtransfer.randomness import generator, generators


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40 + 3, 2**63 + 9])
@pytest.mark.parametrize("counters", [("mask",), ("corrupt", 0), ("sample", 3, 2**33), ("a", 1, 2, 3, 4, 5)])
def test_generators_of_many_indices_are_those_of_each_index(seed: int, counters: tuple[int | str, ...]) -> None:
    indices = np.array([5, 0, 1, 77, 2**31, 2**32 - 1, 5])
    for index, rng in zip(indices.tolist(), generators(seed, *counters, indices=indices), strict=True):
        expected = generator(seed, *counters, index)
        np.testing.assert_array_equal(rng.permutation(40), expected.permutation(40))
        assert rng.random(3).tolist() == expected.random(3).tolist()
        assert rng.random(dtype=np.float32) == expected.random(dtype=np.float32)  # leaves half a word for the next


def test_no_index_gives_no_generator() -> None:
    assert list(generators(0, "mask", indices=np.zeros(0, np.int64))) == []

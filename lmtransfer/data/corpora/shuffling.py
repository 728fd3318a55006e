"""A shuffle buffer: a random order for a stream that is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from lmtransfer.randomness import generator, permutation

_Item = TypeVar("_Item")

#: Number of random numbers that are drawn at once.
_BLOCK = 8192


def shuffled(items: Iterator[_Item], *, buffer: int) -> Iterator[_Item]:
    """The items in random order, with at most ``buffer`` of them in memory.

    The first ``buffer`` items fill the buffer. Each later item takes the place of a random one, which is given out. In
    the end the buffer is given out in random order. So an item is at most ``buffer`` places earlier than in the source,
    and, rarely, much later. The order depends only on the number of items and on ``buffer``, not on a run's seed, so
    that all runs read the same text.

    Args:
        items: the stream.
        buffer: number of items in memory, at least 1.
    """
    held = list(islice(items, buffer))
    places: list[int] = []
    for number, item in enumerate(items):
        block, within = divmod(number, _BLOCK)
        if within == 0:
            places = generator(0, "shuffle buffer", block).integers(len(held), size=_BLOCK).tolist()
        yield held[places[within]]
        held[places[within]] = item
    for place in permutation(len(held), 0, "shuffle buffer"):
        yield held[place]

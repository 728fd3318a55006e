"""Rows around a sequence whose number is rounded up: a processor builds a kernel for each shape of a bfloat16 product.

Shape legend: T packed rows, H heads, K head width, P rows of a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

#: Lengths are rounded up to a multiple of this.
_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows around one sequence.

    Attributes:
        start, stop: the sequence's rows, of all rows.
        first: the first row of the range.
        size: P.
    """

    start: int
    stop: int
    first: int
    size: int

    def heads_first(self, rows_THK: Tensor) -> Tensor:
        """A view of the rows of the range, (H, P, K)."""
        return rows_THK[self.first : self.first + self.size].transpose(0, 1)

    def own(self, rows_HPK: Tensor) -> Tensor:
        """Of the rows of the range those of the sequence, (stop - start, H, K)."""
        return rows_HPK[:, self.start - self.first : self.stop - self.first].transpose(0, 1)

    def strangers(self) -> Iterator[slice]:
        """The places in the range that are not the sequence's."""
        if self.first < self.start:
            yield slice(0, self.start - self.first)
        if self.stop < self.first + self.size:
            yield slice(self.stop - self.first, self.size)


def row_ranges(lengths: Sequence[int]) -> list[RowRange]:
    """A range around each sequence of so many rows; sizes are multiples of 16, or all rows where there are fewer."""
    total, start, ranges = sum(lengths), 0, []
    for length in lengths:
        size = min(total, -(-length // _MULTIPLE) * _MULTIPLE)
        ranges.append(RowRange(start, start + length, min(start, total - size), size))
        start += length
    return ranges

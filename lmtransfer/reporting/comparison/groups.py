"""The comparison by class and by length of the input, each on a part of the examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmtransfer.reporting.comparison.common_answers import only
from lmtransfer.reporting.comparison.comparison import GroupDifference, corrected_together
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs.kept_answers import examples_of
from lmtransfer.tasks.metrics.scored_examples import Kept, Ratio, ScoredExamples, metric_value
from lmtransfer.verdicts.compare import compare_conditions

#: Number of length groups, with about the same number of examples each.
_LENGTHS = 4
#: Highest number of classes that are shown; the most frequent ones are chosen.
_MOST_CLASSES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A part of the examples, or of their words.

    Attributes:
        name: name of the group.
        rows: indices of its examples.
        num: number of its examples, or of its words.
        tag: the gold tag of its words; None: whole examples.
    """

    name: str
    rows: np.ndarray
    num: int
    tag: str | None = None


def class_groups(examples: ScoredExamples) -> list[Group]:
    """Groups by gold label, kind of question or phenomenon; tagged sentences: words by gold tag; largest first."""
    if examples.kind == "tagging":
        owners = np.repeat(np.arange(len(examples)), np.diff(examples.offsets))
        words = [(name, np.flatnonzero(examples.gold == tag)) for tag, name in enumerate(examples.labels)]
        groups = [Group(name, np.unique(owners[places]), len(places), name) for name, places in words]
    else:
        rows = [(name, np.flatnonzero(examples.classes == place)) for place, name in enumerate(examples.class_names)]
        groups = [Group(name, of_class, len(of_class)) for name, of_class in rows]
    return sorted((group for group in groups if group.num), key=lambda group: -group.num)[:_MOST_CLASSES]


def _of_tag(kept: Kept, tag: str) -> Kept:
    """The answers restricted to the words with one gold tag."""
    examples = kept.examples
    wanted = np.array([label == tag for label in examples.labels])[examples.gold]
    right = wanted & (examples.predicted == examples.gold)
    starts = examples.offsets[:-1]  # every chosen sentence has words
    parts, counts = (np.add.reduceat(of_word, starts).astype(np.float64) for of_word in (right, wanted))
    return replace(kept, examples=replace(examples, ratios={"accuracy": Ratio(parts, counts)}))


def length_groups(lengths: np.ndarray) -> list[Group]:
    """Quarters of the examples by their length in characters."""
    edges = np.unique(np.quantile(lengths, np.arange(1, _LENGTHS) / _LENGTHS, method="lower"))
    place = np.searchsorted(edges, lengths, side="left")
    groups = []
    for number in range(len(edges) + 1):
        rows = np.flatnonzero(place == number)
        if len(rows):
            low, high = int(lengths[rows].min()), int(lengths[rows].max())
            name = f"{low:,} to {high:,} characters" if low < high else f"{low:,} characters"
            groups.append(Group(name, rows, len(rows)))
    return groups


def compare_groups(
    groups: Sequence[Group],
    kept: tuple[list[Kept], list[Kept]],
    sides: tuple[Side, Side],
    metric: str,
    settings_differ: bool,
) -> tuple[GroupDifference, ...]:
    """Compare two sides on each group of examples; the differences are judged together."""
    made: list[GroupDifference] = []
    for group in groups:
        keys = kept[0][0].examples.keys[group.rows]
        parts = [[only(one, keys) for one in side] for side in kept]
        if group.tag is not None:
            parts = [[_of_tag(one, group.tag) for one in side] for side in parts]
        values = [[metric_value(one.examples, metric) for one in side] for side in parts]
        if any(value is None for side in values for value in side):
            continue
        one, other = (
            side.condition([value for value in of_side if value is not None], examples_of(part, metric))
            for side, part, of_side in zip(sides, parts, values, strict=True)
        )
        found = compare_conditions(one, other, settings_differ=settings_differ)
        made.append(GroupDifference(group.name, group.num, metric, one.spread.mean, other.spread.mean, found))
    return corrected_together(made)

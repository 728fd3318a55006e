"""The kept answers of all seeds of a run, to the same examples in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.kept_answers import kept_answers
from lmtransfer.tasks.metrics.scored_examples import Kept


def answers_of(entry: Entry, problems: list[str]) -> list[Kept]:
    """The answers of the seeds of a run on its scored split; empty if none are kept.

    A seed whose examples or labels differ from those of the first seed is left out.

    Args:
        entry: a scored run of a task.
        problems: gets one message for each file that cannot be read.
    """
    found = [kept for kept in kept_answers(entry.run.path, problems) if kept.split == entry.split and not kept.baseline]
    own = [kept for kept in found if not kept.is_control]
    # The folder of a control that was given as a run itself.
    return _of_same_examples(own or (found if entry.is_control else []))


def _of_same_examples(found: Sequence[Kept]) -> list[Kept]:
    if not found:
        return []
    first = found[0].examples
    made = [found[0]]
    order = np.argsort(first.keys)
    for kept in found[1:]:
        other = kept.examples
        if (other.kind, other.labels, len(other)) != (first.kind, first.labels, len(first)):
            continue
        if not np.array_equal(other.keys, first.keys):
            own = np.argsort(other.keys)
            if not np.array_equal(other.keys[own], first.keys[order]):
                continue
            rows = np.empty_like(own)
            rows[order] = own
            kept = replace(kept, examples=other.select(rows))
        if np.array_equal(kept.examples.gold, first.gold) and np.array_equal(kept.examples.offsets, first.offsets):
            made.append(kept)
    return made

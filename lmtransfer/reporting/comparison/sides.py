"""The two sides of a comparison: a run or a group of runs each, as scores with their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.labels import flatten, node_label
from lmtransfer.verdicts.conditions import Condition, Examples, Score

#: Keys of pretraining that say nothing of what is learnt.
_OF_NO_ACCOUNT = ("name", "resume", "output_root", "cache_dir", "data_root", "seeds", "hardware", "tracker", "run")


@dataclass(frozen=True, slots=True)
class Member:
    """One training run of a side.

    Attributes:
        value: the metric that decides.
        seed: of finetuning or of the probe; None where it is not stated.
        pretraining: the pretraining that it began from; None for random weights.
        kept: its answers; None where they were not kept.
    """

    value: float
    seed: int | None
    pretraining: str | None
    kept: Kept | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: what it is called.
        entries: its runs.
        members: their scores, a training run each.
        problems: what could not be read, a line each.
    """

    name: str
    entries: tuple[Entry, ...]
    members: tuple[Member, ...]
    problems: tuple[str, ...]

    @property
    def first(self) -> Entry:
        """Speaks for all of them, which are of one task, split and metric."""
        return self.entries[0]

    @property
    def metric(self) -> str:
        """The metric that decides."""
        assert self.first.metric is not None
        return self.first.metric

    @property
    def num_scored(self) -> float | None:
        """How many examples its result says that were scored."""
        return scores.number(self.first.run.result.get("num_scored"))

    @property
    def num_collapsed(self) -> int:
        """How many of its training runs answer one and the same label throughout."""
        return sum(scores.num_collapsed(entry.run.result) for entry in self.entries)

    @property
    def scored_on(self) -> str:
        """What its scores are of: ``sst2, dev``, or ``held-out text of python_docs``."""
        first = self.first
        if not first.is_pretraining:
            return ", ".join(filter(None, (first.task, first.split)))
        source = first.run if first.source is None else first.source
        text = node_label(first.run.config.get("corpus") or source.config.get("corpus"))
        return f"held-out text of {text}" if text else "held-out text"

    def pretraining_settings(self) -> dict[str, Any]:
        """What the weights were pretrained with, by dotted key; empty for random weights."""
        return self.settings_of(self.first)

    @staticmethod
    def settings_of(entry: Entry) -> dict[str, Any]:
        """As ``pretraining_settings``, of one of its runs."""
        source = entry.source
        config: Mapping[str, Any] = {} if source is None or entry.is_control else source.config
        flat = flatten({key: value for key, value in config.items() if key not in _OF_NO_ACCOUNT})
        return {key: value for key, value in flat.items() if value not in (None, {})}

    @property
    def are_told_apart(self) -> bool:
        """Whether the seeds of all its members are known and different, so that they can pair them."""
        names = {(member.pretraining, member.seed) for member in self.members}
        return len(names) == len(self.members) and all(member.seed is not None for member in self.members)

    def condition(self, values: Sequence[float], examples: Examples | None = None, *, collapsed: int = 0) -> Condition:
        """A condition of the rule of verdicts.

        Args:
            values: a score of each member.
            examples: what each example contributed to each score.
            collapsed: how many members answer one and the same label.
        """
        apart = self.are_told_apart
        found = tuple(
            Score(value, member.seed if apart and member.seed is not None else f"{place}", member.pretraining)
            for place, (member, value) in enumerate(zip(self.members, values, strict=True))
        )
        return Condition(found, examples, collapsed, design="" if apart else None)

"""The sides of a comparison: each is a run or a group of runs, with scores and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.runs.labels import flatten, node_label
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.verdicts.conditions import Condition, Examples, Score

#: Pretraining keys that do not affect what a model learns.
_OF_NO_ACCOUNT = ("name", "resume", "output_root", "cache_dir", "data_root", "seeds", "hardware", "tracker", "run")


@dataclass(frozen=True, slots=True)
class Member:
    """One training run of a side.

    Attributes:
        value: value of the main metric.
        seed: seed of finetuning or of the probe; None if unknown.
        pretraining: the pretraining run that it started from; None for random weights.
        kept: its answers; None if they were not kept.
    """

    value: float
    seed: int | None
    pretraining: str | None
    kept: Predictions | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: name of the side.
        entries: its runs.
        members: its training runs with their scores.
        problems: what could not be read, one line each.
    """

    name: str
    entries: tuple[Entry, ...]
    members: tuple[Member, ...]
    problems: tuple[str, ...]

    @property
    def first(self) -> Entry:
        """The first run; all runs of a side have the same task, split and metric."""
        return self.entries[0]

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        assert self.first.metric is not None
        return self.first.metric

    @property
    def num_scored(self) -> float | None:
        """The number of scored examples, according to the result."""
        return scores.number(self.first.run.result.get("num_scored"))

    @property
    def num_collapsed(self) -> int:
        """The number of training runs that predict the same label for every example."""
        return sum(scores.num_collapsed(entry.run.result) for entry in self.entries)

    @property
    def scored_on(self) -> str:
        """The scored data: ``sst2, dev``, or ``held-out text of python_docs``."""
        first = self.first
        if not first.is_pretraining:
            return ", ".join(filter(None, (first.task, first.split)))
        source = first.run if first.source is None else first.source
        text = node_label(first.run.config.get("corpus") or source.config.get("corpus"))
        return f"held-out text of {text}" if text else "held-out text"

    def pretraining_settings(self) -> dict[str, Any]:
        """The settings of the weights' pretraining, by dotted key; empty for random weights."""
        return self.settings_of(self.first)

    @staticmethod
    def settings_of(entry: Entry) -> dict[str, Any]:
        """The same as ``pretraining_settings``, for one of the runs."""
        source = entry.source
        config: Mapping[str, Any] = {} if source is None or entry.is_control else source.config
        flat = flatten({key: value for key, value in config.items() if key not in _OF_NO_ACCOUNT})
        flat["revision"] = None if source is None or entry.is_control else source.revision
        return {key: value for key, value in flat.items() if value not in (None, {})}

    @property
    def are_distinguishable(self) -> bool:
        """Whether the seeds of all members are known and distinct, so that members can be paired by them."""
        names = {(member.pretraining, member.seed) for member in self.members}
        return len(names) == len(self.members) and all(member.seed is not None for member in self.members)

    def condition(self, values: Sequence[float], examples: Examples | None = None, *, collapsed: int = 0) -> Condition:
        """Build a condition for ``verdicts``.

        Args:
            values: one score per member.
            examples: the contribution of each example to each score.
            collapsed: number of members that predict the same label for every example.
        """
        apart = self.are_distinguishable
        member_scores = tuple(
            Score(value, member.seed if apart and member.seed is not None else f"{place}", member.pretraining)
            for place, (member, value) in enumerate(zip(self.members, values, strict=True))
        )
        drawn = any(entry.is_control or entry.run.result.get("deterministic") is not True for entry in self.entries)
        constant = not drawn and len({member.pretraining for member in self.members}) == 1
        return Condition(member_scores, examples, collapsed, design="" if apart else None, constant=constant)

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
_IGNORED_KEYS = ("name", "resume", "output_root", "cache_dir", "data_root", "seeds", "hardware", "tracker", "run")


@dataclass(frozen=True, slots=True)
class Member:
    """One training run of a side.

    Attributes:
        value: value of the main metric.
        seed: seed of finetuning or of the probe; None if unknown.
        pretraining: the pretraining run that this run started from; None for random weights.
        kept: the run's answers; None if they were not kept.
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
        entries: the side's runs.
        members: the side's training runs with their scores.
        problems: files that could not be read, one message each.
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
        """Return the settings of the weights' pretraining, by dotted key; empty for random weights."""
        return self.settings_of(self.first)

    @staticmethod
    def settings_of(entry: Entry) -> dict[str, Any]:
        """Return the ``pretraining_settings`` of one of the runs."""
        source = entry.source
        config: Mapping[str, Any] = {} if source is None or entry.is_control else source.config
        flat = flatten({key: value for key, value in config.items() if key not in _IGNORED_KEYS})
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
        can_be_paired = self.are_distinguishable
        member_scores = tuple(
            Score(value, member.seed if can_be_paired and member.seed is not None else f"{place}", member.pretraining)
            for place, (member, value) in enumerate(zip(self.members, values, strict=True))
        )
        is_random = any(entry.is_control or entry.run.result.get("deterministic") is not True for entry in self.entries)
        is_constant = not is_random and len({member.pretraining for member in self.members}) == 1
        design = "" if can_be_paired else None
        return Condition(member_scores, examples, collapsed, design=design, constant=is_constant)

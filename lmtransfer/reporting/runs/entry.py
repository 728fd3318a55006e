"""The report's entry for one run, with its seeds, its pretraining and its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmtransfer.reporting.runs.collect import COMMANDS, Run
from lmtransfer.reporting.runs.details import RunCost
from lmtransfer.reporting.runs.lineage import is_pretraining
from lmtransfer.reporting.runs.scores import other_metrics
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread


@dataclass(frozen=True, slots=True)
class Entry:
    """One run and its scores.

    Attributes:
        run: the run (the parent if it has several seeds).
        seeds: the runs of the seeds; empty for a single seed.
        controls: the control's runs inside the run's directory.
        source: the pretraining run that the run started from, or None.
        model: family and size.
        objective: pretraining objective of this run or of ``source``.
        corpus: the pretraining text, preceded by the texts of the runs that this run continued.
        task: the downstream task, with a distinguishing detail if other tasks of the report have the same name; empty
            for pretraining.
        split: the scored split of the task.
        transfer: "frozen", "finetuned", another way of freezing, or "control"; empty for pretraining.
        num_train: size of the training subset; None for the whole training set.
        metric: name of the main metric; None if nothing was scored.
        score: the main metric over the seeds.
        control: the main metric of the control.
        metrics: names of the task's metrics, the main one first; empty if the task offers no choice.
        majority: the main metric of always predicting the most common label.
        baselines: the main metric of each word-count baseline, by name.
        better_baseline: the name of the better baseline; empty if there is none.
        baseline_difference: ``score`` minus the better baseline, judged together with all others in the report.
        difference: ``score`` minus ``control``, judged together with all others in the report.
        pretraining_tokens: real tokens seen in pretraining, over all stages.
        pretraining_seconds: training seconds of pretraining, over all stages.
        num_parameters: parameters of the encoder and its heads.
        tokens_per_second: real tokens per second of this run.
        cost: the cost of training on the task; empty for other runs.
        settings: settings of a task's run (see ``settings.task_settings``); empty for pretraining.
        without_control: why a run that resembles a control is not used as one; empty if there is no such run.
        task_fingerprint: the task's identity, whatever its name; see ``RunResult``.
        condition: ``score`` as a side of a comparison, with its seeds.
        control_condition: ``control`` as a side of a comparison.
        margin: the size below which a difference does not matter, in the metric's unit; None if not set.
        baseline_condition: the better baseline as a side of a comparison.
    """

    run: Run
    seeds: tuple[Run, ...]
    controls: tuple[Run, ...]
    source: Run | None
    model: str
    objective: str
    corpus: str
    task: str
    split: str
    transfer: str
    num_train: int | None
    metric: str | None
    score: Spread | None
    control: Spread | None
    majority: float | None
    difference: Difference | None
    pretraining_tokens: float | None
    pretraining_seconds: float | None
    num_parameters: float | None
    tokens_per_second: float | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    without_control: str = ""
    cost: RunCost = field(default_factory=RunCost)
    metrics: tuple[str, ...] = ()
    task_fingerprint: str | None = None
    condition: Condition | None = None
    control_condition: Condition | None = None
    margin: float | None = None
    baselines: Mapping[str, Spread] = field(default_factory=dict)
    better_baseline: str = ""
    baseline_difference: Difference | None = None
    baseline_condition: Condition | None = None

    @property
    def is_pretraining(self) -> bool:
        """Whether this is a pretraining run, or an evaluation of one on its held-out text."""
        return is_pretraining(self.run)

    @property
    def other_metrics(self) -> dict[str, Spread]:
        """The scores by the task's metrics other than the main one."""
        return other_metrics(self.run.result, self.metrics, [seed.result for seed in self.seeds if seed.result])

    @property
    def is_control(self) -> bool:
        """Whether this run is itself a control, which is trained on the task from random weights."""
        return self.transfer == "control"

    @property
    def baseline(self) -> Spread | None:
        """The main metric of the better word-count baseline; None if there is none."""
        return self.baselines.get(self.better_baseline)

    @property
    def baseline_mean(self) -> float | None:
        """The mean of the better baseline."""
        return None if self.baseline is None else self.baseline.mean

    @property
    def name(self) -> str:
        """The run's name without the folder of its command."""
        command, _, rest = self.run.key.partition("/")
        return rest if rest and command in COMMANDS else self.run.key

    @property
    def group(self) -> str:
        """The group of comparable runs: ``sst2, test, 1,000 labels``, or ``pretraining``."""
        if self.is_pretraining:
            return "pretraining"
        labels = f"{self.num_train:,} labels" if self.num_train else ""
        return ", ".join(filter(None, (self.task or "unknown task", self.split, labels)))


def distinct_names(entries: Sequence[Entry]) -> dict[str, str]:
    """Name each run, by key, adding the way of transfer where comparable runs share a name."""
    shared = Counter((entry.group, entry.name) for entry in entries)
    return {
        entry.run.key: f"{entry.name} {entry.transfer}".strip() if shared[entry.group, entry.name] > 1 else entry.name
        for entry in entries
    }

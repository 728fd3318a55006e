"""The result of a run and its file ``result.json``: this module alone writes and reads that file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.untrusted.documents import read_json
from lmtransfer.untrusted.schema import Anything, Entries, Fields, Items, Kind, OrNull, Real, Text, Whole

#: A pretraining with fewer steps than this has hardly begun.
_FEW_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What every command reports about a run; None for what does not apply.

    Attributes:
        command: name of the command, such as "pretrain".
        task: name of the task.
        task_fingerprint: hash of the scored examples, their gold answers, the labels and the main metric; None if the
            answers are not kept.
        split: the split of the task, or of the corpus, that was measured.
        metrics: name and value, in the metric's own unit.
        main_metric: name of the metric that verdicts and selection use.
        control: statistics of the runs from random initialisation; True if this run is one of them.
        seconds: duration of the training, or of the evaluation; of several seeds together, without their controls.
        tokens: number of tokens read, without filler.
        num_parameters: parameters of everything that was trained or scored.
        more: further entries of the command, stored in the file next to these.
    """

    command: str | None
    task: str | None = None
    task_fingerprint: str | None = None
    split: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    main_metric: str | None = None
    control: Any = None
    seconds: float | None = None
    tokens: float | None = None
    num_parameters: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    #: What every ``result.json`` must hold, whichever command wrote it; only fields that are used are checked.
    schema: ClassVar[Kind] = Fields(
        optional={
            **dict.fromkeys(
                ("command", "task", "task_fingerprint", "split", "main_metric", "chosen_by", "majority_label"),
                OrNull(Text()),
            ),
            "metrics": OrNull(Entries(OrNull(Real()))),
            **dict.fromkeys(("seconds", "tokens", "tokens_per_second", "num_parameters"), OrNull(Real(least=0))),
            **dict.fromkeys(("mean", "median", "deviation", "standard_error", "learning_rate"), OrNull(Real())),
            **dict.fromkeys(("n", "num_train", "num_scored"), OrNull(Whole())),
            **dict.fromkeys(("num_trained_parameters", "peak_memory"), OrNull(Whole())),
            "majority": OrNull(Entries(Real())),
            "num_truncated": OrNull(Entries(Whole())),
            "control": OrNull(Anything()),
            "labels": OrNull(Items(Text())),
        }
    )

    def __str__(self) -> str:
        """The metrics, in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()) or "nothing was measured"
        return f"{self._measured}: {metrics}"

    @property
    def _measured(self) -> str:
        return ", ".join(text for text in (self.task or self.command, self.split) if text)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens divided by ``seconds``; None if nothing was timed."""
        return self.tokens / self.seconds if self.seconds and self.tokens is not None else None

    def values(self) -> dict[str, Any]:
        """The entries of ``result.json``."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "more"}
        return own | {"tokens_per_second": self.tokens_per_second, **self.more}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make a result from the entries of a file."""
        names = {one.name for one in fields(cls)} - {"more"}
        own = {name: value for name, value in values.items() if name in names}
        own |= {"metrics": own.get("metrics") or {}}
        rest = {name: value for name, value in values.items() if name not in names | {"tokens_per_second"}}
        return cls(**({"command": None} | own), more=rest)

    def write(self, path: Path) -> None:
        """Save the result.

        Raises:
            ValueError: a number is not finite.
        """
        write_text(path, json.dumps(self.values(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that another person may have written.

        Raises:
            RunDirectoryError: it is damaged, or its fields do not fit.
        """
        return cls.of(read_json(path, cls.schema, error=RunDirectoryError))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult(RunResult):
    """The result of one training run on a task, or of scoring one.

    Attributes:
        seed: seed of the run.
        pretraining_seed: seed of the encoder that it started from; None for random initialisation.
        learning_rate: peak learning rate; None if the head was not trained but fitted to its optimum.
        collapsed: whether it gives every example the same answer.
        higher_is_better: direction of the main metric.
    """

    metrics: dict[str, float]
    main_metric: str
    seed: int | None
    pretraining_seed: int | None = None
    learning_rate: float | None = None
    collapsed: bool
    higher_is_better: bool = True

    #: The fields that the joint result uses.
    schema: ClassVar[Kind] = Fields(
        {
            "metrics": Entries(Real(), least=1),
            "main_metric": Text(),
            **dict.fromkeys(("seed", "tokens"), Whole()),
            "seconds": Real(least=0),
            "learning_rate": OrNull(Real()),
            "collapsed": Anything(),
        }
    )

    @property
    def score(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]


_RATE: Mapping[str, Kind] = {"learning_rate": OrNull(Real()), "learning_rate_edge": Anything()}
_OVER_SEEDS: Mapping[str, Kind] = {
    "mean": Real(),
    "median": Real(),
    "n": Whole(least=1),
    "collapsed": Whole(),
    "deviation": OrNull(Real()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult(RunResult):
    """The results of all runs of a command on a task, together.

    Attributes:
        seeds: seed, pretraining seed and metrics of each run.
        mean: mean of the main metric.
        median: median of the main metric.
        deviation: standard deviation of the main metric; None for a single seed.
        n: number of runs.
        collapsed: how many runs give every example the same answer.
        higher_is_better: direction of the main metric.
        majority: metrics of the answers that need no input; None if there are none.
    """

    main_metric: str
    seeds: Sequence[Mapping[str, Any]] = ()
    mean: float
    median: float
    deviation: float | None = None
    n: int
    collapsed: int
    higher_is_better: bool = True
    majority: Mapping[str, float] | None = None

    def __str__(self) -> str:
        """The main metric of the run, of its control, and their difference, in one line."""
        spread = "" if self.deviation is None else f" \u00b1 {self.deviation:.2g} over {self.n} seeds"
        text = f"{self._measured}: {self.main_metric} {self.mean:.4g}{spread}"
        if isinstance(self.control, Mapping):
            text += f"; not pretrained: {self.control['mean']:.4g}"
        difference = self.more.get("difference")
        if isinstance(difference, Mapping):
            text += f"; difference: {difference['difference']:+.4g} ({difference['verdict']})"
        return text

    #: The fields that reports show.
    schema: ClassVar[Kind] = Fields(
        {
            **dict.fromkeys(("task", "split", "main_metric", "chosen_by"), Text()),
            **dict.fromkeys(("num_scored", "num_train", "num_parameters"), Whole()),
            "seconds": Real(least=0),
            **_OVER_SEEDS,
        },
        optional={
            **_RATE,
            "majority": OrNull(Entries(Real())),
            "num_truncated": Entries(Whole()),
            "control": OrNull(Fields(_OVER_SEEDS, optional=_RATE)),
            "baselines": OrNull(Entries(Fields(_OVER_SEEDS))),
            "better_baseline": Text(),
            "difference": OrNull(Fields({"difference": Real(), "standard_error": OrNull(Real()), "verdict": Text()})),
        },
    )


def largest(results: Sequence[RunResult], *names: str) -> dict[str, Any]:
    """The largest value of some entries over several results; results of older versions do not have them."""
    found = {name: [result.more[name] for result in results if name in result.more] for name in names}
    return {name: max(values) for name, values in found.items() if values}


def few_steps(result: RunResult) -> str | None:
    """A warning if a pretraining made so few steps that its weights are nearly those that it started from."""
    steps = result.more.get("steps")
    if result.command != "pretrain" or not isinstance(steps, int) or steps >= _FEW_STEPS:
        return None
    return (
        f"this run made only {steps} {'step' if steps == 1 else 'steps'}, so its weights are nearly those that it "
        "started from: pretrain with a larger budget (train.steps, train.tokens or train.seconds)"
    )

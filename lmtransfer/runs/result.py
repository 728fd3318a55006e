"""The result of a run and its file ``result.json``, which only this module reads and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, NotRequired, Self

from annotated_types import MaxLen, MinLen
from typing_extensions import TypedDict

from lmtransfer.config.types import LargeCount, NonNegative, Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json

#: The format of ``result.json``; any other is rejected.
FORMAT = 1
#: The entry on the final model, and the folder with its run directory.
FINAL = "final"
#: A pretraining run with fewer steps than this has hardly begun.
FEW_STEPS = 10


#: The bounds of an interval.
_Bounds = Annotated[list[float], MinLen(2), MaxLen(2)]


class _Gain(TypedDict):
    accuracy: float
    interval: _Bounds
    p_value: float


class _Reliability(TypedDict):
    ece: float
    counts: list[int]
    confidences: list[float]
    accuracies: list[float]


class _Calibration(TypedDict):
    plain: _Reliability
    scaled: _Reliability | None
    temperature: float | None


class _MixDeviation(TypedDict):
    gamma: float | None
    weights: list[float | None]


class _LayerWeights(TypedDict):
    gamma: float
    weights: list[float]
    deviation: NotRequired[_MixDeviation | None]


class _Try(TypedDict, total=False):
    arm: str
    learning_rate: float
    score: float | None
    seed: int | None
    pretraining_seed: int | None


class _Curve(TypedDict):
    key: str
    values: list[float]
    losses: list[float]


class _Final(TypedDict):
    num_train: Whole
    chosen_by: NotRequired[str]
    learning_rate: NotRequired[float | None]
    steps: NotRequired[Whole]
    C: NotRequired[float]


class _SeedScores(TypedDict, total=False):
    metrics: dict[str, float | None] | None
    seed: int | None
    pretraining_seed: int | None


class _Scores(_SeedScores, total=False):
    """A result, or its entry for a control or a baseline."""

    seeds: list[_SeedScores]
    n: Whole | None
    collapsed: bool | int
    deterministic: bool
    undefined: list[str]
    learning_rate: float | None
    calibration: _Calibration
    layer_weights: _LayerWeights


class _Finding(TypedDict):
    text: str
    command: str


class _AnyResult(_Scores, total=False):
    """The entries of ``result.json`` that are checked when the file is read; other entries may contain anything."""

    command: str | None
    task: str | None
    task_fingerprint: str | None
    split: str | None
    main_metric: str | None
    higher_is_better: bool
    zero_shot: str | bool
    chosen_by: str | None
    weights: str | None
    control: _Scores | bool | None
    baselines: dict[str, _Scores] | None
    majority: dict[str, float | None] | None
    majority_label: str | None
    labels: list[str] | None
    mean: float | None
    median: float | None
    deviation: float | None
    standard_error: float | None
    num_train: Whole | None
    label_counts: dict[str, Whole]
    num_scored: Whole | None
    num_truncated: dict[str, Whole] | None
    learning_rates: list[float] | None
    final: _Final
    learning_rate_tries: list[_Try]
    chance: float | None
    interval: _Bounds
    p_value: float
    minus_token_frequencies: _Gain
    minus_random_weights: _Gain
    curve: _Curve
    parts: dict[str, dict[str, Any]]
    unigram_entropy: float | None
    seconds: NonNegative | None
    tokens: NonNegative | None
    tokens_per_second: NonNegative | None
    num_parameters: NonNegative | None
    num_trained_parameters: Whole | None
    peak_memory: Whole | None
    flops: NonNegative | None
    findings: list[_Finding]


class _OneSeed(TypedDict):
    metrics: Annotated[dict[str, float], MinLen(1)]
    main_metric: str
    seed: Whole
    tokens: Whole
    seconds: NonNegative
    learning_rate: float | None
    collapsed: Any


class _OverSeeds(TypedDict):
    mean: float
    median: float
    n: LargeCount
    collapsed: Whole
    deviation: float | None
    learning_rate: NotRequired[float | None]


class _Difference(TypedDict):
    difference: float
    standard_error: float | None
    verdict: str


class _AllSeeds(_OverSeeds):
    task: str
    split: str
    main_metric: str
    chosen_by: str
    num_scored: Whole
    num_train: Whole
    num_parameters: Whole
    seconds: NonNegative
    majority: NotRequired[dict[str, float] | None]
    num_truncated: NotRequired[dict[str, Whole]]
    final: NotRequired[_Final]
    control: NotRequired[_OverSeeds | None]
    baselines: NotRequired[dict[str, _OverSeeds] | None]
    better_baseline: NotRequired[str]
    difference: NotRequired[_Difference | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The facts that every command reports about a run; entries that do not apply are None.

    Attributes:
        task_fingerprint: hash of the scored examples, their gold answers, the labels and the main metric; None if the
            answers are not kept.
        control: statistics of the runs from random initialization; True if this run is one of them.
        seconds: duration of the training or evaluation; the total over several seeds, without their controls.
        more: command-specific entries, stored in the file next to these.
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

    #: The type of ``result.json``, with only the fields that are used and therefore checked.
    schema: ClassVar[type] = _AnyResult

    def __str__(self) -> str:
        """Return the metrics, in one line."""
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
        """Return the entries of ``result.json``."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "more"}
        return {"format": FORMAT} | own | {"tokens_per_second": self.tokens_per_second, **self.more}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build a result from the entries of a file."""
        names = {entry.name for entry in fields(cls)} - {"more"}
        own = {name: value for name, value in values.items() if name in names}
        own |= {"metrics": own.get("metrics") or {}}
        rest = {name: value for name, value in values.items() if name not in names | {"format", "tokens_per_second"}}
        return cls(**({"command": None} | own), more=rest)

    def write(self, path: Path) -> None:
        """Save the result."""
        write_text(path, json.dumps(self.values(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that someone else may have written."""
        return cls.of(read_values(path, cls.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult(RunResult):
    """The result of training one model on a task, or of scoring it.

    Attributes:
        learning_rate: peak learning rate; None if the head was fitted to its optimum instead of trained in steps.
    """

    metrics: dict[str, float]
    main_metric: str
    seed: int | None
    pretraining_seed: int | None = None
    learning_rate: float | None = None
    collapsed: bool
    higher_is_better: bool = True

    #: The fields that the joint result uses.
    schema: ClassVar[type] = _OneSeed

    @property
    def score(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult(RunResult):
    """The summary of all runs of one command on a task.

    Attributes:
        collapsed: number of runs that predict the same answer for every example.
        majority: metrics of always predicting the most common label; None if they do not apply.
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
        """Return the main metric of the run and of its control, and their difference, in one line."""
        spread = "" if self.deviation is None else f" \u00b1 {self.deviation:.2g} over {self.n} seeds"
        text = f"{self._measured}: {self.main_metric} {self.mean:.4g}{spread}"
        if isinstance(self.control, Mapping):
            text += f"; not pretrained: {self.control['mean']:.4g}"
        difference = self.more.get("difference")
        if isinstance(difference, Mapping):
            text += f"; difference: {difference['difference']:+.4g} ({difference['verdict']})"
        return text

    #: The fields that reports show.
    schema: ClassVar[type] = _AllSeeds


def read_values(path: Path, schema: type = _AnyResult) -> dict[str, Any]:
    """Read and check the entries of a ``result.json``; reject the result of another version."""
    values: dict[str, Any] = read_json(path, schema, error=RunDirectoryError)
    number = values.get("format")
    if number != FORMAT:
        which = "no format" if number is None else f"the format {str(number)[:40]}"
        raise RunDirectoryError(
            f"{path} has {which}, but this version of lmtransfer reads format {FORMAT}: repeat the run, or read it "
            "with the version that wrote it"
        )
    return values


def largest_values(results: Sequence[RunResult], *names: str) -> dict[str, Any]:
    """Return the largest value of each entry in ``names`` over the results that have the entry."""
    values_of = {name: [result.more[name] for result in results if name in result.more] for name in names}
    return {name: max(values) for name, values in values_of.items() if values}


def few_steps_warning(result: RunResult) -> str | None:
    """Return a warning if a pretraining run took so few steps that its weights have hardly changed."""
    steps = result.more.get("steps")
    if result.command != "pretrain" or not isinstance(steps, int) or steps >= FEW_STEPS:
        return None
    return (
        f"this run took only {steps} {'step' if steps == 1 else 'steps'}, so its weights have hardly changed: pretrain "
        "with a larger budget (train.steps, train.tokens or train.seconds)"
    )

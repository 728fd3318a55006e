"""The outcome of a run, and ``result.json``, which holds it: the one place that writes and reads that file."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What every command says of a run; None where something does not apply.

    Attributes:
        command: such as "pretrain".
        task: its name.
        split: of the task, or of the corpus, that was measured.
        metrics: name and value, in the metric's own unit.
        main_metric: the one that decides.
        control: statistics of the runs from random initialisation; True where this is one of them.
        seconds: it took, all included.
        tokens: read, without filler.
        num_parameters: of all that was trained or scored.
        more: further entries of a command, beside these in the file.
    """

    command: str | None
    task: str | None = None
    split: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    main_metric: str | None = None
    control: Any = None
    seconds: float | None = None
    tokens: float | None = None
    num_parameters: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    #: What a file of this kind must hold, as far as it is gone by; whichever command wrote it.
    schema: ClassVar[Kind] = Fields(
        optional={
            **dict.fromkeys(("command", "task", "split", "main_metric", "chosen_by", "majority_label"), OrNull(Text())),
            "metrics": OrNull(Entries(OrNull(Real()))),
            **dict.fromkeys(("seconds", "tokens", "tokens_per_second", "num_parameters"), OrNull(Real(least=0))),
            **dict.fromkeys(("mean", "median", "deviation", "standard_error", "learning_rate"), OrNull(Real())),
            **dict.fromkeys(("n", "num_train", "num_scored"), OrNull(Whole())),
            "majority": OrNull(Entries(Real())),
            "num_truncated": OrNull(Entries(Whole())),
            "control": OrNull(Anything()),
            "labels": OrNull(Items(Text())),
        }
    )

    @property
    def tokens_per_second(self) -> float | None:
        """Speed, all included; None where nothing was timed."""
        return self.tokens / self.seconds if self.seconds and self.tokens is not None else None

    def values(self) -> dict[str, Any]:
        """The entries of ``result.json``."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "more"}
        return own | {"tokens_per_second": self.tokens_per_second, **self.more}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The result that has these entries."""
        names = {one.name for one in fields(cls)} - {"more"}
        own = {name: value for name, value in values.items() if name in names}
        own |= {"metrics": own.get("metrics") or {}}
        rest = {name: value for name, value in values.items() if name not in names | {"tokens_per_second"}}
        return cls(**({"command": None} | own), more=rest)

    def write(self, path: Path) -> None:
        """Save it.

        Raises:
            ValueError: a number that is not finite.
        """
        write_text(path, json.dumps(self.values(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that somebody else may have written.

        Raises:
            RunDirectoryError: it is damaged, or holds something else.
        """
        return cls.of(read_json(path, cls.schema, error=RunDirectoryError))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult(RunResult):
    """What one training run on a task came to, or the scoring of one.

    Attributes:
        seed: of the run.
        pretraining_seed: of the encoder that it began from; None from random initialisation.
        learning_rate: peak rate.
        collapsed: whether it answers every example alike.
        higher_is_better: of the main metric.
    """

    metrics: dict[str, float]
    main_metric: str
    seed: int | None
    pretraining_seed: int | None = None
    learning_rate: float | None = None
    collapsed: bool
    higher_is_better: bool = True

    #: As far as it becomes part of the whole.
    schema: ClassVar[Kind] = Fields(
        {
            "metrics": Entries(Real(), least=1),
            "main_metric": Text(),
            **dict.fromkeys(("seed", "tokens"), Whole()),
            "seconds": Real(least=0),
            "learning_rate": Real(),
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
    """What all the runs of a command on a task came to together.

    Attributes:
        seeds: seed, pretraining seed and metrics of each.
        mean: of the main metric, as the next two.
        median: see there.
        deviation: None of a single seed.
        n: number of runs.
        collapsed: how many of them answer every example alike.
        higher_is_better: of the main metric.
        majority: metrics of the answers that need no input; None where there are none.
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

    #: As far as it is shown.
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
            "difference": OrNull(Fields({"difference": Real(), "standard_error": OrNull(Real()), "verdict": Text()})),
        },
    )

"""The state of a run except weights, optimiser state and recurrent state, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lmtransfer.untrusted.schema import Anything, Entries, Fields, Flag, Items, OrNull, Real, Text, Whole

_METRICS = Entries(Real(finite=False))

#: One phase of a run with phases: its name, and the state of the run when the phase began.
PHASE_START = Fields(
    {
        "name": Text(),
        **dict.fromkeys(("step", "updates", "tokens", "stream_step"), Whole()),
        "seconds": Real(least=0),
    }
)

#: The allowed content of ``state.json`` in a checkpoint; a checkpoint that was not saved by training has only the step.
SAVED_STATE = Fields(
    {"step": Whole()},
    optional={
        **dict.fromkeys(("skipped", "tokens", "evaluations_since_best"), Whole()),
        **dict.fromkeys(("seconds", "prepared", "epoch"), Real(least=0)),
        **dict.fromkeys(("metrics", "best_metrics"), _METRICS),
        "best": OrNull(Real()),
        "best_step": OrNull(Whole()),
        "finished": OrNull(Text()),
        "record": Entries(Anything()),
        "evaluation_due": Flag(),
        "shares_used": Items(Real(least=0)),
        "phases": Items(PHASE_START),
        "aliases": Entries(Text()),
        "carry": Entries(Anything()),
        "loss_scale": OrNull(Entries(Real())),
        "watchers": Entries(Entries(Anything())),
        **dict.fromkeys(("world_size", "threads", "averaged"), Whole(least=1)),
        "files": Items(Text()),
    },
)


@dataclass(slots=True)
class TrainState:
    """The state of a run, saved in every checkpoint.

    Attributes:
        step: number of optimiser steps taken from the stream; batch ``step`` is the next one.
        skipped: number of these steps without an update (a loss that was not finite, an fp16 overflow).
        tokens: real tokens of the updates, over all ranks.
        seconds: training time, evaluation and saving included.
        prepared: the part of ``seconds`` before the first step, which was spent on counting.
        epoch: number of epochs seen, with fraction.
        metrics: the latest evaluation.
        best_metrics: the best evaluation.
        best: best value of the main metric, or None before the first evaluation.
        best_step: the step with the best value.
        evaluations_since_best: number of evaluations since the best one, for early stopping.
        finished: why training ended ("budget" or "patience"), or None.
        record: the line of ``metrics.jsonl`` of the latest step, as far as it is known.
        evaluation_due: the evaluation of the latest step was interrupted; a resumed run evaluates first.
        shares_used: shares of a budget in seconds at each step since the latest logged line, to log with the next line.
        phases: the phases that have begun, for a run with phases; see ``PHASE_START``.
    """

    step: int = 0
    skipped: int = 0
    tokens: int = 0
    seconds: float = 0.0
    prepared: float = 0.0
    epoch: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    finished: str | None = None
    record: dict[str, Any] = field(default_factory=dict)
    evaluation_due: bool = False
    shares_used: list[float] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """The number of updates made."""
        return self.step - self.skipped

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> TrainState:
        """The reverse of ``state_dict``; other keys are ignored, and older runs may lack the newer keys."""
        newer = ("phases", "prepared")
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values or f.name not in newer})

    def update(self, other: TrainState) -> None:
        """Copy every value of ``other``."""
        for f in fields(self):
            setattr(self, f.name, getattr(other, f.name))

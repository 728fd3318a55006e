"""The state of a run, except weights, optimizer state and recurrent state, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Required, TypeAlias

from pydantic import AllowInfNan
from typing_extensions import TypedDict

from lmtransfer.config.types import LargeCount, NonNegative, Whole

_Finite: TypeAlias = Annotated[float, AllowInfNan(False)]
_Seconds: TypeAlias = Annotated[NonNegative, AllowInfNan(False)]


class PhaseStart(TypedDict):
    """One phase of a run with phases: its name, and the state of the run when the phase began."""

    name: str
    step: Whole
    tokens: Whole
    stream_step: Whole
    seconds: _Seconds


class SavedState(TypedDict, total=False):
    """The content of ``state.json``; a checkpoint that was not saved by training has only the step."""

    step: Required[Whole]
    skipped: Whole
    tokens: Whole
    evaluations_since_best: Whole
    seconds: _Seconds
    prepared: _Seconds
    epoch: _Seconds
    metrics: dict[str, float]
    best_metrics: dict[str, float]
    best: _Finite | None
    best_step: Whole | None
    finished: str | None
    record: dict[str, Any]
    evaluation_due: bool
    shares_used: list[_Seconds]
    phases: list[PhaseStart]
    aliases: dict[str, str]
    carry: dict[str, Any]
    loss_scale: dict[str, _Finite] | None
    watchers: dict[str, dict[str, Any]]
    world_size: LargeCount
    threads: LargeCount
    averaged: LargeCount
    files: list[str]


@dataclass(slots=True)
class TrainState:
    """The state of a run, saved in every checkpoint.

    Attributes:
        step: number of optimizer steps taken from the stream, which is the index of the next step.
        skipped: number of these steps without an update (a non-finite loss, an fp16 overflow), as far as the host has
            read them.
        tokens: number of real tokens in these steps, over all ranks.
        seconds: training time, including evaluation and saving.
        prepared: the part of ``seconds`` before the first step, for counting token embeddings.
        finished: why training ended ("budget" or "patience"), or None.
        record: the log record (in ``metrics.jsonl``) of the latest step, as far as it is known.
        evaluation_due: whether the evaluation of the latest step was interrupted; a resumed run evaluates first.
        shares_used: for a budget in seconds, the share used before each step since the last log record; the next record
            contains them.
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
    phases: list[PhaseStart] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrainState:
        """Build the state from ``state_dict`` values; other keys are ignored."""
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    def update(self, other: TrainState) -> None:
        """Copy every value of ``other``."""
        for f in fields(self):
            setattr(self, f.name, getattr(other, f.name))

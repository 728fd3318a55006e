"""Phases: what carries over between them, where the learning rate schedule runs, and where a run resumes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.phases import Phase
from lmtransfer.errors import CheckpointError
from lmtransfer.pretraining.phases import Transition, find_phase, schedule_span, transitions_of

MASKED, CAUSAL = [object()], [object()]


def described(*each: tuple[Any, str, float, bool | None]) -> tuple[list[Phase], list[Transition]]:
    """Phases of equal length with these objectives, kinds of optimiser, learning rates and restarts."""
    count = len(each)
    cfg = OmegaConf.create(
        {f"optimizer_{i}": {"_target_": kind, "learning_rate": rate} for i, (_, kind, rate, _) in enumerate(each)}
    )
    phases = [
        Phase(f"p{i}", i / count, (i + 1) / count, optimizer=f"optimizer_{i}", restart=restart)
        for i, (_, _, _, restart) in enumerate(each)
    ]
    parts: list[Any] = [SimpleNamespace(objectives=objectives) for objectives, _, _, _ in each]
    return phases, transitions_of(cfg, phases, parts)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((MASKED, "adam", 0.1, None), Transition(True, True, True, restarts=False)),
        ((MASKED, "adam", 0.2, None), Transition(True, False, True, restarts=False)),
        ((MASKED, "muon", 0.1, None), Transition(True, False, False, restarts=True)),
        ((CAUSAL, "adam", 0.1, None), Transition(False, True, True, restarts=True)),
        ((CAUSAL, "adam", 0.1, False), Transition(False, True, True, restarts=False)),
        ((MASKED, "adam", 0.1, True), Transition(True, True, True, restarts=True)),
    ],
)
def test_two_phases(second: tuple[Any, str, float, bool | None], expected: Transition) -> None:
    _, transitions = described((MASKED, "adam", 0.1, None), second)
    assert transitions[0].restarts
    assert not transitions[0].same_losses
    assert transitions[1] == expected


def test_equal_objectives_that_are_not_shared_are_not_the_same_losses() -> None:
    same = [1.0]
    _, transitions = described((same, "adam", 0.1, None), (list(same), "adam", 0.1, None))
    assert not transitions[1].same_losses


def test_the_schedule_runs_from_restart_to_restart() -> None:
    phases, transitions = described(
        (CAUSAL, "adam", 0.1, False),  # the first phase begins a schedule whatever it says
        (CAUSAL, "adam", 0.1, None),
        (MASKED, "adam", 0.1, None),
        (MASKED, "adam", 0.2, None),
        (MASKED, "adam", 0.2, True),
    )
    spans = [schedule_span(phases, transitions, place) for place in range(5)]
    assert spans == [(0, 0.4), (0, 0.4), (2, 0.8), (2, 0.8), (4, 1.0)]


def test_one_phase_has_the_whole_budget() -> None:
    phases, transitions = described((MASKED, "adam", 0.1, None))
    assert schedule_span(phases, transitions, 0) == (0, 1.0)


def _with_checkpoint(*names: str) -> Any:
    """A run whose newest checkpoint was saved when these phases had begun."""
    checkpoint = SimpleNamespace(folder="last", state={"phases": [{"name": name} for name in names]})
    return SimpleNamespace(checkpoints=SimpleNamespace(recover_newest=lambda: (checkpoint, [])))


PHASES: list[Any] = [SimpleNamespace(name=name) for name in ("words", "masked", "rest")]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_run_resumes_in_the_phase_of_its_newest_checkpoint(place: int) -> None:
    names = [phase.name for phase in PHASES[: place + 1]]
    phase, state = find_phase(PHASES, _with_checkpoint(*names), start=None)
    assert phase is PHASES[place]
    assert [one["name"] for one in state.phases] == names


def test_a_run_begins_in_its_first_phase() -> None:
    empty: Any = SimpleNamespace(checkpoints=SimpleNamespace(recover_newest=lambda: (None, [])))
    counted: Any = SimpleNamespace(seconds=3.0)
    for run in (None, empty):
        phase, state = find_phase(PHASES, run, start=counted)
        assert phase is PHASES[0]
        assert (state.phases, state.seconds, state.prepared) == ([], 3.0, 3.0)


@pytest.mark.parametrize("names", [("masked",), ("words", "rest"), ("words", "masked", "rest", "more")])
def test_a_checkpoint_with_other_phases_is_refused(names: tuple[str, ...]) -> None:
    with refuses(CheckpointError, "last", ", ".join(names), "words, masked, rest"):
        find_phase(PHASES, _with_checkpoint(*names), start=None)

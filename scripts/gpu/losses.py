"""Checks that a GPU learns what the CPU learns: compares the losses of a small BERT with the same seed on both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from ..bench.text import corpus_overrides
from . import command
from .part import Measure, Numbers, Place
from .pretraining import PLAIN, SMALL_VOCABULARY, VALIDATION
from .sizes import TINY

#: Relative tolerances: for the mean loss over the last tenth of the steps, and for that over any hundredth.
_TOLERANCES = {"last_tenth": 0.01, "largest": 0.05}
_WORDS = (*PLAIN, "model=bert_laptop", "objective=mlm", "train.log_every=1")
#: Name of the run on the CPU in float32, and of its measurement.
_REFERENCE = "reference"


def losses(place: Place) -> dict[str, Measure]:
    """Return the measurements: CPU in float32; device in bfloat16, compiled if that is the default, and in float32."""
    comparisons = {precision: partial(_compare_losses, place, precision) for precision in ("bf16", "fp32")}
    return {_REFERENCE: partial(_reference, place), **comparisons}


def deviations(expected: Sequence[float], actual: Sequence[float]) -> dict[str, float]:
    """Compute the relative deviations of losses from the expected losses.

    Args:
        expected: mean loss of each hundredth of the steps.
        actual: mean loss of each hundredth of another run's steps.

    Returns:
        ``last_tenth``: deviation of the mean over the last tenth; ``largest``: the largest absolute deviation of any
        hundredth.

    Raises:
        ValueError: the runs have different numbers of steps.
    """
    tenth = max(1, len(expected) // 10)
    return {
        "last_tenth": statistics.fmean(actual[-tenth:]) / statistics.fmean(expected[-tenth:]) - 1,
        "largest": max(abs(loss / reference - 1) for loss, reference in zip(actual, expected, strict=True)),
    }


def tolerance_problems(actual: dict[str, float]) -> str:
    """State the deviations beyond their tolerances; empty if there are none."""
    beyond = {name: most for name, most in _TOLERANCES.items() if not abs(actual[name]) <= most}  # also NaN
    return "; ".join(f"{name}: {100 * actual[name]:.2f} %, allowed {100 * most:g} %" for name, most in beyond.items())


def _reference(place: Place, seconds: float) -> Numbers:
    return _pretrain(place, _REFERENCE, "fp32", seconds, device="cpu")


def _compare_losses(place: Place, precision: str, seconds: float) -> Numbers:
    if not command.is_finished(place, "pretrain", _run_name(_REFERENCE)):
        _reference(place, seconds)
    numbers = _pretrain(place, precision, precision, seconds, device=place.device)
    numbers["deviations"] = deviations(_hundredths(place, _REFERENCE), numbers["losses"])
    if problems := tolerance_problems(numbers["deviations"]):
        numbers["error"] = f"the losses differ from those of the CPU: {problems}"
    return numbers


def _pretrain(place: Place, name: str, precision: str, seconds: float, *, device: str) -> Numbers:
    tiny = [*TINY.words, SMALL_VOCABULARY, "train.steps=20", "train.batch_tokens=512"]
    sizes = tiny if place.tiny else ["train.steps=300", "train.batch_tokens=4096"]
    hardware = [f"hardware.precision={precision}", f"hardware.compile={'false' if precision == 'fp32' else 'auto'}"]
    words = [*_WORDS, *sizes, *corpus_overrides(), *VALIDATION, *hardware]
    numbers = command.run(place, "pretrain", _run_name(name), words, seconds=seconds, device=device)
    numbers["losses"] = _hundredths(place, name)
    if precision == "fp32":
        numbers.pop("flops_per_token", None)  # the peak and the ceiling are those of 16 bits
    return numbers


def _run_name(name: str) -> str:
    return f"losses-{name}"


def _hundredths(place: Place, name: str) -> list[float]:
    """Return the mean loss of each hundredth of the steps, or of each step if there are fewer than 200."""
    losses = [record["loss"] for record in command.records_of(place, "pretrain", _run_name(name))]
    size = max(1, len(losses) // 100)
    return [statistics.fmean(losses[start : start + size]) for start in range(0, len(losses), size)]

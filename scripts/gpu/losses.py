"""Whether a GPU learns what the CPU learns: a small BERT from the same seed on both, and the losses of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from ..bench.text import corpus_overrides
from . import command
from .part import Measure, Numbers, Place
from .pretraining import PLAIN, SMALL_VOCABULARY, VALIDATION
from .sizes import TINY

#: Shares by which losses may differ: their mean over the last tenth of the steps, and that over any hundredth.
_TOLERANCES = {"last_tenth": 0.01, "largest": 0.05}
_WORDS = (*PLAIN, "model=bert_laptop", "objective=mlm", "train.log_every=1")
#: The run on the CPU in float32, by the name of its measurement, too.
_REFERENCE = "reference"


def losses(place: Place) -> dict[str, Measure]:
    """The CPU in float32; the device in bfloat16, compiled if that is the default; the device in float32, eager."""
    compared = {precision: partial(_compared, place, precision) for precision in ("bf16", "fp32")}
    return {_REFERENCE: partial(_reference, place), **compared}


def deviations(expected: Sequence[float], found: Sequence[float]) -> dict[str, float]:
    """By which share losses differ from the expected ones.

    Args:
        expected: mean loss of each hundredth of the steps.
        found: the same of another run.

    Returns:
        ``last_tenth``: of the mean over the last tenth; ``largest``: the largest of all hundredths, without sign.

    Raises:
        ValueError: one has more steps than the other.
    """
    tenth = max(1, len(expected) // 10)
    return {
        "last_tenth": statistics.fmean(found[-tenth:]) / statistics.fmean(expected[-tenth:]) - 1,
        "largest": max(abs(one / other - 1) for one, other in zip(found, expected, strict=True)),
    }


def too_large(found: dict[str, float]) -> str:
    """The deviations beyond their tolerances, in words; empty: none."""
    beyond = {name: most for name, most in _TOLERANCES.items() if not abs(found[name]) <= most}  # NaN is beyond, too
    return "; ".join(f"{name}: {100 * found[name]:.2f} %, allowed {100 * most:g} %" for name, most in beyond.items())


def _reference(place: Place, seconds: float) -> Numbers:
    return _pretrain(place, _REFERENCE, "fp32", seconds, device="cpu")


def _compared(place: Place, precision: str, seconds: float) -> Numbers:
    if not command.is_finished(place, "pretrain", _run_name(_REFERENCE)):
        _reference(place, seconds)
    numbers = _pretrain(place, precision, precision, seconds, device=place.device)
    numbers["deviations"] = deviations(_hundredths(place, _REFERENCE), numbers["losses"])
    if said := too_large(numbers["deviations"]):
        numbers["error"] = f"the losses differ from those of the CPU: {said}"
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
    """The mean loss of each hundredth of the steps; of each step if they are few."""
    each = [record["loss"] for record in command.records_of(place, "pretrain", _run_name(name))]
    size = max(1, len(each) // 100)
    return [statistics.fmean(each[start : start + size]) for start in range(0, len(each), size)]

"""What there is to say of one side against another, and what every comparison looks at: seeds and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtransfer.reporting.comparison.flipped import Flipped
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs.settings import differing
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.holm import corrected


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """The comparison on some of the examples, or by one of several metrics.

    Attributes:
        name: which: a class, a range of lengths, or a metric.
        num: how many examples, or words; None where that is not known.
        metric: what is compared on them.
        one: mean of the first side.
        other: of the second.
        difference: between them, judged together with the other groups; None where it is not defined.
    """

    name: str
    num: int | None
    metric: str
    one: float
    other: float
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in which the sides differ."""

    key: str
    one: object
    other: object


@dataclass(frozen=True, slots=True)
class Comparison:
    """What there is to say of two sides.

    Attributes:
        sides: the two, as they were scored.
        values: the score of each training run of a side, on the examples that are compared.
        settings: in which the sides differ.
        missing: what was not compared and why, a line each.
        difference: of the first to the second; None where there is none to speak of.
        num_examples: how many examples both were compared on; None where that is not known.
        classes: by class.
        lengths: by length of the input.
        losses: of pretraining, by each loss and accuracy.
        flips: the examples that one side answers and the other does not; None where they were not kept.
    """

    sides: tuple[Side, Side]
    values: tuple[tuple[float, ...], tuple[float, ...]]
    settings: tuple[Setting, ...]
    missing: tuple[str, ...]
    difference: Difference | None = None
    num_examples: int | None = None
    classes: tuple[GroupDifference, ...] = ()
    lengths: tuple[GroupDifference, ...] = ()
    losses: tuple[GroupDifference, ...] = ()
    flips: Flipped | None = None


def judged_together(rows: Sequence[GroupDifference]) -> tuple[GroupDifference, ...]:
    """The rows of one table, with verdicts that hold for all of it."""
    together = iter(corrected([row.difference for row in rows if row.difference is not None]))
    return tuple(row if row.difference is None else replace(row, difference=next(together)) for row in rows)


def uneven_seeds(one: Side, other: Side) -> list[str]:
    """What there is to say of seeds that do not match."""
    counts = [len(side.members) for side in (one, other)]
    if min(counts) == 1:
        single = " and ".join(side.name for side, n in zip((one, other), counts, strict=True) if n == 1)
        return [
            f"no verdict: {single} {'have' if max(counts) == 1 else 'has'} one seed, whose luck is not known; "
            "seeds=5 can tell"
        ]
    seeds = [sorted(str(member.seed) for member in side.members) for side in (one, other)]
    if counts[0] != counts[1]:
        return [f"the sides have {counts[0]} and {counts[1]} scored seeds"]
    return ["the sides have different seeds"] if set(seeds[0]).isdisjoint(seeds[1]) else []


def setting_differences(one: Side, other: Side) -> tuple[Setting, ...]:
    """The weights first, then the settings of the task, then those of pretraining where both sides had one."""
    weights = [", ".join(dict.fromkeys(member.pretraining or "random" for member in s.members)) for s in (one, other)]
    apart = weights[0] != weights[1] and not one.first.is_pretraining  # there the weights are what is compared
    found = [Setting("weights", *weights)] if apart else []
    settings = [("", one.first.settings, other.first.settings)]
    before = one.pretraining_settings(), other.pretraining_settings()
    settings += [("pretraining: ", _folded(*before), _folded(*reversed(before)))] if all(before) else []
    for prefix, first, second in settings:
        found += [Setting(f"{prefix}{key}", first.get(key), second.get(key)) for key in differing(first, second)]
    return tuple(found)


def _folded(settings: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which a group that the other side has nothing of, such as ``phases``, is named by what it holds."""
    others = {key.partition(".")[0] for key in other}
    folded: dict[str, Any] = {}
    for key, value in settings.items():
        group, _, inner = key.partition(".")
        if not inner or group in others:
            folded[key] = value
        else:
            held = inner.partition(".")[0]
            folded[group] = list(dict.fromkeys([*folded.get(group, []), held]))
    return folded

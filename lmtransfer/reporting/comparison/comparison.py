"""The result of a comparison, and the checks that all comparisons share: seeds and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtransfer.reporting.comparison.flips import Flips
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs.sweeps import differing_keys
from lmtransfer.system.printable import in_unit
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.holm import correct_column


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """The comparison on one group of examples, or by one of several metrics.

    Attributes:
        name: a class, a range of lengths, or a metric.
        num: number of examples or words; None if unknown.
        metric: name of the compared metric.
        one: mean of the first side.
        other: mean of the second side.
        difference: the difference between the means, judged together with the other groups; None if undefined.
    """

    name: str
    num: int | None
    metric: str
    one: float
    other: float
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs between the sides."""

    key: str
    one: object
    other: object


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        sides: the two sides.
        values: the score of each training run of a side, on the compared examples.
        settings: the settings that differ between the sides.
        missing: notes on missing comparisons and their reasons, one line each.
        difference: the first side minus the second; None if there is no valid difference.
        num_examples: number of compared examples; None if unknown.
        classes: the comparison by class.
        lengths: the comparison by input length.
        losses: the comparison by each loss and accuracy of pretraining.
        flips: the examples that only one side answers correctly; None if answers were not kept.
    """

    sides: tuple[Side, Side]
    values: tuple[tuple[float, ...], tuple[float, ...]]
    settings: tuple[SettingDifference, ...]
    missing: tuple[str, ...]
    difference: Difference | None = None
    num_examples: int | None = None
    classes: tuple[GroupDifference, ...] = ()
    lengths: tuple[GroupDifference, ...] = ()
    losses: tuple[GroupDifference, ...] = ()
    flips: Flips | None = None


def correct_rows(rows: Sequence[GroupDifference], *, margin: float | None = None) -> tuple[GroupDifference, ...]:
    """Correct the verdicts in a table for the number of its comparisons."""
    pairs = [(row.difference, in_unit(margin, row.metric)) for row in rows if row.difference is not None]
    corrected = iter(correct_column([difference for difference, _ in pairs], margins=[limit for _, limit in pairs]))
    return tuple(row if row.difference is None else replace(row, difference=next(corrected)) for row in rows)


def add_margin(comparison: Comparison, margin: float | None) -> Comparison:
    """Add verdicts on equivalence to a comparison.

    Args:
        margin: the size below which a difference does not matter, as displayed (points of accuracy); None if not set.
    """
    if margin is None or comparison.difference is None:
        return comparison
    (difference,) = correct_column([comparison.difference], margins=[in_unit(margin, comparison.sides[0].metric)])
    return replace(
        comparison,
        difference=difference,
        classes=correct_rows(comparison.classes, margin=margin),
        lengths=correct_rows(comparison.lengths, margin=margin),
        losses=correct_rows(comparison.losses, margin=margin),
    )


def seed_notes(one: Side, other: Side) -> list[str]:
    """Return notes about seeds that do not match."""
    counts = [len(side.members) for side in (one, other)]
    if min(counts) == 1:
        single = " and ".join(side.name for side, n in zip((one, other), counts, strict=True) if n == 1)
        return [
            f"no verdict: {single} {'have' if max(counts) == 1 else 'has'} only one seed, so the variance between "
            "seeds is not known; set seeds=5"
        ]
    seeds = [sorted(str(member.seed) for member in side.members) for side in (one, other)]
    if counts[0] != counts[1]:
        return [f"the sides have {counts[0]} and {counts[1]} scored seeds"]
    return ["the sides have different seeds"] if set(seeds[0]).isdisjoint(seeds[1]) else []


def setting_differences(one: Side, other: Side) -> tuple[SettingDifference, ...]:
    """List differing weights first, then task settings, then pretraining settings if both sides were pretrained."""
    weights = [", ".join(dict.fromkeys(member.pretraining or "random" for member in s.members)) for s in (one, other)]
    # A comparison of pretraining runs is about their weights, which are therefore not listed.
    are_listed = weights[0] != weights[1] and not one.first.is_pretraining
    differences = [SettingDifference("weights", *weights)] if are_listed else []
    settings = [("", one.first.settings, other.first.settings)]
    before = one.pretraining_settings(), other.pretraining_settings()
    settings += [("pretraining: ", _fold_groups(*before), _fold_groups(*reversed(before)))] if all(before) else []
    for prefix, first, second in settings:
        differences += [
            SettingDifference(f"{prefix}{key}", first.get(key), second.get(key))
            for key in differing_keys(first, second)
        ]
    return tuple(differences)


def _fold_groups(settings: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a group that the other side lacks, such as ``phases``, with the list of its parts."""
    others = {key.partition(".")[0] for key in other}
    folded: dict[str, Any] = {}
    for key, value in settings.items():
        group, _, inner = key.partition(".")
        if not inner or group in others:
            folded[key] = value
        else:
            part = inner.partition(".")[0]
            folded[group] = list(dict.fromkeys([*folded.get(group, []), part]))
    return folded

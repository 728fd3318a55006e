"""The result of a comparison, the flipped examples, and the notes on seeds and settings that all comparisons share.

Shape legend: N examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs.lineage import differing_keys
from lmtransfer.reporting.runs.scores import mean_scores
from lmtransfer.system.printable import in_unit
from lmtransfer.tasks.metrics.scored_examples import Predictions, ScoredExamples
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.verdict import judge_column

#: A side gets an example right if the mean score of its runs is above this, and wrong if it is below.
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Flip:
    """An example that only one side gets right.

    Attributes:
        one: the most frequent prediction of the runs on the first side.
        other: the most frequent prediction of the runs on the second side.
        scores: the mean score of each side, from 0 to 1; for regression, the mean squared error.
    """

    id: str
    gold: str
    one: str
    other: str
    scores: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Flips:
    """All flipped examples of a comparison.

    Attributes:
        score: the score of an example: accuracy, f1 or squared_error.
        counts: the number of examples that both sides, only the first, only the second, and neither get right; None
            for regression.
        to_one: the examples on which the first side is better, largest difference first.
        to_other: the examples on which the second side is better, largest difference first.
    """

    score: str
    counts: tuple[int, int, int, int] | None
    to_one: tuple[Flip, ...]
    to_other: tuple[Flip, ...]


def find_flips(one: Sequence[Predictions], other: Sequence[Predictions]) -> Flips | None:
    """Find the flipped examples, given the predictions of two sides for the same examples in the same order."""
    examples = one[0].examples
    ratios = examples.ratios
    candidates = [name for name in (one[0].main_metric, "accuracy", "f1", "squared_error") if name in ratios]
    if not candidates or not all(candidates[0] in predictions.examples.ratios for predictions in (*one, *other)):
        return None
    score = candidates[0]
    first, second = (mean_scores(side, score) for side in (one, other))
    gain = second - first if score == "squared_error" else first - second
    is_finite = np.isfinite(gain)
    counts = None
    better, worse = is_finite & (gain > 0), is_finite & (gain < 0)
    if score != "squared_error":
        first_right, second_right = first > _HALF, second > _HALF
        first_wrong, second_wrong = first < _HALF, second < _HALF
        better, worse = first_right & second_wrong, first_wrong & second_right
        counts = (
            int((first_right & second_right).sum()),
            int(better.sum()),
            int(worse.sum()),
            int((first_wrong & second_wrong).sum()),
        )

    def flips(mask: np.ndarray) -> tuple[Flip, ...]:
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(-np.abs(gain[rows]), kind="stable")]
        return tuple(
            Flip(
                examples.ids[row], _gold(examples, row), _majority_answer(one, row), _majority_answer(other, row),
                (float(first[row]), float(second[row])),
            )
            for row in rows.tolist()
        )  # fmt: skip

    return Flips(score, counts, flips(better), flips(worse))


def _gold(examples: ScoredExamples, row: int) -> str:
    if examples.kind == "regression":
        return f"{examples.gold[row]:g}"
    labels = _labels(examples, examples.gold, row)
    return (examples.gold_answers[row] if examples.gold_answers else "") if labels is None else labels


def _majority_answer(side: Sequence[Predictions], row: int) -> str:
    """Return the most frequent prediction of the runs, with its count unless all runs agree."""
    if side[0].examples.kind == "regression":
        return f"{np.mean([predictions.examples.predicted[row] for predictions in side]):.3f}"
    answers = Counter(_answer(predictions.examples, row) for predictions in side)
    answer, times = answers.most_common(1)[0]
    return answer if times == len(side) else f"{answer} ({times} of {len(side)})"


def _answer(examples: ScoredExamples, row: int) -> str:
    if examples.kind == "pairs":
        return "right" if examples.ratios["accuracy"].parts[row] > 0 else "wrong"
    labels = _labels(examples, examples.predicted, row)
    return (examples.answers[row] or "(no answer)") if labels is None else labels


def _labels(examples: ScoredExamples, values: np.ndarray, row: int) -> str | None:
    if examples.kind == "classification":
        return examples.labels[values[row]]
    if examples.kind == "multi_label":
        return examples.label_set(values, row)
    if examples.kind == "tagging":
        return " ".join(examples.labels[tag] for tag in values[examples.offsets[row] : examples.offsets[row + 1]])
    return None


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """The comparison on one group of examples, or by one of several metrics.

    Attributes:
        name: a class, a range of lengths, or a metric.
        num: the number of examples or words; None if unknown.
        difference: the first side minus the second, corrected for the number of groups; None if undefined.
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
        values: for each side, the score of each training run on the compared examples.
        missing: notes on comparisons that are missing or limited.
        difference: the first side minus the second; None if there is no valid difference.
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
    """Correct the verdicts in a table for the number of comparisons."""
    pairs = [(row.difference, in_unit(margin, row.metric)) for row in rows if row.difference is not None]
    corrected = iter(judge_column([difference for difference, _ in pairs], margins=[limit for _, limit in pairs]))
    return tuple(row if row.difference is None else replace(row, difference=next(corrected)) for row in rows)


def add_margin(comparison: Comparison, margin: float | None) -> Comparison:
    """Add verdicts on equivalence to a comparison.

    Args:
        margin: the size below which a difference does not matter, as displayed (points of accuracy); None if unset.
    """
    if margin is None or comparison.difference is None:
        return comparison
    (difference,) = judge_column([comparison.difference], margins=[in_unit(margin, comparison.sides[0].metric)])
    return replace(
        comparison,
        difference=difference,
        classes=correct_rows(comparison.classes, margin=margin),
        lengths=correct_rows(comparison.lengths, margin=margin),
        losses=correct_rows(comparison.losses, margin=margin),
    )


def seed_notes(one: Side, other: Side) -> list[str]:
    """Return notes on missing or different seeds."""
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
    """List the differences: weights, then task settings, then pretraining settings if both sides were pretrained."""
    weights = [", ".join(dict.fromkeys(member.pretraining or "random" for member in s.members)) for s in (one, other)]
    # Pretraining runs always have different weights.
    are_listed = weights[0] != weights[1] and not one.first.is_pretraining
    differences = [SettingDifference("weights", *weights)] if are_listed else []
    settings = [("", one.first.settings, other.first.settings)]
    before = [side.pretraining_settings(side.first) for side in (one, other)]
    settings += [("pretraining: ", _fold_groups(*before), _fold_groups(*reversed(before)))] if all(before) else []
    for prefix, first, second in settings:
        differences += [
            SettingDifference(f"{prefix}{key}", first.get(key), second.get(key))
            for key in differing_keys(first, second)
        ]
    return tuple(differences)


def _fold_groups(settings: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a group that the other side does not have, such as ``phases``, with a list of the names in the group."""
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

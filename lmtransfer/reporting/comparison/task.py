"""Compares two runs on a task, or groups of runs, by their scores and their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmtransfer.reporting.comparison.comparison import (
    Comparison,
    GroupDifference,
    correct_rows,
    find_flips,
    seed_notes,
    setting_differences,
)
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs.lineage import TOKENIZER, differing_keys
from lmtransfer.reporting.runs.scores import examples_of
from lmtransfer.tasks.metrics.scored_examples import Predictions, Ratio, ScoredExamples, metric_value
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.verdict import compare_conditions

#: The number of length groups, which have about the same size.
_LENGTHS = 4
#: The maximum number of classes to show, the most frequent ones.
_MAX_CLASSES = 20


def common_answers(
    one: Side, other: Side
) -> tuple[tuple[list[Predictions], list[Predictions]] | None, int | None, list[str]]:
    """Return the predictions of both sides for the examples that all training runs of both sides were scored on.

    Returns:
        The predictions in the order of the members, or None if some were not kept; the number of compared examples, or
        None if it is unknown; and notes.
    """
    without_answers = [side.name for side in (one, other) if any(member.predictions is None for member in side.members)]
    if without_answers:
        note = [
            f"{' and '.join(without_answers)} kept no predictions, or not for every seed: there is no comparison by "
            "class, by length or by example, and the interval ignores the variance between examples; run "
            "lmtransfer evaluate, which keeps predictions"
        ]
        numbers = [side.num_scored for side in (one, other)]
        if None not in numbers and numbers[0] != numbers[1]:
            return None, 0, [*note, f"no difference: {numbers[0]:,.0f} and {numbers[1]:,.0f} examples were scored"]
        fingerprints = [side.first.task_fingerprint for side in (one, other)]
        if None not in fingerprints and fingerprints[0] != fingerprints[1]:
            return None, 0, [*note, "no difference: the scored examples, their gold answers or their labels differ"]
        return None, None if numbers[0] is None else int(numbers[0]), note
    answers = [[m.predictions for m in side.members if m.predictions is not None] for side in (one, other)]
    all_keys = [predictions.examples.keys for side in answers for predictions in side]
    common = all_keys[0]
    for keys in all_keys[1:]:
        common = np.intersect1d(common, keys)
    most = max(len(keys) for keys in all_keys)
    if len(common) == 0:
        return None, 0, ["no difference: the sides have no scored example in common"]
    note = []
    if len(common) < most:
        note = [f"the sides are compared on the {len(common):,} examples that both were scored on, out of {most:,}"]
    selection = [[select_examples(predictions, common) for predictions in side] for side in answers]
    num_different = _count_different_gold(selection[0][0].examples, selection[1][0].examples)
    note += [f"the gold answers of {num_different:,} examples differ between the sides"] if num_different else []
    return (selection[0], selection[1]), len(common), note


def select_examples(predictions: Predictions, keys: np.ndarray) -> Predictions:
    """Return the predictions for the examples with these keys, in the order of the keys."""
    order = np.argsort(predictions.examples.keys)
    rows = order[np.searchsorted(predictions.examples.keys[order], keys)]
    return replace(predictions, examples=predictions.examples.select(rows))


def _count_different_gold(one: ScoredExamples, other: ScoredExamples) -> int:
    if one.kind != other.kind or len(one.gold) != len(other.gold):
        return len(one)
    if one.kind == "regression" or (one.kind == "multi_label" and one.labels == other.labels):
        wrong = one.gold != other.gold
    elif one.kind in ("classification", "tagging"):
        wrong = np.array(one.labels)[one.gold] != np.array(other.labels)[other.gold]
    else:
        return sum(a != b for a, b in zip(one.gold_answers, other.gold_answers, strict=True))
    owners = np.repeat(np.arange(len(one)), np.diff(one.offsets))
    return len(np.unique(owners[wrong]))


@dataclass(frozen=True, slots=True, eq=False)
class ExampleGroup:
    """A group of examples, or of words in examples.

    Attributes:
        rows: the indices of the examples.
        num: the number of examples or words.
        tag: the gold tag of the words; None for a group of examples.
    """

    name: str
    rows: np.ndarray
    num: int
    tag: str | None = None


def class_groups(examples: ScoredExamples) -> list[ExampleGroup]:
    """Group examples by gold label, question type or phenomenon; for tagging, group words by gold tag.

    The largest group comes first.
    """
    if examples.kind == "tagging":
        owners = np.repeat(np.arange(len(examples)), np.diff(examples.offsets))
        words = [(name, np.flatnonzero(examples.gold == tag)) for tag, name in enumerate(examples.labels)]
        groups = [ExampleGroup(name, np.unique(owners[places]), len(places), name) for name, places in words]
    else:
        rows = [(name, np.flatnonzero(examples.classes == place)) for place, name in enumerate(examples.class_names)]
        groups = [ExampleGroup(name, of_class, len(of_class)) for name, of_class in rows]
    return sorted((group for group in groups if group.num), key=lambda group: -group.num)[:_MAX_CLASSES]


def _restrict_to_tag(predictions: Predictions, tag: str) -> Predictions:
    examples = predictions.examples
    has_tag = np.array([label == tag for label in examples.labels])[examples.gold]
    is_right = has_tag & (examples.predicted == examples.gold)
    starts = examples.offsets[:-1]  # every selected sentence has words
    parts, counts = (np.add.reduceat(values, starts).astype(np.float64) for values in (is_right, has_tag))
    return replace(predictions, examples=replace(examples, ratios={"accuracy": Ratio(parts, counts)}))


def length_groups(lengths: np.ndarray) -> list[ExampleGroup]:
    """Divide the examples into quarters by length in characters."""
    edges = np.unique(np.quantile(lengths, np.arange(1, _LENGTHS) / _LENGTHS, method="lower"))
    place = np.searchsorted(edges, lengths, side="left")
    groups = []
    for number in range(len(edges) + 1):
        rows = np.flatnonzero(place == number)
        if len(rows):
            low, high = int(lengths[rows].min()), int(lengths[rows].max())
            name = f"{low:,} to {high:,} characters" if low < high else f"{low:,} characters"
            groups.append(ExampleGroup(name, rows, len(rows)))
    return groups


def compare_groups(
    groups: Sequence[ExampleGroup],
    predictions: tuple[list[Predictions], list[Predictions]],
    sides: tuple[Side, Side],
    metric: str,
    settings_differ: bool,
) -> tuple[GroupDifference, ...]:
    """Compare two sides on each group of examples; the verdicts are corrected together."""
    differences: list[GroupDifference] = []
    for group in groups:
        keys = predictions[0][0].examples.keys[group.rows]
        parts = [[select_examples(one, keys) for one in side] for side in predictions]
        if group.tag is not None:
            parts = [[_restrict_to_tag(one, group.tag) for one in side] for side in parts]
        values = [[metric_value(one.examples, metric) for one in side] for side in parts]
        if any(value is None for side in values for value in side):
            continue
        one, other = (
            side.condition([value for value in of_side if value is not None], examples_of(part, metric))
            for side, part, of_side in zip(sides, parts, values, strict=True)
        )
        difference = compare_conditions(one, other, settings_differ=settings_differ)
        differences.append(
            GroupDifference(group.name, group.num, metric, one.spread.mean, other.spread.mean, difference)
        )
    return correct_rows(differences)


def compare_sides(one: Side, other: Side) -> Comparison:
    """Compare two sides on a task, as far as this is valid."""
    settings, missing = setting_differences(one, other), [*one.problems, *other.problems]
    values = tuple(m.value for m in one.members), tuple(m.value for m in other.members)
    reason = _incomparable_note(one, other)
    if reason:
        return Comparison((one, other), values, settings, (*missing, reason))
    missing += seed_notes(one, other)
    setting_note, can_be_judged = _setting_note(one, other)
    missing += [setting_note] if setting_note else []
    predictions, num, note = common_answers(one, other)
    missing += note
    if num == 0:
        return Comparison((one, other), values, settings, tuple(missing), num_examples=0)
    metric = one.metric
    conditions = [
        _condition(side, None if predictions is None else predictions[place], metric)
        for place, side in enumerate((one, other))
    ]
    difference = compare_conditions(
        *conditions,
        higher_is_better=one.first.higher_is_better,
        majority=one.first.majority,
        baseline=None if one.first.baseline is None else one.first.baseline.mean,
        settings_differ=not can_be_judged,
    )
    missing += difference.notes
    values = tuple(s.value for s in conditions[0].scores), tuple(s.value for s in conditions[1].scores)
    comparison = Comparison((one, other), values, settings, tuple(dict.fromkeys(missing)), difference, num)
    return (
        comparison
        if predictions is None
        else _add_example_groups(comparison, predictions, settings_differ=not can_be_judged)
    )


def _incomparable_note(one: Side, other: Side) -> str:
    fingerprints = {one.first.task_fingerprint, other.first.task_fingerprint}
    is_one_task = len(fingerprints) == 1 and None not in fingerprints
    for what, first, second in (
        ("task", *(("", "") if is_one_task else (one.first.task, other.first.task))),
        ("split", one.first.split, other.first.split),
        ("metric", one.metric, other.metric),
    ):
        if first != second:
            return f"no difference: each side has a different {what} ({first or 'none'}, {second or 'none'})"
    return ""


def _setting_note(one: Side, other: Side) -> tuple[str, bool]:
    """Note which settings besides the weights differ, and decide whether a verdict is possible.

    A control may differ from the other side only in its weights. Two pretrained sides are two recipes: the model and
    the tokenizer belong to the weights, and the verdict concerns all other differences together.

    Returns:
        The note, which is empty if only the weights differ, and whether a verdict is possible.
    """
    mixed = [
        side.name for side in (one, other) if any(differing_keys(side.first.settings, e.settings) for e in side.entries)
    ]
    if mixed:
        return f"no verdict: the runs of {' and of '.join(mixed)} were trained with different settings", False
    with_control = one.first.is_control != other.first.is_control
    first, second = one.first.settings, other.first.settings
    free = [key for key in {*first, *second} if key == TOKENIZER or key.split(".")[0] == "model"]
    keys = differing_keys(first, second, but=[] if with_control else free)
    if not keys:
        return "", True
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    differ = f"the sides differ in more than the weights ({', '.join(keys[:3])}{more})"
    if with_control:
        return f"no verdict: {differ}, and one side is a control", False
    return f"{differ}: the difference comes from all these settings together", True


def _condition(side: Side, predictions: Sequence[Predictions] | None, metric: str) -> Condition:
    values = [member.value for member in side.members]
    if predictions is not None:
        recomputed = [metric_value(of_seed.examples, metric) for of_seed in predictions]
        values = [value if new is None else new for value, new in zip(values, recomputed, strict=True)]
    return side.condition(
        values, None if predictions is None else examples_of(predictions, metric), collapsed=side.num_collapsed
    )


def _add_example_groups(
    comparison: Comparison, predictions: tuple[list[Predictions], list[Predictions]], *, settings_differ: bool
) -> Comparison:
    examples, metric = predictions[0][0].examples, comparison.sides[0].metric
    class_metric = "accuracy" if examples.kind in ("classification", "tagging") else metric
    by_class, by_length = class_groups(examples), length_groups(examples.lengths)

    def compare(groups: Sequence[ExampleGroup], by: str) -> tuple[GroupDifference, ...]:
        return compare_groups(groups, predictions, comparison.sides, by, settings_differ) if len(groups) > 1 else ()

    return replace(
        comparison,
        classes=compare(by_class, class_metric),
        lengths=compare(by_length, metric),
        flips=find_flips(predictions[0], predictions[1]),
    )

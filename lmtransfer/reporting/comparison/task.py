"""Comparing two runs of a task, or groups of them, by their scores and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.reporting.comparison.common_answers import common_answers
from lmtransfer.reporting.comparison.comparison import Comparison, GroupDifference, setting_differences, uneven_seeds
from lmtransfer.reporting.comparison.flipped import flipped
from lmtransfer.reporting.comparison.groups import Group, class_groups, compare_groups, length_groups
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.kept_answers import examples_of
from lmtransfer.reporting.runs.settings import TOKENIZER, differing
from lmtransfer.tasks.metrics.scored_examples import Kept, metric_value
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import Condition


def compare_sides(one: Side, other: Side) -> Comparison:
    """Compare two sides of a task, as far as the comparison is valid."""
    settings, missing = setting_differences(one, other), [*one.problems, *other.problems]
    values = tuple(m.value for m in one.members), tuple(m.value for m in other.members)
    differences = _differences(one, other)
    if differences:
        return Comparison((one, other), values, settings, (*missing, differences))
    missing += uneven_seeds(one, other)
    setting_note, comparable = _setting_note(one, other)
    missing += [setting_note] if setting_note else []
    kept, num, note = common_answers(one, other)
    missing += note
    if num == 0:
        return Comparison((one, other), values, settings, tuple(missing), num_examples=0)
    metric = one.metric
    conditions = [
        _condition(side, None if kept is None else kept[place], metric) for place, side in enumerate((one, other))
    ]
    difference = compare_conditions(
        *conditions,
        higher_is_better=scores.higher_is_better(metric, one.first.run.result),
        majority=one.first.majority,
        baseline=one.first.baseline_mean,
        settings_differ=not comparable,
    )
    missing += difference.notes
    values = tuple(s.value for s in conditions[0].scores), tuple(s.value for s in conditions[1].scores)
    found = Comparison((one, other), values, settings, tuple(dict.fromkeys(missing)), difference, num)
    return found if kept is None else _by_example(found, kept, settings_differ=not comparable)


def _differences(one: Side, other: Side) -> str:
    """Why two sides cannot have a difference; empty if they can."""
    fingerprints = {one.first.task_fingerprint, other.first.task_fingerprint}
    is_one_task = len(fingerprints) == 1 and None not in fingerprints
    for what, first, second in (
        ("task", *(("", "") if is_one_task else (one.first.task, other.first.task))),
        ("split", one.first.split, other.first.split),
        ("metric", one.metric, other.metric),
    ):
        if first != second:
            return f"no difference: the sides do not have the same {what} ({first or 'none'}, {second or 'none'})"
    return ""


def _setting_note(one: Side, other: Side) -> tuple[str, bool]:
    """What a verdict is about if the sides differ in more than the weights, and whether there can be one.

    A control may differ in nothing but the weights from the side that is compared with it. Two pretrained sides are two
    recipes: the model and the tokenizer belong to their weights, and the verdict is about all other settings together.

    Returns:
        The note, empty if only the weights differ; and whether there can be a verdict.
    """
    mixed = [
        side.name for side in (one, other) if any(differing(side.first.settings, e.settings) for e in side.entries)
    ]
    if mixed:
        return f"no verdict: the runs of {' and of '.join(mixed)} were trained with different settings", False
    with_control = one.first.is_control != other.first.is_control
    first, second = one.first.settings, other.first.settings
    free = [key for key in {*first, *second} if key == TOKENIZER or key.split(".")[0] == "model"]
    keys = differing(first, second, but=[] if with_control else free)
    if not keys:
        return "", True
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    differ = f"the sides differ in more than the weights ({', '.join(keys[:3])}{more})"
    if with_control:
        return f"no verdict: {differ}, and one of them is a control", False
    return f"{differ}: the difference is that of all these settings together", True


def _condition(side: Side, kept: Sequence[Kept] | None, metric: str) -> Condition:
    """A side as a condition; with the contributions of the examples if ``kept`` is given."""
    values = [member.value for member in side.members]
    if kept is not None:
        restarts = [metric_value(one.examples, metric) for one in kept]
        values = [value if found is None else found for value, found in zip(values, restarts, strict=True)]
    return side.condition(values, None if kept is None else examples_of(kept, metric), collapsed=side.num_collapsed)


def _by_example(found: Comparison, kept: tuple[list[Kept], list[Kept]], *, settings_differ: bool) -> Comparison:
    """Add the comparison by class and by length and the flipped examples."""
    examples, metric = kept[0][0].examples, found.sides[0].metric
    of_class = "accuracy" if examples.kind in ("classification", "tagging") else metric
    by_class, by_length = class_groups(examples), length_groups(examples.lengths)

    def compared(groups: Sequence[Group], by: str) -> tuple[GroupDifference, ...]:
        return compare_groups(groups, kept, found.sides, by, settings_differ) if len(groups) > 1 else ()

    return replace(
        found,
        classes=compared(by_class, of_class),
        lengths=compared(by_length, metric),
        flips=flipped(kept[0], kept[1]),
    )

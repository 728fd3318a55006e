"""The answers of both sides to the same examples, if the runs kept their predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.tasks.metrics.scored_examples import Predictions, ScoredExamples


def common_answers(
    one: Side, other: Side
) -> tuple[tuple[list[Predictions], list[Predictions]] | None, int | None, list[str]]:
    """Return the answers of both sides to the examples that all their training runs answered.

    Returns:
        The answers in the order of the members, or None if some were not kept; the number of compared examples, or
        None if it is unknown; and notes.
    """
    without_answers = [side.name for side in (one, other) if any(member.kept is None for member in side.members)]
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
    answers = [[member.kept for member in side.members if member.kept is not None] for side in (one, other)]
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
    """Return the answers to the examples with these keys, in the order of the keys."""
    order = np.argsort(predictions.examples.keys)
    rows = order[np.searchsorted(predictions.examples.keys[order], keys)]
    return replace(predictions, examples=predictions.examples.select(rows))


def _count_different_gold(one: ScoredExamples, other: ScoredExamples) -> int:
    """Count the examples with equal content but different gold answers."""
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

"""Compares two pretraining runs, or groups of runs, by their losses on the same held-out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.reporting.comparison.comparison import (
    Comparison,
    GroupDifference,
    correct_rows,
    seed_notes,
    setting_differences,
)
from lmtransfer.reporting.comparison.sides import Member, Side, pretrained_values
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.lineage import TOKENIZER, differences_text, differing_keys
from lmtransfer.runs.labels import flatten
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.pairing_and_variance import NO_PREDICTIONS
from lmtransfer.verdicts.verdict import compare_conditions

_TEXT, _LOSSES = "corpus", "losses"
#: The settings of an evaluation that affect the loss; the last four concern memory.
_EVALUATION_KEYS = ("eval_tokens", "memory_lengths", "segment_length", "clamp_length", "same_length")
#: Objectives in which the run's own generator corrupts the text, so that every run has a different task.
_OWN_NOISE = ("ReplacedTokenDetection", "AllTokensMaskedLanguageModel")

_WHY = {
    _TEXT: (
        "no difference: the sides were measured on different held-out text (other files, or another split); measure "
        "both on the same text with lmtransfer evaluate run=... corpus=..."
    ),
    TOKENIZER: (
        "no difference: the sides have different tokenizers, so their losses are means over different tokens; bits per "
        "character would be comparable, but are not measured"
    ),
}


def compare_pretrainings(one: Side, other: Side) -> Comparison:
    """Compare two sides by their losses, if both were measured on the same tokens.

    Each side is a recipe. Settings may differ between the sides, which the result lists, but not within a side. Each
    pretraining seed is an independent sample.
    """
    settings, missing = setting_differences(one, other), [*one.problems, *other.problems]
    values = tuple(m.value for m in one.members), tuple(m.value for m in other.members)
    reason = _incomparable_note(one, other)
    if reason:
        return Comparison((one, other), values, settings, (*missing, reason))
    missing += seed_notes(one, other)
    mixed = [side.name for side in (one, other) if not _has_equal_settings(side)]
    if mixed:
        missing.append(f"no verdict: the runs of {' and of '.join(mixed)} were trained with different settings")
    incomparable = _incomparable_metrics(one, other)
    difference = None
    if one.metric in incomparable:
        missing.append(f"no difference in {one.metric}: {incomparable[one.metric]}")
    else:
        conditions = [_condition(side) for side in (one, other)]
        difference = compare_conditions(*conditions, higher_is_better=False, settings_differ=bool(mixed))
        missing += [note for note in difference.notes if note != NO_PREDICTIONS]
        missing.append(
            "the interval ignores the variance of the held-out text, since the losses of documents are not kept"
        )
    losses = _losses(one, other, incomparable, settings_differ=bool(mixed))
    return Comparison((one, other), values, settings, tuple(dict.fromkeys(missing)), difference, losses=losses)


def _incomparable_note(one: Side, other: Side) -> str:
    if one.metric != other.metric:
        return f"no difference: the sides were scored by different metrics ({one.metric}, {other.metric})"
    measured = _measurement_settings(one.first), _measurement_settings(other.first)
    for key, what in ((_TEXT, "held-out text"), (TOKENIZER, "tokenizer")):
        unknown = [
            side.name for side, settings in zip((one, other), measured, strict=True) if settings.get(key) is None
        ]
        if unknown:
            return (
                f"no difference: the {what} used to measure {' and '.join(unknown)} is not known; measure again "
                "with lmtransfer evaluate run=..."
            )
    for side, settings in zip((one, other), measured, strict=True):
        for entry in side.entries[1:]:
            keys = differing_keys(settings, _measurement_settings(entry))
            if keys:
                text = differences_text(settings, _measurement_settings(entry), keys)
                return f"no difference: the runs of {side.name} were measured with different settings: {text}"
    keys = differing_keys(*measured, but=[_LOSSES])
    reason = next((_WHY[key] for key in (_TEXT, TOKENIZER) if key in keys), "")
    if reason or not keys:
        return reason
    return f"no difference: the sides were measured with different settings: {differences_text(*measured, keys=keys)}"


def _measurement_settings(entry: Entry) -> dict[str, Any]:
    """Return the settings that a measured loss depends on, by dotted key: text, tokenizer, rows, corruption, losses."""
    run, source = entry.run, _source(entry)
    settings: dict[str, Any] = {key: run.versions.get("data", {}).get(key) for key in (_TEXT, TOKENIZER)}
    train = run.config.get("train") or {}
    evaluated_with = run.config if run.command == "evaluate" else {"eval_tokens": train.get("eval_tokens")}
    settings |= {key: evaluated_with.get(key) for key in _EVALUATION_KEYS if evaluated_with.get(key)}
    objective = source.config.get("objective") or {}
    settings |= flatten({f"objective.{part}": objective.get(part) or {} for part in ("rows", "corruption")})
    settings[_LOSSES] = _objectives(entry)
    return settings


def _incomparable_metrics(one: Side, other: Side) -> dict[str, str]:
    """Return the metrics that mean something different on each side, with the reasons."""
    first, second = (_objectives(side.first) for side in (one, other))
    reasons: dict[str, str] = {}
    for metric in _metrics(one.first) | _metrics(other.first):
        name = metric.partition("/")[0].removesuffix("_accuracy")
        for part in {*first, *second} if name == "loss" else {name}:
            targets = {_target(node, part) for node in (first, second)}
            if any(target.endswith(_OWN_NOISE) for target in targets):
                reasons[metric] = "each run's own generator decides which tokens are replaced"
            elif len(targets) > 1:
                reasons[metric] = f"the sides have different parts ({' + '.join(first)}, {' + '.join(second)})"
        if name == "loss" and metric not in reasons and first != second:
            reasons[metric] = "the parts have different weights on each side"
    return reasons


def _losses(
    one: Side, other: Side, incomparable: Mapping[str, str], *, settings_differ: bool
) -> tuple[GroupDifference, ...]:
    """Compare each loss and accuracy of both sides, also by part of a mixture; the verdicts are corrected together."""
    losses: list[GroupDifference] = []
    other_metrics = _metrics(other.first)
    left_out = {*incomparable, *(["loss"] if _is_one_part(one) and _is_one_part(other) else [])}
    for metric in (name for name in _metrics(one.first) if name in other_metrics and name not in left_out):
        sides = [_with_metric(side, metric) for side in (one, other)]
        if any(len(by.members) < len(side.members) for by, side in zip(sides, (one, other), strict=True)):
            continue
        conditions = [_condition(side) for side in sides]
        higher = metric.partition("/")[0].endswith("_accuracy")
        difference = compare_conditions(*conditions, higher_is_better=higher, settings_differ=settings_differ)
        losses.append(
            GroupDifference(metric, None, metric, conditions[0].spread.mean, conditions[1].spread.mean, difference)
        )
    return correct_rows(losses)


def _condition(side: Side) -> Condition:
    return side.condition([member.value for member in side.members], collapsed=side.num_collapsed)


def _with_metric(side: Side, metric: str) -> Side:
    members: Sequence[Member] = [m for entry in side.entries for m in pretrained_values(entry, metric)]
    return Side(side.name, side.entries, tuple(members), side.problems)


def _metrics(entry: Entry) -> dict[str, None]:
    metrics: Mapping[str, float | None] = entry.run.result.get("metrics") or {}
    return {name: None for name, value in metrics.items() if value is not None}


def _objectives(entry: Entry) -> dict[str, tuple[str, float]]:
    losses = (_source(entry).config.get("objective") or {}).get("losses") or {}
    return {name: (str(node.get("_target_")), float(node.get("weight", 1.0))) for name, node in losses.items()}


def _target(losses: Mapping[str, tuple[str, float]], part: str) -> str:
    """Return the class that computes the metric ``part``: the loss of this name, or one with several metrics."""
    if part in losses:
        return losses[part][0]
    return next((target for target, _ in losses.values() if target.endswith(_OWN_NOISE)), "")


def _is_one_part(side: Side) -> bool:
    """Whether there is only one loss, with weight 1, which is then also reported under its own name."""
    return [weight for _, weight in _objectives(side.first).values()] == [1.0]


def _has_equal_settings(side: Side) -> bool:
    first, *others = (side.pretraining_settings(entry) for entry in side.entries)
    return not any(differing_keys(first, settings, but=["seed"]) for settings in others)


def _source(entry: Entry) -> Run:
    return entry.run if entry.source is None else entry.source

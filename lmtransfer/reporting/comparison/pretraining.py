"""The comparison of two pretraining runs, or groups of them, by their losses on the same held-out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.reporting.comparison.comparison import (
    Comparison,
    GroupDifference,
    corrected_together,
    setting_differences,
    uneven_seeds,
)
from lmtransfer.reporting.comparison.reading import pretrained_values
from lmtransfer.reporting.comparison.sides import Member, Side
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.settings import TOKENIZER, differences_text, differing
from lmtransfer.runs.labels import flatten
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.variance import NO_PREDICTIONS

_TEXT, _LOSSES = "corpus", "losses"
#: Settings of an evaluation that affect the measurement; the last four concern a memory.
_ASKED = ("eval_tokens", "memory_lengths", "segment_length", "clamp_length", "same_length")
#: Objectives whose noise comes from the run's own generator, so that every run has a different task.
_OWN_NOISE = ("ReplacedTokenDetection", "AllTokensMaskedLanguageModel")

_WHY = {
    _TEXT: (
        "no difference: the sides were measured on different held-out texts (other files, or another split of them); "
        "lmtransfer evaluate run=... corpus=... measures both on the same text"
    ),
    TOKENIZER: (
        "no difference: the sides have different tokenizers, so their losses are means over different tokens; bits per "
        "character could be compared, but are not measured"
    ),
}


def compare_pretrainings(one: Side, other: Side) -> Comparison:
    """Compare two sides by their losses, if both were measured on the same tokens.

    Settings may differ between the sides, which are two recipes; the differences are listed. Within a side the settings
    must be equal. Each pretraining seed is one independent sample.
    """
    settings, missing = setting_differences(one, other), [*one.problems, *other.problems]
    values = tuple(m.value for m in one.members), tuple(m.value for m in other.members)
    differences = _differences(one, other)
    if differences:
        return Comparison((one, other), values, settings, (*missing, differences))
    missing += uneven_seeds(one, other)
    mixed = [side.name for side in (one, other) if not _equally_trained(side)]
    if mixed:
        missing.append(f"no verdict: the runs of {' and of '.join(mixed)} were trained with different settings")
    not_shared = _not_shared(one, other)
    difference = None
    if one.metric in not_shared:
        missing.append(f"no difference of the {one.metric}: {not_shared[one.metric]}")
    else:
        conditions = [_condition(side) for side in (one, other)]
        difference = compare_conditions(*conditions, higher_is_better=False, settings_differ=bool(mixed))
        missing += [note for note in difference.notes if note != NO_PREDICTIONS]
        missing.append("the interval ignores the variance of the held-out text: losses of its documents are not kept")
    losses = _losses(one, other, not_shared, settings_differ=bool(mixed))
    return Comparison((one, other), values, settings, tuple(dict.fromkeys(missing)), difference, losses=losses)


def _differences(one: Side, other: Side) -> str:
    """Say why the losses of two sides are not comparable; empty if they are."""
    if one.metric != other.metric:
        return f"no difference: the sides were scored by different metrics ({one.metric}, {other.metric})"
    measured = _measured(one.first), _measured(other.first)
    for key, what in ((_TEXT, "held-out text"), (TOKENIZER, "tokenizer")):
        unknown = [
            side.name for side, settings in zip((one, other), measured, strict=True) if settings.get(key) is None
        ]
        if unknown:
            return (
                f"no difference: the {what} that {' and '.join(unknown)} was measured with is not known: measure again "
                "with lmtransfer evaluate run=..."
            )
    for side, settings in zip((one, other), measured, strict=True):
        for entry in side.entries[1:]:
            inside = differing(settings, _measured(entry))
            if inside:
                named = differences_text(settings, _measured(entry), inside)
                return f"no difference: the runs of {side.name} were measured with different settings: {named}"
    keys = differing(*measured, but=[_LOSSES])
    known = next((_WHY[key] for key in (_TEXT, TOKENIZER) if key in keys), "")
    if known or not keys:
        return known
    return f"no difference: the sides were measured with different settings: {differences_text(*measured, keys=keys)}"


def _measured(entry: Entry) -> dict[str, Any]:
    """What determines a measured loss, by dotted key: text, tokenizer, rows, corruption and losses."""
    run, source = entry.run, _source(entry)
    data = run.versions.get("data")
    settings: dict[str, Any] = {key: data.get(key) for key in (_TEXT, TOKENIZER)} if isinstance(data, Mapping) else {}
    train = run.config.get("train")
    evaluated_with = run.config if run.command == "evaluate" else {"eval_tokens": _of(train).get("eval_tokens")}
    settings |= {key: evaluated_with.get(key) for key in _ASKED if evaluated_with.get(key)}
    objective = _of(source.config.get("objective"))
    settings |= flatten({f"objective.{part}": _of(objective.get(part)) for part in ("rows", "corruption")})
    settings[_LOSSES] = _objectives(entry)
    return settings


def _not_shared(one: Side, other: Side) -> dict[str, str]:
    """The metrics with different meanings on the two sides, with the reasons."""
    first, second = (_objectives(side.first) for side in (one, other))
    reasons: dict[str, str] = {}
    for metric in _metrics(one.first) | _metrics(other.first):
        name = metric.partition("/")[0].removesuffix("_accuracy")
        for part in {*first, *second} if name == "loss" else {name}:
            targets = {_target(node, part) for node in (first, second)}
            if any(target.endswith(_OWN_NOISE) for target in targets):
                reasons[metric] = "each run's own generator decides which tokens are replaced"
            elif len(targets) > 1:
                reasons[metric] = f"it has different parts on each side ({' + '.join(first)}, {' + '.join(second)})"
        if name == "loss" and metric not in reasons and first != second:
            reasons[metric] = "its parts have different weights on each side"
    return reasons


def _losses(
    one: Side, other: Side, not_shared: Mapping[str, str], *, settings_differ: bool
) -> tuple[GroupDifference, ...]:
    """Compare each shared loss and accuracy, including each part of a mixture; judge them together."""
    losses: list[GroupDifference] = []
    other_metrics = _metrics(other.first)
    left_out = {*not_shared, *(["loss"] if _is_one_part(one) and _is_one_part(other) else [])}
    for metric in (name for name in _metrics(one.first) if name in other_metrics and name not in left_out):
        sides = [_by(side, metric) for side in (one, other)]
        if any(len(by.members) < len(side.members) for by, side in zip(sides, (one, other), strict=True)):
            continue
        conditions = [_condition(side) for side in sides]
        higher = metric.partition("/")[0].endswith("_accuracy")
        difference = compare_conditions(*conditions, higher_is_better=higher, settings_differ=settings_differ)
        losses.append(
            GroupDifference(metric, None, metric, conditions[0].spread.mean, conditions[1].spread.mean, difference)
        )
    return corrected_together(losses)


def _condition(side: Side) -> Condition:
    return side.condition([member.value for member in side.members], collapsed=side.num_collapsed)


def _by(side: Side, metric: str) -> Side:
    """Return the side with another metric."""
    members: Sequence[Member] = [m for entry in side.entries for m in pretrained_values(entry, metric)]
    return Side(side.name, side.entries, tuple(members), side.problems)


def _metrics(entry: Entry) -> dict[str, None]:
    """The names of the measured metrics, in order."""
    metrics = entry.run.result.get("metrics")
    return {str(name): None for name, value in _of(metrics).items() if scores.number(value) is not None}


def _objectives(entry: Entry) -> dict[str, tuple[str, float]]:
    """The class and weight of each loss."""
    losses = _of(_of(_source(entry).config.get("objective")).get("losses"))
    weights = {name: scores.number(_of(node).get("weight")) for name, node in losses.items()}
    return {
        str(name): (str(_of(node).get("_target_")), 1.0 if weights[name] is None else float(weights[name] or 0.0))
        for name, node in losses.items()
    }


def _target(losses: Mapping[str, tuple[str, float]], part: str) -> str:
    """The class that computes a metric: the loss of that name, else a class that reports several metrics."""
    if part in losses:
        return losses[part][0]
    return next((target for target, _ in losses.values() if target.endswith(_OWN_NOISE)), "")


def _is_one_part(side: Side) -> bool:
    """Whether the loss is a single part with weight 1, which is reported under its own name."""
    return [weight for _, weight in _objectives(side.first).values()] == [1.0]


def _equally_trained(side: Side) -> bool:
    """Whether the runs of a side differ only in the seed."""
    first, *others = (side.settings_of(entry) for entry in side.entries)
    return not any(differing(first, settings, but=["seed"]) for settings in others)


def _source(entry: Entry) -> Run:
    return entry.run if entry.source is None else entry.source


def _of(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}

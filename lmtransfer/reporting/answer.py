"""States in sentences whether pretraining helped, by how much, and how certain this is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.lineage import PRETRAINED, TOKENIZER, differing_keys, is_chosen_on_scored_split, lineage
from lmtransfer.reporting.verdict_text import WHY_NO_VERDICT, difference_with_unit, grounds, power_text, with_unit
from lmtransfer.runs.labels import node_label
from lmtransfer.verdicts.difference import BETTER, NO_VERDICT, Difference, Verdict
from lmtransfer.verdicts.verdict import judge_column

_OUTCOMES: dict[Verdict, str] = {
    "better": "helped",
    "better but below a baseline": "helped, but scored below a word-count baseline or the majority label",
    "worse": "hurt",
    "equivalent": "made no difference beyond the margin",
    "no difference shown": "showed no difference",
    **{verdict: f"cannot be judged ({reason})" for verdict, reason in WHY_NO_VERDICT.items()},
}

#: The order in which verdicts against counting words are listed, and in which an example is chosen.
_VERDICT_ORDER: tuple[Verdict, ...] = ("worse", "no difference shown", "equivalent", *BETTER, *WHY_NO_VERDICT)


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two runs that transfer to the same task in the same way, from before and after continued pretraining.

    Attributes:
        difference: ``after`` minus ``before``; the verdict is corrected for the number of such pairs.
    """

    before: Entry
    after: Entry
    difference: Difference


def before_and_after(entries: Sequence[Entry]) -> list[BeforeAfter]:
    """Pair each transfer from a continued pretraining run with the transfer from the earlier run, if it is unique."""
    pairs = []
    runs = [entry.run for entry in entries]
    for after in entries:
        if not _is_scored(after) or after.source is None or not after.has_verdicts:
            continue
        for earlier in (run for run in lineage(after.source, runs)[1:] if run.command in PRETRAINED):
            candidates = [
                entry
                for entry in entries
                if entry.source is not None
                and entry.source.weights == earlier.weights
                and _has_same_settings(entry, after)
            ]
            if len(candidates) == 1 and (difference := after.compare(candidates[0].condition)) is not None:
                pairs.append(BeforeAfter(candidates[0], after, difference))
            if candidates:
                break  # use only the nearest earlier run with a transfer, and none if it has several
    corrected = judge_column([pair.difference for pair in pairs], margins=[pair.after.margin for pair in pairs])
    return [replace(pair, difference=difference) for pair, difference in zip(pairs, corrected, strict=True)]


def _is_scored(entry: Entry) -> bool:
    return entry.score is not None and not entry.is_pretraining and not entry.is_control


def _has_same_settings(entry: Entry, other: Entry) -> bool:
    """Whether two transfers have the same known settings except for their starting point."""

    def scored_as(transfer: Entry) -> tuple[object, ...]:
        return (transfer.run.command, transfer.task, transfer.split, transfer.metric, transfer.transfer)

    # Continued pretraining may add words to a tokenizer.
    return (
        _is_scored(entry)
        and scored_as(entry) == scored_as(other)
        and not differing_keys(entry.settings, other.settings, but=[TOKENIZER])
    )


def answer(entries: Sequence[Entry]) -> str:
    """State whether pretraining helped compared with the controls, and whether continued pretraining helped."""
    return " ".join(
        [
            _pretraining_sentence(entries),
            *_word_count_sentences(entries),
            *_missing_control_sentences(entries),
            *map(_continuation_sentence, before_and_after(entries)),
        ]
    )


def _word_count_sentences(entries: Sequence[Entry]) -> list[str]:
    """State how the runs compare with counting words; empty if no run has such a baseline."""
    compared = [(entry, entry.baseline_difference) for entry in entries if entry.baseline_difference is not None]
    if not compared:
        return []
    first, difference = min(compared, key=lambda pair: (pair[0].is_control, _VERDICT_ORDER.index(pair[1].verdict)))
    assert first.baseline is not None
    assert first.score is not None
    metric = first.metric or ""
    text = (
        f"on {first.group}, {first.name} ({first.transfer}) reaches {with_unit(first.score.mean, metric)} {metric} "
        f"against {with_unit(first.baseline.mean, metric)} for {first.better_baseline}, a difference of "
        f"{difference_with_unit(difference.delta, metric)}"
    )
    if difference.interval is not None:
        text += f" ({grounds(difference, metric)}; for {difference.scope})"
    if len(compared) == 1:
        return [f"Against counting words: {_short_verdict(difference.verdict)}; {text}."]
    verdicts = [difference.verdict for _, difference in compared]
    counts = [
        f"{_short_verdict(verdict)} in {verdicts.count(verdict)}" for verdict in _VERDICT_ORDER if verdict in verdicts
    ]
    return [f"Against counting words, of {len(compared)} runs: {', '.join(counts)}. For example, {text}."]


def _short_verdict(verdict: Verdict) -> str:
    return f"no verdict ({WHY_NO_VERDICT[verdict]})" if verdict in WHY_NO_VERDICT else verdict


def _missing_control_sentences(entries: Sequence[Entry]) -> list[str]:
    """Explain for runs without a control why a similar run is not the control."""
    without_verdict = [entry for entry in entries if entry.without_control]
    sentences = [f"No verdict on {entry.name}: {entry.without_control}." for entry in without_verdict[:3]]
    num_more = len(without_verdict) - 3
    return sentences + ([f"The same holds for {num_more} more runs."] if num_more > 0 else [])


def _pretraining_sentence(entries: Sequence[Entry]) -> str:
    compared = [entry for entry in entries if entry.difference is not None]
    if not compared:
        if any(entry.control is not None for entry in entries):
            return "A demonstration: these runs are too short for a verdict on pretraining."
        if any(entry.without_control for entry in entries):
            return "It is not known whether pretraining helped: no control differs from its run only in the weights."
        if any(entry.score is not None and not entry.is_pretraining for entry in entries):
            return (
                "It is not known whether pretraining helped: no run has a control. Set control=true to train the same "
                "model also without pretraining."
            )
        return "It is not known yet whether pretraining helped: these runs contain no finished probe or finetuning."
    if len(compared) == 1:
        return comparison(compared[0])
    verdicts = [entry.difference.verdict for entry in compared if entry.difference is not None]
    parts = [f"Pretraining helped in {sum(verdict in BETTER for verdict in verdicts)} of {len(verdicts)} comparisons"]
    parts += [
        f"{text} in {verdicts.count(verdict)}"
        for verdict, text in _OUTCOMES.items()
        if verdict in verdicts and verdict not in BETTER
    ]
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    clearest = clearest_comparison(entries)
    assert clearest is not None
    return f"{text}. The clearest comparison: {_scores_clause(clearest)}"


def clearest_comparison(entries: Sequence[Entry]) -> Entry | None:
    """Return the run with the clearest difference from its control; None if no run has a control."""
    return max((entry for entry in entries if entry.difference is not None), key=_certainty, default=None)


def comparison(entry: Entry) -> str:
    """State in a sentence how a run compares with its control."""
    assert entry.difference is not None
    return f"Pretraining {_OUTCOMES[entry.difference.verdict]}: {_scores_clause(entry)}"


def _continuation_sentence(pair: BeforeAfter) -> str:
    before, after, difference = pair.before, pair.after, pair.difference
    outcome = _OUTCOMES[difference.verdict].replace("the control", "the earlier run")
    source, metric = after.source, after.metric or ""
    assert source is not None
    assert before.score is not None
    assert after.score is not None
    text = node_label(source.config.get("corpus"))
    sentence = (
        f"Continued pretraining{f' on {text}' if text else ''} {outcome}: on {after.group}, "
        f"{after.name} ({after.transfer}) reaches {with_unit(after.score.mean, metric)} {metric} against "
        f"{with_unit(before.score.mean, metric)} for {before.name}, which started from the earlier run, a "
        f"difference of {difference_with_unit(difference.delta, metric)}"
    )
    if difference.standard_error is None:
        return f"{sentence}. Train several seeds with seeds=5."
    return f"{sentence} ({grounds(difference, metric)}; for {difference.scope})."


def _scores_clause(entry: Entry) -> str:
    difference, score, control, metric = entry.difference, entry.score, entry.control, entry.metric
    assert difference is not None
    assert score is not None
    assert control is not None
    assert metric is not None
    sentence = (
        f"on {entry.group}, {entry.name} ({entry.transfer}) reaches {with_unit(score.mean, metric)} "
        f"{metric} against {with_unit(control.mean, metric)} without pretraining, a difference of "
        f"{difference_with_unit(difference.delta, metric)}"
    )
    if is_chosen_on_scored_split(entry.run.config):
        sentence += f"; both were chosen on the split that also scores them ({entry.split})"
    if entry.transfer == "zero-shot":
        return f"{sentence}. A zero-shot score has no seeds."
    if difference.standard_error is None:
        return f"{sentence}. Train several seeds with seeds=5."
    if difference.verdict in NO_VERDICT:
        return f"{sentence}. Train longer, or with another learning rate."
    precision = power_text(difference, metric)
    text = f"{sentence} ({grounds(difference, metric)}; for {difference.scope})."
    return f"{text} {precision[0].upper()}{precision[1:]}." if precision else text


def _certainty(entry: Entry) -> tuple[bool, float]:
    """Return a sort key whose maximum is the clearest comparison: a finetuned run with the smallest p value."""
    difference = entry.difference
    if difference is None or difference.p_value is None:
        return (False, -1.0)
    return (entry.transfer == "finetuned", -difference.p_value)

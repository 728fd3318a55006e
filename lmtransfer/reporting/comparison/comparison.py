"""One side against another: the difference and its verdict, by class and by length, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmtransfer.kept_predictions.scored import Kept, Ratio, ScoredExamples
from lmtransfer.kept_predictions.values import metric_value
from lmtransfer.reporting.comparison.flipped import Flipped, flipped
from lmtransfer.reporting.comparison.sides import Member, Side
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.kept import examples_of
from lmtransfer.reporting.runs.settings import TOKENIZER, differing
from lmtransfer.verdicts.arms import Arm, Score
from lmtransfer.verdicts.difference import Difference, compare_arms
from lmtransfer.verdicts.holm import corrected

#: Groups of lengths, of about as many examples each.
_LENGTHS = 4
#: More classes than this are too many to be told of one by one; the most frequent ones are.
_MOST_CLASSES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Some of the examples, or of their words.

    Attributes:
        name: what it is called.
        rows: which examples.
        num: how many examples, or words.
        tag: the gold tag whose words are meant; None: whole examples.
    """

    name: str
    rows: np.ndarray
    num: int
    tag: str | None = None


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
        difference: of the first to the second; None where there is none to speak of.
        num_examples: how many examples both were compared on; None where that is not known.
        classes: by class.
        lengths: by length of the input.
        flips: the examples that one side answers and the other does not; None where they were not kept.
        settings: in which the sides differ.
        missing: what was not compared and why, a line each.
        losses: of pretraining, by each loss and accuracy.
    """

    sides: tuple[Side, Side]
    values: tuple[tuple[float, ...], tuple[float, ...]]
    difference: Difference | None
    num_examples: int | None
    classes: tuple[GroupDifference, ...]
    lengths: tuple[GroupDifference, ...]
    flips: Flipped | None
    settings: tuple[Setting, ...]
    missing: tuple[str, ...]
    losses: tuple[GroupDifference, ...] = ()


def compare_sides(one: Side, other: Side) -> Comparison:
    """Compare two sides of a task, as far as it is sound."""
    settings, missing = setting_differences(one, other), [*one.problems, *other.problems]
    values = tuple(m.value for m in one.members), tuple(m.value for m in other.members)
    unlike = _unlike(one, other)
    if unlike:
        return Comparison((one, other), values, None, None, (), (), None, settings, (*missing, unlike))
    missing += uneven_seeds(one, other)
    judged_apart = _judged_apart(one, other)
    missing += [judged_apart] if judged_apart else []
    kept, num, told = _common(one, other)
    missing += told
    if num == 0:
        return Comparison((one, other), values, None, 0, (), (), None, settings, tuple(missing))
    metric = one.metric
    arms = [arm_of(side, None if kept is None else kept[place], metric) for place, side in enumerate((one, other))]
    difference = compare_arms(
        *arms,
        higher_is_better=scores.higher_is_better(metric, one.first.run.result),
        majority=one.first.majority,
        settings_differ=bool(judged_apart),
    )
    missing += difference.notes
    values = tuple(s.value for s in arms[0].scores), tuple(s.value for s in arms[1].scores)
    classes, lengths, flips = _by_example(kept, (one, other), metric, settings_differ=bool(judged_apart))
    return Comparison(
        (one, other), values, difference, num, classes, lengths, flips, settings, tuple(dict.fromkeys(missing))
    )


def _unlike(one: Side, other: Side) -> str:
    """Why two sides have no difference at all; empty where they may have one."""
    for what, first, second in (
        ("task", one.first.task, other.first.task),
        ("split", one.first.split, other.first.split),
        ("metric", one.metric, other.metric),
    ):
        if first != second:
            return (
                f"no difference: the sides were scored on another {what} each ({first or 'none'}, {second or 'none'})"
            )
    return ""


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


def _judged_apart(one: Side, other: Side) -> str:
    """Why more than the weights is different; empty where it is not.

    The architecture and the tokenizer are those of the pretrained run, and go with its weights; a control has neither.
    """
    pretrained = not (one.first.is_control or other.first.is_control)
    first, second = one.first.settings, other.first.settings
    free = [key for key in {*first, *second} if key == TOKENIZER or key.split(".")[0] == "model"] if pretrained else []
    keys = differing(first, second, but=free)
    unlike = [
        side.name for side in (one, other) if any(differing(side.first.settings, e.settings) for e in side.entries)
    ]
    if unlike:
        return f"no verdict: the runs of {' and of '.join(unlike)} were not trained alike"
    if not keys:
        return ""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"no verdict: more than the weights is different ({', '.join(keys[:3])}{more})"


def setting_differences(one: Side, other: Side) -> tuple[Setting, ...]:
    """The weights first, then the settings of the task, then those of pretraining where both sides had one."""
    weights = [", ".join(dict.fromkeys(member.pretraining or "random" for member in s.members)) for s in (one, other)]
    apart = weights[0] != weights[1] and not one.first.is_pretraining  # there the weights are what is compared
    found = [Setting("weights", *weights)] if apart else []
    settings = [("", one.first.settings, other.first.settings)]
    before = one.pretraining_settings(), other.pretraining_settings()
    settings += [("pretraining: ", *before)] if all(before) else []
    for prefix, first, second in settings:
        found += [Setting(f"{prefix}{key}", first.get(key), second.get(key)) for key in differing(first, second)]
    return tuple(found)


def _common(one: Side, other: Side) -> tuple[tuple[list[Kept], list[Kept]] | None, int | None, list[str]]:
    """The answers of both sides to the examples that all of their training runs answered.

    Returns:
        The answers, in the order of the members, or None where some were not kept; how many examples both are compared
        on, None where that is not known; and what there is to say.
    """
    lacking = [side.name for side in (one, other) if any(member.kept is None for member in side.members)]
    if lacking:
        told = [
            f"{' and '.join(lacking)} kept no predictions, or not of every seed: no classes, lengths and flipped "
            "examples, and the luck of the examples is not counted; lmtransfer evaluate keeps them"
        ]
        numbers = [side.num_scored for side in (one, other)]
        if None not in numbers and numbers[0] != numbers[1]:
            return None, 0, [*told, f"no difference: {numbers[0]:,.0f} and {numbers[1]:,.0f} examples were scored"]
        return None, None if numbers[0] is None else int(numbers[0]), told
    answers = [[member.kept for member in side.members if member.kept is not None] for side in (one, other)]
    everyone = [kept.examples.keys for side in answers for kept in side]
    common = everyone[0]
    for keys in everyone[1:]:
        common = np.intersect1d(common, keys)
    most = max(len(keys) for keys in everyone)
    if len(common) == 0:
        return None, 0, ["no difference: no example was scored on both sides"]
    told = []
    if len(common) < most:
        told = [f"compared on the {len(common):,} examples that both were scored on, of {most:,}"]
    chosen = [[_only(kept, common) for kept in side] for side in answers]
    changed = _gold_differs(chosen[0][0].examples, chosen[1][0].examples)
    told += [f"the gold answers of {changed:,} examples differ between the sides"] if changed else []
    return (chosen[0], chosen[1]), len(common), told


def _only(kept: Kept, keys: np.ndarray) -> Kept:
    """Answers to the examples of these keys, in their order."""
    order = np.argsort(kept.examples.keys)
    rows = order[np.searchsorted(kept.examples.keys[order], keys)]
    return replace(kept, examples=kept.examples.select(rows))


def _gold_differs(one: ScoredExamples, other: ScoredExamples) -> int:
    """In how many examples of the same content the gold answers are different ones."""
    if one.kind != other.kind or len(one.gold) != len(other.gold):
        return len(one)
    if one.kind == "regression":
        wrong = one.gold != other.gold
    elif one.kind in ("classification", "tagging"):
        wrong = np.array(one.labels)[one.gold] != np.array(other.labels)[other.gold]
    else:
        return sum(a != b for a, b in zip(one.gold_answers, other.gold_answers, strict=True))
    owners = np.repeat(np.arange(len(one)), np.diff(one.offsets))
    return len(np.unique(owners[wrong]))


def arm_of(side: Side, kept: Sequence[Kept] | None, metric: str) -> Arm:
    """A side as an arm of the rule of verdicts; on the examples of ``kept`` where they are known."""
    values = [member.value for member in side.members]
    if kept is not None:
        anew = [metric_value(one.examples, metric) for one in kept]
        values = [value if found is None else found for value, found in zip(values, anew, strict=True)]
    return Arm(
        _scores(side.members, values),
        None if kept is None else examples_of(kept, metric),
        side.num_collapsed,
        design="" if _are_told_apart(side.members) else None,
    )


def _scores(members: Sequence[Member], values: Sequence[float]) -> tuple[Score, ...]:
    """The scores, whose seeds pair them where all are known and different."""
    apart = _are_told_apart(members)
    return tuple(
        Score(value, member.seed if apart and member.seed is not None else f"{place}", member.pretraining)
        for place, (member, value) in enumerate(zip(members, values, strict=True))
    )


def _are_told_apart(members: Sequence[Member]) -> bool:
    names = {(member.pretraining, member.seed) for member in members}
    return len(names) == len(members) and all(member.seed is not None for member in members)


def _by_example(
    kept: tuple[list[Kept], list[Kept]] | None, sides: tuple[Side, Side], metric: str, *, settings_differ: bool
) -> tuple[tuple[GroupDifference, ...], tuple[GroupDifference, ...], Flipped | None]:
    """By class, by length, and the examples that flipped."""
    if kept is None:
        return (), (), None
    examples = kept[0][0].examples
    by_class = _class_groups(examples)[:_MOST_CLASSES]
    of_class = "accuracy" if examples.kind in ("classification", "tagging") else metric
    classes = _groups(by_class, kept, sides, of_class, settings_differ) if len(by_class) > 1 else ()
    by_length = _length_groups(examples.lengths)
    lengths = _groups(by_length, kept, sides, metric, settings_differ) if len(by_length) > 1 else ()
    return classes, lengths, flipped(kept[0], kept[1])


def _class_groups(examples: ScoredExamples) -> list[Group]:
    """By gold label, by kind of question or phenomenon; of tagged sentences the words of each gold tag; most first."""
    if examples.kind == "tagging":
        owners = np.repeat(np.arange(len(examples)), np.diff(examples.offsets))
        words = [(name, np.flatnonzero(examples.gold == tag)) for tag, name in enumerate(examples.labels)]
        groups = [Group(name, np.unique(owners[places]), len(places), name) for name, places in words]
    else:
        rows = [(name, np.flatnonzero(examples.classes == place)) for place, name in enumerate(examples.class_names)]
        groups = [Group(name, of_class, len(of_class)) for name, of_class in rows]
    return sorted((group for group in groups if group.num), key=lambda group: -group.num)


def _of_tag(kept: Kept, tag: str) -> Kept:
    """The answers to the words of a gold tag alone."""
    examples = kept.examples
    wanted = np.array([label == tag for label in examples.labels])[examples.gold]
    right = wanted & (examples.predicted == examples.gold)
    starts = examples.offsets[:-1]  # no sentence without words is chosen
    parts, counts = (np.add.reduceat(of_word, starts).astype(np.float64) for of_word in (right, wanted))
    return replace(kept, examples=replace(examples, ratios={"accuracy": Ratio(parts, counts)}))


def _length_groups(lengths: np.ndarray) -> list[Group]:
    """Quarters of the examples by their length in characters."""
    edges = np.unique(np.quantile(lengths, np.arange(1, _LENGTHS) / _LENGTHS, method="lower"))
    place = np.searchsorted(edges, lengths, side="left")
    groups = []
    for number in range(len(edges) + 1):
        rows = np.flatnonzero(place == number)
        if len(rows):
            low, high = int(lengths[rows].min()), int(lengths[rows].max())
            name = f"{low:,} to {high:,} characters" if low < high else f"{low:,} characters"
            groups.append(Group(name, rows, len(rows)))
    return groups


def _groups(
    groups: Sequence[Group],
    kept: tuple[list[Kept], list[Kept]],
    sides: tuple[Side, Side],
    metric: str,
    settings_differ: bool,
) -> tuple[GroupDifference, ...]:
    """The comparison on each of some groups of examples, judged together."""
    made: list[GroupDifference] = []
    differences: list[Difference] = []
    for group in groups:
        keys = kept[0][0].examples.keys[group.rows]
        parts = [[_only(one, keys) for one in side] for side in kept]
        if group.tag is not None:
            parts = [[_of_tag(one, group.tag) for one in side] for side in parts]
        values = [[metric_value(one.examples, metric) for one in side] for side in parts]
        if any(value is None for side in values for value in side):
            continue
        arms = [
            Arm(
                _scores(side.members, [value for value in of_side if value is not None]),
                examples_of(part, metric),
                design="" if _are_told_apart(side.members) else None,
            )
            for side, part, of_side in zip(sides, parts, values, strict=True)
        ]
        found = compare_arms(*arms, settings_differ=settings_differ)
        differences.append(found)
        means = [arm.spread.mean for arm in arms]
        made.append(GroupDifference(group.name, group.num, metric, means[0], means[1], None))
    together = corrected(differences)
    return tuple(
        GroupDifference(g.name, g.num, g.metric, g.one, g.other, d) for g, d in zip(made, together, strict=True)
    )

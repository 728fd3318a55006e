"""Two sides compared: on which examples, by which rule, and which examples flipped; against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.runs import transfer

from lmtransfer.reporting.comparison.comparison import find_flips
from lmtransfer.reporting.comparison.page import headline, html_comparison, remarks, tables, to_json
from lmtransfer.reporting.comparison.sides import Member, Side, read_sides
from lmtransfer.reporting.comparison.task import compare_sides
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.tasks.metrics.scored_examples import Predictions, Ratio, contributions, scored_examples
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.verdicts.conditions import Condition, Examples, Score
from lmtransfer.verdicts.difference import VERDICTS
from lmtransfer.verdicts.verdict import compare_conditions

LABELS = ("no", "yes", "maybe")


def kept(seed: int, *, num: int = 80, skill: float = 0.7, names: Sequence[str] = LABELS, first: int = 0) -> Predictions:
    """Answers to examples ``first`` to ``first + num``, whose gold labels do not depend on the seed."""
    rng = np.random.default_rng(seed)
    order = np.array([LABELS.index(name) for name in names])
    gold = np.array([(7 * i) % 3 for i in range(first, first + num)])
    said = np.where(rng.random(num) < skill, gold, rng.integers(3, size=num))
    gold, said = (np.argsort(order)[labels] for labels in (gold, said))
    examples = [TextExample(f"dev:{i}", f"text number {i}" * (1 + i % 4)) for i in range(first, first + num)]
    made = scored_examples(
        examples, kind="classification", labels=names, predicted=said, gold=gold,
        ratios={"accuracy": Ratio.mean(said == gold)}, classes=gold, class_names=names,
    )  # fmt: skip
    return Predictions("toy", "dev", "accuracy", seed, 0, False, made)


def side(
    name: str, answers: Sequence[Predictions | None], *, task: str = "toy", split: str = "dev", **config: Any
) -> Side:
    """A side of one run with these seeds."""
    values = [0.5 if one is None else float(one.examples.ratios["accuracy"].value() or 0) for one in answers]
    result = {
        "command": "finetune", "task": task, "split": split, "main_metric": "accuracy", "num_scored": 80,
        "seeds": [{"seed": seed, "metrics": {"accuracy": value}} for seed, value in enumerate(values)],
    }  # fmt: skip
    run = Run(
        Path(f"/nowhere/{name}"), name, "finished", {"init": f"/nowhere/{name}-base", **config}, result, {}, (), ()
    )
    (entry,) = make_entries([run])
    members = [
        Member(value, place, f"{name}-base", one)
        for place, (value, one) in enumerate(zip(values, answers, strict=True))
    ]
    return Side(name, (entry,), tuple(members), ())


def test_the_difference_is_that_of_the_rule_on_the_same_examples() -> None:
    one, other = [kept(seed) for seed in range(4)], [kept(10 + seed, skill=0.4) for seed in range(4)]
    found = compare_sides(side("a", one), side("b", other))
    assert found.num_examples == 80

    def condition(answers: Sequence[Predictions], base: str) -> Condition:
        scores = np.stack([(a.examples.predicted == a.examples.gold).astype(float) for a in answers])
        made = tuple(Score(float(row.mean()), place, base) for place, row in enumerate(scores))
        return Condition(made, Examples(scores, answers[0].examples.keys))

    expected = compare_conditions(condition(one, "a-base"), condition(other, "b-base"))
    assert found.difference is not None
    assert found.difference.delta == pytest.approx(expected.delta)
    assert found.difference.standard_error == pytest.approx(expected.standard_error)
    assert found.difference.verdict == expected.verdict == "better"
    assert found.difference.counts_examples
    for group in found.classes:
        rows = one[0].examples.gold == LABELS.index(group.name)
        shares = [np.mean([contributions(k.examples, "accuracy")[rows].mean() for k in s]) for s in (one, other)]  # type: ignore[index]
        assert (group.one, group.other) == pytest.approx(tuple(shares))
        assert group.num == rows.sum()
        assert group.difference is not None
        assert group.difference.num_comparisons == 3


def test_only_common_examples_are_compared_and_that_is_said() -> None:
    one, other = [kept(seed) for seed in range(2)], [kept(10 + seed, first=30) for seed in range(2)]
    found = compare_sides(side("a", one), side("b", other))
    assert found.num_examples == 50
    assert any(" 50 " in note and " 80" in note for note in found.missing)
    for values, answers, rows in zip(found.values, (one, other), (slice(30, 80), slice(0, 50)), strict=True):
        right = [(a.examples.predicted == a.examples.gold)[rows].mean() for a in answers]
        assert values == pytest.approx(right)
    apart = compare_sides(side("bert", one), side("gpt", [kept(10, first=80), kept(11, first=80)]))
    assert (apart.difference, apart.num_examples) == (None, 0)
    assert any("example" in note for note in apart.missing)
    assert all(name in headline(apart) for name in ("bert", "gpt"))
    assert not any(character.isdigit() for character in headline(apart))


def test_labels_in_another_order_are_the_same_labels() -> None:
    one, turned = [kept(seed) for seed in range(3)], [kept(seed, names=("maybe", "no", "yes")) for seed in range(3)]
    found = compare_sides(side("a", one), side("b", turned))
    assert found.difference is not None
    assert found.difference.delta == 0
    assert not [line for line in found.missing if "gold" in line]
    assert found.flips is not None
    assert found.flips.counts is not None
    assert found.flips.counts[1:3] == (0, 0)
    assert {group.name: group.one - group.other for group in found.classes} == dict.fromkeys(LABELS, 0.0)
    changed = replace(turned[0].examples, gold=(turned[0].examples.gold + (np.arange(80) < 5)) % 3)
    other = compare_sides(side("a", one), side("b", [replace(t, examples=changed) for t in turned]))
    assert any("gold" in note and " 5 " in note for note in other.missing)


def test_flips_are_those_of_the_majority_of_seeds() -> None:
    one, other = [kept(seed) for seed in range(3)], [kept(10 + seed, skill=0.3) for seed in range(3)]
    found = find_flips(one, other)
    assert found is not None
    right = [[k.examples.predicted == k.examples.gold for k in answers] for answers in (one, other)]
    votes = [np.sum(answers, axis=0) for answers in right]
    gained = [f"dev:{i}" for i in range(80) if votes[0][i] >= 2 and votes[1][i] <= 1]
    lost = [f"dev:{i}" for i in range(80) if votes[0][i] <= 1 and votes[1][i] >= 2]
    assert gained
    assert lost
    assert sorted(flip.id for flip in found.to_one) == sorted(gained)
    assert sorted(flip.id for flip in found.to_other) == sorted(lost)
    assert found.counts is not None
    assert found.counts[1:3] == (len(gained), len(lost))
    assert sum(found.counts) == 80
    clearest = found.to_one[0]
    row = int(clearest.id.removeprefix("dev:"))
    assert clearest.scores == pytest.approx((votes[0][row] / 3, votes[1][row] / 3))
    assert clearest.gold == LABELS[one[0].examples.gold[row]]
    gains = [flip.scores[0] - flip.scores[1] for flip in found.to_one]
    assert gains == sorted(gains, reverse=True)


def test_errors_of_scores_are_compared_without_a_right_or_wrong() -> None:
    rng = np.random.default_rng(3)
    gold = rng.normal(size=30)
    examples = [TextExample(f"dev:{i}", f"t{i}") for i in range(30)]
    answers = []
    for seed in range(4):
        said = gold + rng.normal(size=30) * (0.2 if seed < 2 else 1.0)
        ratios = {"squared_error": Ratio.mean((said - gold) ** 2)}
        made = scored_examples(examples, kind="regression", predicted=said, gold=gold, ratios=ratios)
        answers.append(Predictions("r", "dev", "pearson", seed, 0, False, made))
    found = find_flips(answers[:2], answers[2:])
    assert found is not None
    assert (found.score, found.counts) == ("squared_error", None)
    assert len(found.to_one) > len(found.to_other)
    errors = [
        np.mean([(a.examples.predicted - gold) ** 2 for a in part], axis=0) for part in (answers[:2], answers[2:])
    ]
    assert {flip.id for flip in found.to_one} == {f"dev:{i}" for i in np.flatnonzero(errors[0] < errors[1])}


def missing_of(one: Side, other: Side) -> str:
    found = compare_sides(one, other)
    to_json(found)
    html_comparison(found, most=3)
    tables(found, most=3)
    return "\n".join([headline(found), *remarks(found)])


SEEDS = [kept(seed) for seed in range(3)]
OTHERS = [kept(10 + seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("one", "other", "verdict", "names"),
    [
        (side("bert", SEEDS), side("gpt", OTHERS, task="cola"), None, ("task", "toy", "cola")),
        (side("bert", SEEDS), side("gpt", OTHERS, split="test"), None, ("split", "dev", "test")),
        (side("bert", SEEDS), side("gpt", OTHERS[:1]), "one seed, no spread", ("gpt", "seeds=5")),
        (side("bert", SEEDS[:1]), side("gpt", OTHERS[:1]), "one seed, no spread", ("bert", "gpt", "seeds=5")),
        (side("bert", SEEDS), side("gpt", OTHERS[:2]), "no difference shown", (" 3 ", " 2 ", "seeds")),
        (side("bert", SEEDS), side("gpt", [None] * 3), "seeds all alike", ("gpt", "lmtransfer evaluate")),
        (
            side("bert", [None, *SEEDS[1:]]),
            side("gpt", [None] * 3),
            "seeds all alike",
            ("bert", "gpt", "lmtransfer evaluate"),
        ),
        (
            side("bert", SEEDS, train={"epochs": 1}),
            side("gpt", OTHERS, train={"epochs": 2}),
            "no difference shown",
            ("train.epochs",),
        ),
        (
            side("bert", SEEDS, train={"epochs": 1}),
            side("gpt", OTHERS, train={"epochs": 2}, init=None),
            "settings differ",
            ("train.epochs", "control"),
        ),
        (side("bert", SEEDS), side("gpt", OTHERS, init=None), "no difference shown", ("toy", "dev", "bert", "gpt")),
    ],
    ids=[
        "task",
        "split",
        "one seed",
        "one seed each",
        "unequal",
        "no predictions",
        "none at all",
        "settings",
        "settings of a control",
        "control",
    ],
)
def test_what_is_missing_is_said(one: Side, other: Side, verdict: str | None, names: tuple[str, ...]) -> None:
    """In one line, which names no side but those that it is about."""
    difference = compare_sides(one, other).difference
    assert verdict == (None if difference is None else difference.verdict)
    lines = [line for line in missing_of(one, other).splitlines() if all(name in line for name in names)]
    assert lines
    assert any(all((side_name in line) == (side_name in names) for side_name in ("bert", "gpt")) for line in lines)


@pytest.mark.parametrize(
    ("counted", "says"),
    [
        ([0.80, 0.81, 0.79], "difference from TF-IDF -9.0 points: worse, for this checkpoint (95 % interval"),
        ([0.66, 0.78, 0.72], "difference from TF-IDF -1.0 points: no difference shown (95 % interval"),
        ([0.60, 0.61, 0.59], ""),
    ],
)
def test_a_comparison_has_the_verdict_against_counting_words(tmp_path: Path, counted: list[float], says: str) -> None:
    transfer(tmp_path / "finetune" / "a", [0.70, 0.72, 0.71], baselines={"TF-IDF": counted})
    transfer(tmp_path / "finetune" / "b", [0.85, 0.87, 0.86], baselines={"TF-IDF": [0.5, 0.51, 0.49]})
    lines = remarks(compare_sides(*read_sides([str(tmp_path / "finetune" / name) for name in "ab"])))
    (own,) = [line for line in lines if "TF-IDF" in line] or [""]
    assert says in own
    assert own.startswith("a: " if says else "")
    assert "as well" not in " ".join(lines)


def test_recipes_that_differ_get_a_verdict_about_all_that_differs() -> None:
    better, worse = ([kept(20 + seed, skill=skill) for seed in range(3)] for skill in (0.9, 0.3))
    one = side("probe", better, train={"epochs": 20}, transfer={"layers": [0]})
    found = compare_sides(one, side("finetune", worse, train={"epochs": 6}))
    assert found.difference is not None
    assert found.difference.verdict == "better"
    note = [line for line in found.missing if "more than the weights" in line]
    assert len(note) == 1
    assert all(key in note[0] for key in ("train.epochs", "transfer.layers"))


def test_other_models_are_compared_but_a_control_of_another_model_is_none() -> None:
    small, large = {"model": {"dim": 8}}, {"model": {"dim": 16}}
    one, other = side("a", SEEDS, **small), side("b", OTHERS, **large)
    found = compare_sides(one, other).difference
    assert found is not None
    assert found.verdict in VERDICTS
    assert "model.dim" not in missing_of(one, other)
    control = side("b", OTHERS, **large, init=None)
    found = compare_sides(one, control).difference
    assert found is not None
    assert found.verdict == "settings differ"
    assert "model.dim" in missing_of(one, control)


def test_nothing_of_a_run_is_read_as_html() -> None:
    bad = [replace(k, examples=replace(k.examples, ids=("<script>x</script>",) * 80)) for k in OTHERS]
    page = html_comparison(compare_sides(side("a", bad), side("<b>", [kept(9, skill=0.1)] * 1)), most=100)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from fakes.tasks import WordTokenizer, bert
from sklearn.model_selection import StratifiedKFold
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.subsets import FOLDS, check_folds, fold_of, sample_stratified, train_and_held_out
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression
from lmtransfer.transfer.experiment.data import read_task_data

LABELS = np.array([0] * 60 + [1] * 30 + [2] * 10)


@pytest.mark.parametrize("size", [3, 10, 33, 99, 100])
def test_every_label_gets_its_share_to_within_one(size: int) -> None:
    chosen = sample_stratified(LABELS, size, seed=0, purpose="x")
    assert len(chosen) == len(set(chosen.tolist())) == size
    assert (np.diff(chosen) > 0).all()
    for label, share in enumerate([0.6, 0.3, 0.1]):
        assert abs((LABELS[chosen] == label).sum() - share * size) < 1
    with refuses(ValueError, "101", "100"):
        sample_stratified(LABELS, 101, seed=0, purpose="x")


def test_the_same_seed_chooses_the_same_and_another_seed_or_purpose_others() -> None:
    first, same, seed, purpose = (
        sample_stratified(LABELS, 20, seed=seed, purpose=purpose).tolist()
        for seed, purpose in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))
    )
    assert first == same
    assert first not in (seed, purpose)


def test_parts_are_disjoint_and_the_held_out_part_comes_from_the_subset() -> None:
    train, held_out = train_and_held_out(LABELS, num_train=50, dev_from_train=0.2, seed=3)
    assert (len(train), np.bincount(LABELS[held_out]).tolist()) == (40, [6, 3, 1])
    assert not set(train.tolist()) & set(held_out.tolist())
    whole, nothing = train_and_held_out(LABELS, num_train=50, dev_from_train=None, seed=3)
    assert len(nothing) == 0
    assert sorted([*train.tolist(), *held_out.tolist()]) == whole.tolist()
    everything, _ = train_and_held_out(LABELS, num_train=None, dev_from_train=None, seed=0)
    assert everything.tolist() == list(range(100))


@pytest.mark.parametrize("seed", range(3))
def test_the_training_part_has_every_label_also_those_of_one_example(seed: int) -> None:
    labels = np.array([label for label in range(9) for _ in range(100)] + list(range(9, 24)))
    train, held_out = train_and_held_out(labels, num_train=None, dev_from_train=0.1, seed=seed)
    assert len(np.unique(labels[train])) == 24
    assert np.bincount(labels[held_out], minlength=24).tolist() == [10] * 9 + [0] * 15
    few, most = train_and_held_out(LABELS, num_train=10, dev_from_train=0.9, seed=seed)
    assert (np.bincount(LABELS[few]).tolist(), np.bincount(LABELS[most]).tolist()) == ([1, 1, 1], [5, 2])
    eight = np.repeat(np.arange(8), 400)
    _, held_out = train_and_held_out(eight, num_train=100, dev_from_train=0.1, seed=seed)
    assert len(held_out) == 10
    assert np.bincount(eight[held_out], minlength=8).max() <= 2
    _, held_out = train_and_held_out(np.arange(40) % 20, num_train=None, dev_from_train=0.1, seed=seed)
    assert len(held_out) <= 5  # fewer than labels


def test_a_label_that_only_the_held_out_part_would_have_is_refused() -> None:
    labels = np.array([0, 0, 0, 0, 1])
    groups = ["a", "b", "c", "d", "d"]  # the only example of a label shares its group with another example
    refused = []
    for seed in range(20):
        try:
            train, _ = train_and_held_out(labels, num_train=None, dev_from_train=0.5, seed=seed, groups=groups)
        except ConfigError as error:
            refused.append(str(error))
        else:
            assert set(labels[train].tolist()) == {0, 1}
    assert 0 < len(refused) < 20
    assert all("task.dev_from_train=0.5" in message for message in refused)


@pytest.mark.parametrize(
    ("num_train", "dev_from_train", "groups", "names"),
    [
        (101, None, None, ("task.num_train=101", "100 examples", "3 labels")),
        (2, None, None, ("task.num_train=2", "100 examples", "3 labels")),
        (None, 1.0, None, ("task.dev_from_train=1.0",)),
        (None, 0.0, None, ("task.dev_from_train=0.0",)),
        (10, 0.01, None, ("task.dev_from_train=0.01", " 0 of 10 ")),
        (None, 0.1, ["one"] * 100, ("task.dev_from_train=0.1", " 0 of 100 ")),
    ],
)
def test_parts_that_cannot_be(
    num_train: int | None, dev_from_train: float | None, groups: list[str] | None, names: tuple[str, ...]
) -> None:
    with refuses(ConfigError, *names):
        train_and_held_out(LABELS, num_train=num_train, dev_from_train=dev_from_train, seed=0, groups=groups)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("grouped", [False, True])
def test_training_and_held_out_parts_of_a_learning_curve_are_nested(fraction: float, grouped: bool) -> None:
    groups = [f"g{row % 37}" for row in range(len(LABELS))] if grouped else None
    for seed in range(3):
        train, held_out = set[int](), set[int]()
        for size in (20, 30, 50, 80, 100):
            more_train, more_held_out = (
                set(part.tolist())
                for part in train_and_held_out(
                    LABELS, num_train=size, dev_from_train=fraction, seed=seed, groups=groups
                )
            )
            assert train <= more_train
            assert held_out <= more_held_out
            assert len(more_train) + len(more_held_out) == size
            assert abs(len(more_held_out) - fraction * size) <= (10 if grouped else 3)
            train, held_out = more_train, more_held_out


def test_a_group_is_never_on_both_sides() -> None:
    rng = np.random.default_rng(0)
    groups = ["" if rng.random() < 0.2 else f"g{number}" for number in rng.integers(0, 25, len(LABELS))]
    for seed in range(20):
        train, held_out = train_and_held_out(LABELS, num_train=None, dev_from_train=0.2, seed=seed, groups=groups)
        assert not {groups[row] for row in train} & {groups[row] for row in held_out}
        assert "" not in {groups[row] for row in held_out}
        assert 10 <= len(held_out) <= 30


@pytest.mark.parametrize("counts", [(150, 47, 3), (2, 400, 400), (300, 2, 6, 2, 300)])
@pytest.mark.parametrize("fraction", [0.05, 0.1])
def test_rare_labels_are_on_both_sides(counts: tuple[int, ...], fraction: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    for seed in range(3):
        train, held_out = train_and_held_out(labels, num_train=None, dev_from_train=fraction, seed=seed)
        assert {*labels[train]} == {*labels[held_out]} == {*range(len(counts))}
        assert np.abs(np.bincount(labels[held_out]) - fraction * np.array(counts)).max() <= 1


STRATA = np.random.default_rng(0).choice(4, size=103, p=[0.5, 0.3, 0.13, 0.07])
OWN = [str(row) for row in range(len(STRATA))]
NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("folds", [2, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_folds_have_the_counts_of_scikit_learn(folds: int, seed: int) -> None:
    found = fold_of(STRATA, OWN, folds=folds, seed=seed, names=NAMES)
    assert (found == fold_of(STRATA, OWN, folds=folds, seed=seed, names=NAMES)).all()
    assert (found != fold_of(STRATA, OWN, folds=folds, seed=seed + 1, names=NAMES)).any()
    table_FC = np.array([np.bincount(STRATA[found == fold], minlength=4) for fold in range(folds)])
    peer = StratifiedKFold(folds, shuffle=True, random_state=seed).split(STRATA, STRATA)
    theirs = np.array([np.bincount(STRATA[rows], minlength=4) for _, rows in peer])
    assert (np.sort(table_FC, axis=0) == np.sort(theirs, axis=0)).all()
    assert np.ptp(table_FC, axis=0).max() <= 1
    assert np.ptp(table_FC.sum(1)) <= 1


def test_groups_stay_together_and_folds_stay_even() -> None:
    groups = [str(row // 2) for row in range(len(STRATA))]
    found = fold_of(STRATA, groups, folds=4, seed=0, names=NAMES)
    assert all(len({found[row] for row in range(len(STRATA)) if groups[row] == name}) == 1 for name in set(groups))
    assert np.ptp(np.bincount(found, minlength=4)) <= 4
    alone = fold_of(STRATA, [""] * len(STRATA), folds=5, seed=0, names=NAMES)  # no groups
    assert np.ptp(np.bincount(alone)) <= 1


def test_more_folds_than_examples_of_a_label() -> None:
    strata = np.array([0] * 9 + [1] * 3)
    with refuses(ConfigError, "task.folds=4", "label spam", "(3)"):
        fold_of(strata, OWN[:12], folds=4, seed=0, names=["ham", "spam"])
    with refuses(ConfigError, "task.folds=4", "label spam", "(2)"):
        fold_of(strata, [*OWN[:10], "same", "same"], folds=4, seed=0, names=["ham", "spam"])
    with refuses(ConfigError, "task.folds=13", "training file", "(12)"):
        fold_of(np.full(12, -1), OWN[:12], folds=13, seed=0, names=[])
    assert sorted(fold_of(strata, OWN[:12], folds=3, seed=0, names=["ham", "spam"])[9:]) == [0, 1, 2]


def test_a_label_that_differs_in_case_is_named() -> None:
    with refuses(ConfigError, "label Good", "correct the file if it means good") as raised:
        fold_of(np.array([0, 0, 0, 1]), [""] * 4, folds=2, seed=0, names=["good", "Good"])
    assert "add examples" not in str(raised.value)


@pytest.mark.parametrize(
    ("folds", "splits", "num_train", "names"),
    [
        (1, ("train",), None, ("task.folds",)),
        (5, ("train", "dev"), None, ("task.folds=5", "task.dev")),
        (5, ("train",), 100, ("task.folds=5", "task.num_train=100")),
    ],
)
def test_settings_that_do_not_go_together(
    folds: int, splits: tuple[str, ...], num_train: int | None, names: tuple[str, ...]
) -> None:
    check_folds(None, splits=splits, num_train=num_train)
    with refuses(ConfigError, *names):
        check_folds(folds, splits=splits, num_train=num_train)
    given = {split: f"{split}.tsv" for split in splits}
    common = {"name": "t", "text_column": "text", "folds": folds, "num_train": num_train, **given}
    for make in (
        lambda: TextClassification(labels=["a", "b"], label_column="label", **common),
        lambda: TextRegression(score_column="score", **common),
        lambda: MultiLabel(labels=["a", "b"], label_column="labels", **common),
    ):
        with refuses(ConfigError, *names):
            make()
    phrases = {"label_column": "l", "labels": ["a", "b"], "train": "x.tsv", "phrases": True}
    with refuses(ConfigError, "task.folds=5", "task.phrases"):
        TextClassification(name="t", text_column="t", folds=5, **phrases)


def test_each_example_is_scored_once_by_a_run_that_did_not_see_it(tmp_path: Path) -> None:
    lines = [f"word{row // 2} text\t{'yes' if row % 3 else 'no'}" for row in range(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    columns = {"text_column": "text", "label_column": "label", "train": str(tmp_path / "train.tsv")}
    task = TextClassification(name="t", labels=["no", "yes"], folds=4, dev_from_train=0.2, **columns)
    data = read_task_data(task, WordTokenizer(), bert(), seeds=[3, 4], split="dev")  # type: ignore[arg-type]
    assert data.split == FOLDS
    assert data.choosing is None
    everything = list(range(60))
    for seed in (3, 4):
        scored = [data.parts[seed, fold].scored for fold in range(4)]
        assert sorted(np.concatenate(scored)) == everything
        for fold in range(4):
            part, whole = data.parts[seed, fold], data.whole[seed, fold]
            assert sorted([*part.train, *part.held_out, *part.scored]) == everything
            assert sorted([*whole.train, *whole.scored]) == everything
            assert len(part.held_out) >= 1
            used = (part.train, part.held_out, part.scored)
            texts = [{data.train.examples[row].text for row in rows} for rows in used]
            assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    assert (table(data.evaluation.targets) == table(data.train.targets)).all()

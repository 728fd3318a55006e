"""Folds of a training file: stratified, in groups, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from fakes.tasks import WordTokenizer, bert
from sklearn.model_selection import StratifiedKFold
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.subsets import FOLDS, check_folds, fold_of
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression
from lmtransfer.transfer.experiment.data import read_task_data

STRATA = np.random.default_rng(0).choice(4, size=103, p=[0.5, 0.3, 0.13, 0.07])
OWN = [str(row) for row in range(len(STRATA))]
NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("folds", [2, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_folds_have_the_counts_of_scikit_learn(folds: int, seed: int) -> None:
    found = fold_of(STRATA, OWN, folds=folds, seed=seed, names=NAMES)
    table_FC = np.array([np.bincount(STRATA[found == fold], minlength=4) for fold in range(folds)])
    peer = StratifiedKFold(folds, shuffle=True, random_state=seed).split(STRATA, STRATA)
    theirs = np.array([np.bincount(STRATA[rows], minlength=4) for _, rows in peer])
    assert (np.sort(table_FC, axis=0) == np.sort(theirs, axis=0)).all()
    assert np.ptp(table_FC, axis=0).max() <= 1
    assert np.ptp(table_FC.sum(1)) <= 1


def test_folds_depend_on_the_seed_and_the_order_alone() -> None:
    first, again, other = (fold_of(STRATA, OWN, folds=5, seed=seed, names=NAMES) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_groups_stay_together_and_folds_stay_even() -> None:
    groups = [str(row // 2) for row in range(len(STRATA))]
    found = fold_of(STRATA, groups, folds=4, seed=0, names=NAMES)
    assert all(len({found[row] for row in range(len(STRATA)) if groups[row] == name}) == 1 for name in set(groups))
    assert np.ptp(np.bincount(found, minlength=4)) <= 4
    alone = fold_of(STRATA, [""] * len(STRATA), folds=5, seed=0, names=NAMES)  # a group without a name is no group
    assert np.ptp(np.bincount(alone)) <= 1


def test_more_folds_than_examples_of_a_label() -> None:
    strata = np.array([0] * 9 + [1] * 3)
    with refuses(ConfigError, "task.folds=4", "label spam", " 3 "):
        fold_of(strata, OWN[:12], folds=4, seed=0, names=["ham", "spam"])
    with refuses(ConfigError, "task.folds=4", "label spam", " 2 "):
        fold_of(strata, [*OWN[:10], "same", "same"], folds=4, seed=0, names=["ham", "spam"])
    with refuses(ConfigError, "task.folds=13", "training file", " 12 "):
        fold_of(np.full(12, -1), OWN[:12], folds=13, seed=0, names=[])
    assert sorted(fold_of(strata, OWN[:12], folds=3, seed=0, names=["ham", "spam"])[9:]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("folds", "splits", "num_train", "names"),
    [
        (1, ("train",), None, ("task.folds=1",)),
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


def test_phrases_are_not_divided() -> None:
    with refuses(ConfigError, "task.folds=5", "task.phrases"):
        TextClassification(
            name="t", text_column="t", labels=["a", "b"], label_column="l", train="x.tsv", folds=5, phrases=True
        )


def test_each_example_is_scored_once_by_a_run_that_did_not_see_it(tmp_path: Path) -> None:
    lines = [f"word{row // 2} text\t{'yes' if row % 3 else 'no'}" for row in range(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    task = TextClassification(
        name="t",
        text_column="text",
        label_column="label",
        labels=["no", "yes"],
        train=str(tmp_path / "train.tsv"),
        folds=4,
        dev_from_train=0.2,
    )
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

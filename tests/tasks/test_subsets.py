from __future__ import annotations

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.subsets import sample_stratified, training_parts

LABELS = np.array([0] * 60 + [1] * 30 + [2] * 10)


@pytest.mark.parametrize("size", [3, 10, 33, 99, 100])
def test_every_label_gets_its_share_to_within_one(size: int) -> None:
    chosen = sample_stratified(LABELS, size, seed=0, purpose="x")
    assert len(chosen) == len(set(chosen.tolist())) == size
    assert (np.diff(chosen) > 0).all()
    for label, share in enumerate([0.6, 0.3, 0.1]):
        assert abs((LABELS[chosen] == label).sum() - share * size) < 1


def test_the_same_seed_chooses_the_same_and_another_seed_or_purpose_others() -> None:
    first = sample_stratified(LABELS, 20, seed=1, purpose="a").tolist()
    assert sample_stratified(LABELS, 20, seed=1, purpose="a").tolist() == first
    assert sample_stratified(LABELS, 20, seed=2, purpose="a").tolist() != first
    assert sample_stratified(LABELS, 20, seed=1, purpose="b").tolist() != first


def test_more_than_there_are_is_refused() -> None:
    with refuses(ValueError, "101", "100"):
        sample_stratified(LABELS, 101, seed=0, purpose="x")


def test_parts_are_disjoint_and_the_held_out_part_comes_from_the_subset() -> None:
    train, held_out = training_parts(LABELS, num_train=50, dev_from_train=0.2, seed=3)
    assert (len(train), len(held_out)) == (40, 10)
    assert not set(train.tolist()) & set(held_out.tolist())
    whole, nothing = training_parts(LABELS, num_train=50, dev_from_train=None, seed=3)
    assert len(nothing) == 0
    assert sorted([*train.tolist(), *held_out.tolist()]) == whole.tolist()
    assert np.bincount(LABELS[held_out]).tolist() == [6, 3, 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_training_part_has_every_label_also_those_of_one_example(seed: int) -> None:
    labels = np.array([label for label in range(9) for _ in range(100)] + list(range(9, 24)))
    train, held_out = training_parts(labels, num_train=None, dev_from_train=0.1, seed=seed)
    assert len(np.unique(labels[train])) == 24
    assert np.bincount(labels[held_out], minlength=24).tolist() == [10] * 9 + [0] * 15
    few, most = training_parts(LABELS, num_train=10, dev_from_train=0.9, seed=seed)
    assert (np.bincount(LABELS[few]).tolist(), np.bincount(LABELS[most]).tolist()) == ([1, 1, 1], [5, 2])


def test_a_label_that_only_the_held_out_part_would_have_is_refused() -> None:
    labels = np.array([0, 0, 0, 0, 1])
    groups = ["a", "b", "c", "d", "d"]  # the only example of a label goes with one that is held out
    refused = []
    for seed in range(20):
        try:
            train, _ = training_parts(labels, num_train=None, dev_from_train=0.5, seed=seed, groups=groups)
        except ConfigError as error:
            refused.append(str(error))
        else:
            assert set(labels[train].tolist()) == {0, 1}
    assert 0 < len(refused) < 20
    assert all("task.dev_from_train=0.5" in message for message in refused)


def test_all_examples_are_used_by_default() -> None:
    train, held_out = training_parts(LABELS, num_train=None, dev_from_train=None, seed=0)
    assert train.tolist() == list(range(100))
    assert len(held_out) == 0


@pytest.mark.parametrize(
    ("num_train", "dev_from_train", "names"),
    [
        (101, None, ("task.num_train=101", "100 examples", "3 labels")),
        (2, None, ("task.num_train=2", "100 examples", "3 labels")),
        (None, 1.0, ("task.dev_from_train=1.0",)),
        (None, 0.0, ("task.dev_from_train=0.0",)),
        (10, 0.01, ("task.dev_from_train=0.01", " 0 of 10 ")),
    ],
)
def test_parts_that_cannot_be(num_train: int | None, dev_from_train: float | None, names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        training_parts(LABELS, num_train=num_train, dev_from_train=dev_from_train, seed=0)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("grouped", [False, True])
def test_training_and_held_out_parts_of_a_learning_curve_are_nested(fraction: float, grouped: bool) -> None:
    groups = [f"g{row % 37}" for row in range(len(LABELS))] if grouped else None
    for seed in range(5):
        train, held_out = set[int](), set[int]()
        for size in (20, 30, 50, 80, 100):
            more_train, more_held_out = (
                set(part.tolist())
                for part in training_parts(LABELS, num_train=size, dev_from_train=fraction, seed=seed, groups=groups)
            )
            assert train <= more_train
            assert held_out <= more_held_out
            assert len(more_train) + len(more_held_out) == size
            assert abs(len(more_held_out) - fraction * size) <= (10 if grouped else 3)
            train, held_out = more_train, more_held_out


def test_a_group_is_never_on_both_sides() -> None:
    rng = np.random.default_rng(0)
    groups = [f"g{number}" for number in rng.integers(0, 25, len(LABELS))]
    shared = rng.random(len(LABELS)) < 0.2
    groups = ["" if several else group for group, several in zip(groups, shared, strict=True)]
    for seed in range(20):
        train, held_out = training_parts(LABELS, num_train=None, dev_from_train=0.2, seed=seed, groups=groups)
        assert not {groups[row] for row in train} & {groups[row] for row in held_out}
        assert "" not in {groups[row] for row in held_out}
        assert 10 <= len(held_out) <= 30


def test_every_label_is_held_out_in_its_share() -> None:
    train, held_out = training_parts(LABELS, num_train=None, dev_from_train=0.1, seed=4)
    assert np.bincount(LABELS[held_out]).tolist() == [6, 3, 1]
    eight = np.repeat(np.arange(8), 400)
    train, held_out = training_parts(eight, num_train=100, dev_from_train=0.1, seed=0)
    assert len(held_out) == 10
    assert np.bincount(eight[held_out], minlength=8).max() <= 2


@pytest.mark.parametrize("counts", [(150, 47, 3), (2, 400, 400), (300, 2, 6, 2, 300)])
@pytest.mark.parametrize("fraction", [0.05, 0.1])
def test_rare_labels_are_on_both_sides(counts: tuple[int, ...], fraction: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    for seed in range(5):
        train, held_out = training_parts(labels, num_train=None, dev_from_train=fraction, seed=seed)
        assert {*labels[train]} == {*labels[held_out]} == {*range(len(counts))}
        assert np.abs(np.bincount(labels[held_out]) - fraction * np.array(counts)).max() <= 1


def test_a_held_out_part_that_is_smaller_than_the_number_of_labels_stays_small() -> None:
    train, held_out = training_parts(np.arange(40) % 20, num_train=None, dev_from_train=0.1, seed=0)
    assert len(held_out) <= 5


def test_one_group_cannot_be_on_two_sides() -> None:
    with refuses(ConfigError, "task.dev_from_train=0.1", " 0 of 100 "):
        training_parts(LABELS, num_train=None, dev_from_train=0.1, seed=0, groups=["one"] * 100)

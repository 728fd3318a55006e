from __future__ import annotations

import numpy as np
import pytest

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.subsets import stratified, training_parts

LABELS = np.array([0] * 60 + [1] * 30 + [2] * 10)


@pytest.mark.parametrize("size", [3, 10, 33, 99, 100])
def test_every_label_gets_its_share_to_within_one(size: int) -> None:
    chosen = stratified(LABELS, size, seed=0, purpose="x")
    assert len(chosen) == len(set(chosen.tolist())) == size
    assert (np.diff(chosen) > 0).all()
    for label, share in enumerate([0.6, 0.3, 0.1]):
        assert abs((LABELS[chosen] == label).sum() - share * size) < 1


def test_the_same_seed_chooses_the_same_and_another_seed_or_purpose_others() -> None:
    first = stratified(LABELS, 20, seed=1, purpose="a").tolist()
    assert stratified(LABELS, 20, seed=1, purpose="a").tolist() == first
    assert stratified(LABELS, 20, seed=2, purpose="a").tolist() != first
    assert stratified(LABELS, 20, seed=1, purpose="b").tolist() != first


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="101 examples asked for, 100 there"):
        stratified(LABELS, 101, seed=0, purpose="x")


def test_parts_are_disjoint_and_the_held_out_part_comes_from_the_subset() -> None:
    train, held_out = training_parts(LABELS, num_train=50, dev_from_train=0.2, seed=3)
    assert (len(train), len(held_out)) == (40, 10)
    assert not set(train.tolist()) & set(held_out.tolist())
    whole, nothing = training_parts(LABELS, num_train=50, dev_from_train=None, seed=3)
    assert len(nothing) == 0
    assert sorted([*train.tolist(), *held_out.tolist()]) == whole.tolist()
    assert np.bincount(LABELS[held_out]).tolist() == [6, 3, 1]


def test_all_examples_are_used_by_default() -> None:
    train, held_out = training_parts(LABELS, num_train=None, dev_from_train=None, seed=0)
    assert train.tolist() == list(range(100))
    assert len(held_out) == 0


@pytest.mark.parametrize(
    ("num_train", "dev_from_train", "message"),
    [
        (101, None, "task.num_train=101: the training split has 100 examples of 3 labels"),
        (2, None, "task.num_train=2"),
        (None, 1.0, "task.dev_from_train=1.0"),
        (None, 0.0, "task.dev_from_train=0.0"),
        (10, 0.01, "holds out 0 of 10"),
        (10, 0.9, "holds out 9 of 10"),
    ],
)
def test_parts_that_cannot_be(num_train: int | None, dev_from_train: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        training_parts(LABELS, num_train=num_train, dev_from_train=dev_from_train, seed=0)

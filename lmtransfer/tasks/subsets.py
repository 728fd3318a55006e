"""Seeded, stratified parts of a training set."""

from __future__ import annotations

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.randomness import permutation


def stratified(labels: np.ndarray, size: int, *, seed: int, purpose: str) -> np.ndarray:
    """Choose ``size`` examples whose labels are in the proportions of the whole.

    Each label gets its exact share rounded down; places left over go to the largest remainders, the lower label
    index first on a tie. Which examples of a label are chosen is random and depends on ``seed`` and ``purpose``.

    Args:
        labels: label indices, shape (N,).
        size: how many to choose, at most N.
        seed: the run's seed.
        purpose: what the choice is for, so that two choices with one seed are independent.

    Returns:
        Ascending example numbers, int64, shape (size,).

    Raises:
        ValueError: ``size`` exceeds N.
    """
    if size > len(labels):
        raise ValueError(f"{size} examples asked for, {len(labels)} there")
    values, counts = np.unique(labels, return_counts=True)
    exact = counts * (size / max(1, len(labels)))
    quotas = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - quotas), kind="stable")
    quotas[order[: size - quotas.sum()]] += 1
    chosen = [
        np.flatnonzero(labels == value)[permutation(int(count), seed, purpose, i)[:quota]]
        for i, (value, count, quota) in enumerate(zip(values, counts, quotas, strict=True))
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)


def training_parts(
    labels: np.ndarray, *, num_train: int | None, dev_from_train: float | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which examples of the training split are trained on, and which are held out to choose by.

    ``num_train`` counts every label that is used: the held-out part is taken from those examples, not beside them.

    Args:
        labels: label indices of the whole training split, shape (N,).
        num_train: size of the subset, or None for all.
        dev_from_train: fraction of the subset to hold out, or None for no held-out part.
        seed: the run's seed.

    Returns:
        Ascending example numbers of the training part and of the held-out part, int64.

    Raises:
        ConfigError: more examples than there are, or a part that would be empty or lack a label.
    """
    chosen = np.arange(len(labels))
    num_labels = len(np.unique(labels))
    if num_train is not None:
        if not num_labels <= num_train <= len(labels):
            raise ConfigError(
                f"task.num_train={num_train}: the training split has {len(labels)} examples of {num_labels} labels; "
                f"give a number from {num_labels} to {len(labels)}, or null for all"
            )
        chosen = stratified(labels, num_train, seed=seed, purpose="num_train")
    if dev_from_train is None:
        return chosen, np.zeros(0, dtype=np.int64)
    size = round(dev_from_train * len(chosen))
    if not 0 < dev_from_train < 1 or size < 1 or len(chosen) - size < num_labels:
        raise ConfigError(
            f"task.dev_from_train={dev_from_train}: holds out {size} of {len(chosen)} training examples; give a "
            f"fraction between 0 and 1 that leaves at least 1 to choose by and {num_labels} to train on, or null"
        )
    held_out = stratified(labels[chosen], size, seed=seed, purpose="dev_from_train")
    return np.delete(chosen, held_out), chosen[held_out]

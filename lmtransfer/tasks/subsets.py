"""Seeded, stratified subsets of the training examples: samples, held-out examples and folds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.randomness import permutation


def sample_stratified(labels: np.ndarray, size: int, *, seed: int, purpose: str) -> np.ndarray:
    """Sample ``size`` examples that preserve the proportions of the labels.

    Each label gets its exact share rounded down. The remaining examples go to the labels with the largest remainders
    and, on a tie, to the lower label index. Which examples of a label are sampled depends on ``seed`` and ``purpose``.

    Args:
        purpose: name of the sample, so that two samples with the same seed are independent.

    Returns:
        Ascending indices of examples, int64, shape (size,).
    """
    if size > len(labels):
        raise ValueError(f"{size} examples were requested, but only {len(labels)} exist")
    values, counts = np.unique(labels, return_counts=True)
    exact = counts * (size / max(1, len(labels)))
    quotas = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - quotas), kind="stable")
    quotas[order[: size - quotas.sum()]] += 1
    parts = [
        np.flatnonzero(labels == value)[permutation(int(count), seed, purpose, i)[:quota]]
        for i, (value, count, quota) in enumerate(zip(values, counts, quotas, strict=True))
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


def train_and_held_out(
    labels: np.ndarray,
    *,
    num_train: int | None,
    dev_from_train: float | None,
    seed: int,
    groups: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sample from the training split, and divide the sample into training and held-out examples.

    ``num_train`` counts both: held-out examples are taken from the sample, not added to it. Whether an example is held
    out does not depend on ``num_train``. If one sample contains another, its training examples and its held-out
    examples therefore contain the other's.

    Args:
        groups: group of each example; a group is never divided, and group "" is never held out. None if each example is
            its own group.

    Returns:
        Ascending indices of the training examples and of the held-out examples, int64.
    """
    examples = np.arange(len(labels))
    num_labels = len(np.unique(labels))
    if num_train is not None:
        if not num_labels <= num_train <= len(labels):
            raise ConfigError(
                f"task.num_train={num_train}: the training split has {len(labels)} examples of {num_labels} labels; "
                f"set a number from {num_labels} to {len(labels)}, or null for all"
            )
        examples = sample_stratified(labels, num_train, seed=seed, purpose="num_train")
    if dev_from_train is None:
        return examples, np.zeros(0, dtype=np.int64)
    if not 0 < dev_from_train < 1:
        raise ConfigError(f"task.dev_from_train={dev_from_train} must be a fraction between 0 and 1, or null")
    held_out = _held_out(labels, dev_from_train, seed=seed, groups=groups)[examples]
    size = int(held_out.sum())
    if size < 1 or len(np.unique(labels[examples[~held_out]])) < len(np.unique(labels[examples])):
        raise ConfigError(
            f"task.dev_from_train={dev_from_train} holds out {size} of {len(examples)} training examples (examples "
            "that share their text or passage stay together); set a fraction that holds out at least one example and "
            "leaves some of each label for training, or null"
        )
    return examples[~held_out], examples[held_out]


def _held_out(labels: np.ndarray, fraction: float, *, seed: int, groups: Sequence[str] | None) -> np.ndarray:
    """Decide whether each example is held out: bool, shape (N,).

    Examples are visited in the order in which samples grow. A group's first example decides: the group is held out if
    too few examples of that label are held out so far and the example is not the first with its label, so that each
    label has examples left for training. The labels start at different offsets, so that small samples with many labels
    also get their share. If a label is so rare that its share is less than one example, its second example is held out,
    provided that there are enough held-out examples for all labels. If each example is its own group, the number of
    held-out examples of a label always differs by at most one from the fraction of its examples visited so far.
    """
    values, label_of = np.unique(labels, return_inverse=True)
    places = np.zeros(len(labels))
    for i in range(len(values)):
        rows = np.flatnonzero(label_of == i)
        places[rows[permutation(len(rows), seed, "num_train", i)]] = (np.arange(len(rows)) + 0.5) / len(rows)
    counts, offsets = np.bincount(label_of), (np.arange(len(values)) + 0.5) / len(values)
    is_rare = (counts * fraction + offsets < 1) & (len(labels) * fraction >= len(values))
    seen, held = [0] * len(values), [0] * len(values)
    roles: dict[str, bool] = {"": False}
    held_out = np.zeros(len(labels), dtype=bool)
    for row in np.lexsort((label_of, places)).tolist():
        label = int(label_of[row])
        seen[label] += 1
        share = max(int(seen[label] * fraction + offsets[label] + 1e-9), int(is_rare[label]))
        is_short = seen[label] > 1 and held[label] < share
        held_out[row] = is_short if groups is None else roles.setdefault(groups[row], is_short)
        held[label] += int(held_out[row])
    return held_out


#: Name of the split that a run with cross-validation scores.
FOLDS = "folds"


def check_folds(folds: int | None, *, splits: Collection[str], num_train: int | None) -> None:
    """Check the setting ``folds`` before any data is read."""
    if folds is None:
        return
    if folds < 2:
        raise ConfigError(f"task.folds={folds} must be 2 or more, such as 5, or null for no cross-validation")
    if "dev" in splits:
        raise ConfigError(
            f"task.folds={folds} with a dev file: folds of the training file replace the dev file; leave out task.dev "
            "(or task.files.dev), or task.folds"
        )
    if num_train is not None:
        raise ConfigError(
            f"task.folds={folds} with task.num_train={num_train}: each seed would score different examples; leave out "
            "one of the two"
        )


def fold_of(
    class_indices: np.ndarray, groups: Sequence[str], *, folds: int, seed: int, names: Sequence[str]
) -> np.ndarray:
    """Divide examples into folds with equal shares of each label, and return the fold of each; groups stay whole.

    Groups are assigned label by label (a group has the label of its first example), larger ones first and otherwise in
    random order, to the fold with the fewest examples of the label or, on a tie, the fewest examples. If each example
    is its own group, the folds' counts of a label differ by at most one, and so do their sizes.

    Args:
        class_indices: label index of each example, shape (N,); -1 if the task has no labels to stratify by.
        groups: group of each example; each example of group "" is its own group.
    """
    units: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        units.setdefault(group or f"\0{row}", []).append(row)
    of_label: dict[int, list[list[int]]] = {}
    for rows in units.values():
        of_label.setdefault(int(class_indices[rows[0]]), []).append(rows)
    fewest = min(of_label, key=lambda label: len(of_label[label]))
    if len(of_label[fewest]) < folds:
        name = names[fewest] if fewest >= 0 else None
        subject = "the training file" if name is None else f"label {name}"
        alike = [other for other in names if name not in (None, other) and other.casefold() == str(name).casefold()]
        remedy = f"correct the file if it means {alike[0]}" if alike else "add examples"
        raise ConfigError(
            f"task.folds={folds}: {subject} has too few training examples with different texts "
            f"({len(of_label[fewest])}), but each fold needs one; set fewer folds, or {remedy}"
        )
    fold_numbers, sizes = np.zeros(len(class_indices), dtype=np.int64), np.zeros(folds, dtype=np.int64)
    for label in sorted(of_label):
        own, counts = of_label[label], np.zeros(folds, dtype=np.int64)
        order = permutation(len(own), seed, "folds", label + 1).tolist()
        for place in sorted(order, key=lambda place: -len(own[place])):
            fold = int(np.lexsort((sizes, counts))[0])
            fold_numbers[own[place]] = fold
            counts[fold] += len(own[place])
            sizes[fold] += len(own[place])
    return fold_numbers

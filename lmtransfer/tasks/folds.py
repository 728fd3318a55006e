"""Folds of a training file for cross-validation, for tasks with too few examples for a dev set.

Each example is scored once, by a model trained on the other folds. The answers of all folds together give one score per
seed. Folds are not repetitions: any two share most of their training examples, and no estimate of the variance from the
folds of one division is unbiased (Bengio and Grandvalet 2004, https://www.jmlr.org/papers/v5/grandvalet04a.html). A
verdict therefore uses the spread over seeds, each of which divides the file anew, and the sampling of the examples, as
for a dev set. The folds depend only on the order of the file and the seed, so a run and its control are paired. As for
any fixed training file, the interval excludes the variation between training files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.randomness import permutation

#: Name of the split that a cross-validated run scores.
FOLDS = "folds"


def check_folds(folds: int | None, *, splits: Collection[str], num_train: int | None) -> None:
    """Check the setting before any data is read.

    Args:
        folds: number of folds; None without cross-validation.
        num_train: size of the subset of the training split.

    Raises:
        ConfigError: there is a dev split or a subset, or there are fewer than two folds.
    """
    if folds is None:
        return
    if folds < 2:
        raise ConfigError(f"task.folds={folds}: must be 2 or more, such as 5, or null for no cross-validation")
    if "dev" in splits:
        raise ConfigError(
            f"task.folds={folds} with a dev file: folds of the training file replace the dev file; leave out task.dev "
            "(or task.files.dev) or task.folds"
        )
    if num_train is not None:
        raise ConfigError(
            f"task.folds={folds} with task.num_train={num_train}: each seed would score different examples; leave out "
            "one of the two"
        )


def fold_of(
    class_indices: np.ndarray, groups: Sequence[str], *, folds: int, seed: int, names: Sequence[str]
) -> np.ndarray:
    """Divide examples into folds with equal shares of each label; a group's examples are in the same fold.

    Groups are assigned label by label (a group has the label of its first example), larger ones first and otherwise in
    random order, to the fold with the fewest examples of the label or, on a tie, the fewest examples. If each example
    is its own group, the folds' counts of a label differ by at most one, and so do their sizes.

    Args:
        class_indices: label index of each example, shape (N,); -1 if the task has no labels to stratify by.
        groups: group of each example; each example of group "" is its own group.
        names: names of the labels, for messages.

    Returns:
        Fold of each example, 0 to folds - 1, int64, shape (N,).

    Raises:
        ConfigError: there are more folds than groups with a label.
    """
    units: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        units.setdefault(group or f"\0{row}", []).append(row)
    of_label: dict[int, list[list[int]]] = {}
    for rows in units.values():
        of_label.setdefault(int(class_indices[rows[0]]), []).append(rows)
    fewest = min(of_label, key=lambda label: len(of_label[label]))
    if len(of_label[fewest]) < folds:
        subject = f"label {names[fewest]}" if fewest >= 0 else "the training file"
        raise ConfigError(
            f"task.folds={folds}: {subject} has {len(of_label[fewest])} training examples with different texts, but "
            "each fold needs one; set a smaller number, or add examples"
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

"""The labels that a training split is found to have, where a task does not name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmtransfer.errors import DataError

#: Characters of the longest label; more are no name.
LONGEST = 200
_SHOWN, _MOST = 40, 20
#: More labels than this, and more than half as many as there are things: that column is no label.
_MANY = 20


def check_label(label: str, where: str, column: str) -> None:
    """Refuse a text that can be no label.

    Args:
        label: as the file writes it.
        where: ``file:line``.
        column: the setting that says where labels are.

    Raises:
        DataError: it is longer than a label can be, or has white space at its ends.
    """
    if len(label) > LONGEST:
        raise DataError(
            f"{where}: the label {short(label)} has {len(label):,} characters, and a label has at most {LONGEST}; "
            f"does {column} name the column of the labels?"
        )
    if label != label.strip():
        raise DataError(
            f"{where}: the label {short(label)} begins or ends with white space, and would be another one than "
            f"{short(label.strip())}; mend the file, or name the labels by task.labels=[...]"
        )


def check_labels(labels: Mapping[str, int], *, origin: str, things: str, column: str) -> None:
    """Refuse labels between which there is nothing to tell apart, and what looks like another column.

    Args:
        labels: what was found, and how often.
        origin: file or hub split.
        things: what is labelled there, in the plural.
        column: the setting that says where labels are, with its value.

    Raises:
        DataError: there are fewer than two, or more than a label for every two things.
    """
    if not labels:
        raise DataError(f"{origin}: holds no labelled {things}, so there is nothing to train on; give another file")
    if len(labels) == 1:
        raise DataError(
            f"{origin}: all {things} have the label {short(next(iter(labels)))}, and there must be at least two to "
            "tell apart; give another file, or name all labels by task.labels=[...]"
        )
    total = sum(labels.values())
    if len(labels) > max(_MANY, total // 2):
        raise DataError(
            f"{origin}: {len(labels)} different labels in {total} {things}; does {column} name the column of the "
            "labels? If so, name them by task.labels"
        )


def short(label: str) -> str:
    """A label for messages, quoted."""
    return repr(label if len(label) <= _SHOWN else f"{label[:_SHOWN]}...")


def listed(labels: Sequence[str]) -> str:
    """The first labels for messages, comma-separated."""
    more = f", ... ({len(labels) - _MOST} more)" if len(labels) > _MOST else ""
    return ", ".join(label if len(label) <= _SHOWN else f"{label[:_SHOWN]}..." for label in labels[:_MOST]) + more

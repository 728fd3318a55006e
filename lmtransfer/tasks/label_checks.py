"""Checks on the labels of a training split, for a task that does not list its labels."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from lmtransfer.data.documents import Notes
from lmtransfer.errors import DataError

#: Maximum number of characters in a label; a longer text is not a label.
LONGEST = 200
_SHOWN, _MOST = 40, 20
#: A column with more labels than this, and with more than one label for every two items, does not hold labels.
_MANY = 20


def check_label(label: str, where: str, column: str) -> None:
    """Check that a text can be a label.

    Args:
        label: the label as the file writes it.
        where: ``file:line``, for messages.
        column: the setting that names the column of labels.

    Raises:
        DataError: the text is too long for a label, or has white space at its ends.
    """
    if len(label) > LONGEST:
        raise DataError(
            f"{where}: the label {quote_label(label)} has {len(label):,} characters, but a label may have at most "
            f"{LONGEST}; does {column} name the column of the labels?"
        )
    if label != label.strip():
        raise DataError(
            f"{where}: the label {quote_label(label)} begins or ends with white space, so it would differ from "
            f"{quote_label(label.strip())}; correct the file, or list the labels in task.labels=[...]"
        )


def check_labels(labels: Mapping[str, int], *, origin: str, things: str, column: str) -> None:
    """Check that there are at least two labels, and that the column looks like a label column.

    Args:
        labels: the labels in the data, with their counts.
        origin: file or hub split.
        things: name of the labeled items, in the plural.
        column: the setting that names the label column, with its value.

    Raises:
        DataError: there are fewer than two labels, or more than one label for every two items.
    """
    if not labels:
        raise DataError(f"{origin}: has no labeled {things}, so there are no training examples; use another file")
    if len(labels) == 1:
        raise DataError(
            f"{origin}: all {things} have the label {quote_label(next(iter(labels)))}, but at least two labels are "
            "needed; use another file, or list all labels in task.labels=[...]"
        )
    total = sum(labels.values())
    if len(labels) > max(_MANY, total // 2):
        raise DataError(
            f"{origin}: {len(labels)} different labels in {total} {things}; does {column} name the column of the "
            "labels? If so, list them in task.labels"
        )


def to_nfc(label: str, where: str, notes: Notes | None = None) -> str:
    """Return a label in Unicode form NFC, because files of one set may write a label in several forms.

    Args:
        label: the label as written.
        where: ``file:line``, or the setting.
        notes: counts labels in other forms.
    """
    if label.isascii() or unicodedata.is_normalized("NFC", label):
        return label
    if notes is not None:
        notes.add("labels in another Unicode form than NFC, read as NFC", where)
    return unicodedata.normalize("NFC", label)


def quote_label(label: str) -> str:
    """Shorten and quote a label for messages."""
    return repr(label if len(label) <= _SHOWN else f"{label[:_SHOWN]}...")


def list_labels(labels: Sequence[str]) -> str:
    """List the first labels for messages, comma-separated."""
    more = f", ... ({len(labels) - _MOST} more)" if len(labels) > _MOST else ""
    return ", ".join(label if len(label) <= _SHOWN else f"{label[:_SHOWN]}..." for label in labels[:_MOST]) + more

"""Checks of label names, whether a task's settings list them or its training file contains them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError

#: Maximum number of characters in a label; longer text is not a label.
LONGEST = 200
_MOST_CHARACTERS, _MOST_LABELS = 40, 20
#: A column with more labels than this, and with more than one label for every two items, is not a label column.
_MANY = 20


def check_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Check that there are at least two different names, and return them."""
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError(f"task.labels=[{list_labels(labels)}]: there must be at least two different names")
    return tuple(labels)


def check_training_file(splits: Sequence[str], task: str, *, items: str = "labels") -> None:
    """Check that a task without a list of labels has a training file from which to read them."""
    if "train" not in splits:
        raise ConfigError(
            f"task.labels=null: the {items} are read from the training file, but task {task} has no such file; list "
            "them in task.labels=[...], or set task.files.train=<file>"
        )


def check_label(label: str, where: str, column: str) -> None:
    """Check that a text can be a label (``column``: the setting that names the label column)."""
    if len(label) > LONGEST:
        raise DataError(
            f"{where}: the label {quote_label(label)} has {len(label):,} characters, but a label may have at most "
            f"{LONGEST}; does {column} name the label column?"
        )
    if label != label.strip():
        raise DataError(
            f"{where}: the label {quote_label(label)} begins or ends with white space, so it would differ from "
            f"{quote_label(label.strip())}; correct the file, or list the labels in task.labels=[...]"
        )


def check_labels(labels: Mapping[str, int], *, origin: str, items: str, column: str) -> None:
    """Check that there are at least two labels, and that the column looks like a label column.

    Args:
        items: the labeled items, as a plural noun for messages.
    """
    if not labels:
        raise DataError(f"{origin}: there are no labeled {items} to train on; use another file")
    if len(labels) == 1:
        raise DataError(
            f"{origin}: all {items} have the label {quote_label(next(iter(labels)))}, but at least two labels are "
            "needed; use another file, or list all labels in task.labels=[...]"
        )
    total = sum(labels.values())
    if len(labels) > max(_MANY, total // 2):
        raise DataError(
            f"{origin}: {len(labels)} different labels in {total} {items}; does {column} name the label column? If so, "
            "list the labels in task.labels"
        )


_WHOLE = re.compile(r"(-?\d+)\.0+")


def as_integer(label: str) -> str:
    """Return a whole number without its decimal places, because pandas writes 1 or 1.0; other texts are unchanged."""
    whole = _WHOLE.fullmatch(label)
    return label if whole is None else whole[1]


def index_labels(labels: Sequence[str]) -> dict[str, int]:
    """Return the index of each label, for ``find_label``."""
    indices = {label: index for index, label in enumerate(labels)}
    return {as_integer(label): index for label, index in indices.items()} | indices


def find_label(label: str, indices: Mapping[str, int]) -> int | None:
    """Return the index of a label, or of the equal whole number (see ``as_integer``); None if there is none."""
    index = indices.get(label)
    return indices.get(as_integer(label)) if index is None else index


#: The kind of a note about labels that ``as_integer`` matches.
OTHER_SPELLING = "labels that are equal numbers in another spelling (1 and 1.0), read as one label"


def merge_spellings(counts: Mapping[str, int]) -> dict[str, int]:
    """Merge labels that are equal whole numbers in several spellings; the merged label has no decimal places."""
    spellings = Counter(map(as_integer, counts))
    merged = Counter[str]()
    for label, count in counts.items():
        number = as_integer(label)
        merged[number if spellings[number] > 1 else label] += count
    return dict(merged)


def joining_mark(labels: Collection[str], marks: str, *, alone: str = "") -> str | None:
    """Return the character that seems to join several labels into one, such as | in a|b; None if there is none.

    Divided there, the labels must not become more; with a mark in ``alone``, each part must occur as a label itself.
    """
    for mark in marks:
        parts = [[part.strip() for part in label.split(mark)] for label in labels]
        joined = [names for names in parts if len(names) > 1]
        if not joined or not all(map(all, joined)):
            continue
        names = {name for one in parts for name in one}
        if names <= set(labels) if mark in alone else len(names) <= len(labels):
            return mark
    return None


def to_nfc(label: str, where: str, notes: Notes | None = None) -> str:
    """Convert a label to Unicode NFC, because files of a data set may encode the same label in different forms."""
    if label.isascii() or unicodedata.is_normalized("NFC", label):
        return label
    if notes is not None:
        notes.add("labels in a Unicode form other than NFC, converted to NFC", where)
    return unicodedata.normalize("NFC", label)


def quote_label(label: str) -> str:
    """Shorten and quote a label for messages."""
    return repr(_shorten(label))


def list_labels(labels: Sequence[str]) -> str:
    """List the first labels for messages, separated by commas."""
    more = f", ... ({len(labels) - _MOST_LABELS} more)" if len(labels) > _MOST_LABELS else ""
    return ", ".join(map(_shorten, labels[:_MOST_LABELS])) + more


def _shorten(label: str) -> str:
    return label if len(label) <= _MOST_CHARACTERS else f"{label[:_MOST_CHARACTERS]}..."

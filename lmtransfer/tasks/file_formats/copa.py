"""Read COPA in the format of SuperGLUE: JSON lines with a premise, two alternatives, and what is asked about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.input_files import json_object
from lmtransfer.tasks.text.choice_example import ChoiceExample

#: The question in words, by the value in the files.
_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def read_copa(path: Path, *, split: str) -> Iterator[ChoiceExample]:
    """Yield the examples of a file, in its order; blank lines are skipped.

    Args:
        path: the file, plain or compressed.
        split: name of the split, for the ids of the examples.

    Raises:
        DataError: a line is not such an object; the message has ``file:line``.
    """
    filled = ((number, line) for number, line in read_lines(path) if line.strip())
    for place, (number, line) in enumerate(filled):
        where = f"{path}:{number}"
        row, _ = json_object(line, where, "")
        asked = row.field("question")
        if asked.text() not in _QUESTIONS:
            raise DataError(f"{asked.where}: {asked.text()[:40]!r} must be {' or '.join(_QUESTIONS)}")
        gold = row.maybe("label")
        label = None if gold is None else gold.number()
        if label not in (None, 0, 1):
            raise DataError(f"{where}: label: {label} must be 0 (choice1) or 1 (choice2)")
        yield ChoiceExample(
            id=f"{split}:{place}",
            text=f"{row.field('premise').filled_text()} {_QUESTIONS[asked.text()]}",
            choices=(row.field("choice1").filled_text(), row.field("choice2").filled_text()),
            label=label,
        )

"""Read texts with choices of users, one example per line."""

from __future__ import annotations

from collections.abc import Iterator

from lmtransfer.data.documents import Notes, clean
from lmtransfer.tasks.input_files import SEPARATOR, Given, InputFile, Reader
from lmtransfer.tasks.text.choice_example import ChoiceExample


class ChoiceReader(Reader):
    """Makes texts with choices from lines ``text [SEP] first choice [SEP] second choice``."""

    formats = ("lines",)

    def of_filled_line(self, line: str, where: str, name: str, notes: Notes) -> ChoiceExample:
        """Make an example from a line."""
        text, *choices = (part.strip() for part in clean(line, where, notes).split(SEPARATOR))
        if not text or len(choices) < 2 or not all(choices):
            raise ValueError(f"expected a text and two choices or more, with {SEPARATOR} between them")
        return ChoiceExample(name, text, tuple(choices))

    def of_file(self, source: InputFile) -> Iterator[Given]:
        """Only lines are read."""
        raise AssertionError(f"format {source.file_format} was accepted, but there is no reader for it")

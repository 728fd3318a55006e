"""Read questions of users: a line, JSON lines with ``question`` and ``context``, or files in a published format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lmtransfer.data.documents import Notes
from lmtransfer.tasks.file_formats.answer_places import BadAnswersPolicy
from lmtransfer.tasks.input_files import Given, InputFile, Reader, json_object, two_texts
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.qa.sets import SETS


class QuestionReader(Reader):
    """Makes questions from the input of users.

    Args:
        kind: short name of the task's kind, for messages.
        file_format: format of the task's own files.
        labels: the task's other kinds of answer.
    """

    formats = ("lines", "jsonl", "squad", "quac", "coqa")
    file_only = ("squad", "quac", "coqa")

    def __init__(self, kind: str, *, file_format: str, labels: Sequence[str]) -> None:
        super().__init__(kind)
        self.json_format = "squad" if file_format == "jsonl" else file_format
        self._labels = labels

    def of_filled_line(self, line: str, where: str, name: str, notes: Notes) -> QuestionExample:
        """Make a question from a line with the question and then the passage."""
        return QuestionExample(name, *two_texts(line, "a question and a passage"))

    def of_file(self, source: InputFile) -> Iterator[Given]:
        """Read JSON lines, or a file in a published format; its answers are not used."""
        if source.file_format == "jsonl":
            yield from source.each_line(_question, pass_blank=True)
            return
        assert source.path is not None
        policy: BadAnswersPolicy = "refuse" if source.stops else "skip"
        name = next(name for name in SETS if name == source.file_format)
        read = SETS[name]().read(source.path, bad_answers=policy, kinds=self._labels)
        for example in read.examples:
            yield f"{source.name} (question {example.id})", replace(example, answers=None, kind=None)
        for question in read.left_out:
            source.refuse(f"{source.name} (question {question}): its gold answer is not at its offset")


def _question(line: str, where: str, name: str) -> QuestionExample:
    row, name = json_object(line, where, name)
    return QuestionExample(name, row.field("question").filled_text(), row.field("context").filled_text())

"""The answers to all examples, in order, one group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from lmtransfer.errors import DataError
from lmtransfer.tasks.input_files import LocatedExample

OnError = Literal["stop", "skip"]

#: An output line: the JSON object for an example.
JsonObject = dict[str, Any]

_REMEDY = "Fix it, or set on_error=skip to write an error in its place and continue"


class AnswersInOrder:
    """Answers examples in groups and writes the answers in the order of the examples.

    An example that cannot be answered stops the command after all earlier answers have been written. With
    ``on_error="skip"``, an object with the ``error`` is written in place of the answer.

    Args:
        answer: returns one object per example.
        write: writes objects to the output.
        group: maximum number of examples answered together.
        on_error: ``stop`` at an example that cannot be answered, or ``skip`` it.

    Attributes:
        num_inputs: number of examples and errors so far.
        num_errors: number of errors so far.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Any]], Sequence[JsonObject]],
        write: Callable[[Sequence[JsonObject]], None],
        *,
        group: int,
        on_error: OnError,
    ) -> None:
        self._answer, self._write = answer, write
        self._group, self._on_error = group, on_error
        self._waiting: list[LocatedExample | JsonObject] = []
        self.num_inputs = self.num_errors = 0

    @property
    def stops(self) -> bool:
        """Whether an example that cannot be answered stops the command."""
        return self._on_error == "stop"

    def answer_all(self, examples: Iterable[LocatedExample]) -> None:
        """Answer all examples and write the answers.

        Raises:
            DataError: an example cannot be read or answered; the earlier answers are written first.
        """
        try:
            for where, example in examples:
                self._add((where, example))
        except DataError:
            self.flush()
            raise
        self.flush()

    def add_error(self, problem: str) -> None:
        """Add an input that is not a valid example.

        Args:
            problem: the problem, with ``file:line``.
        """
        self._add(self._error(str(self.num_inputs), problem))

    def flush(self) -> None:
        """Answer the waiting examples and write the answers."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        examples = [item[1] for item in waiting if isinstance(item, tuple)]
        try:
            answers = iter(self._answer(examples) if examples else ())
        except DataError:
            self._answer_one_by_one(waiting)
            return
        self._write([next(answers) if isinstance(item, tuple) else item for item in waiting])

    def _add(self, item: LocatedExample | JsonObject) -> None:
        self._waiting.append(item)
        self.num_inputs += 1
        if len(self._waiting) >= self._group:
            self.flush()

    def _answer_one_by_one(self, waiting: Sequence[LocatedExample | JsonObject]) -> None:
        """Answer the examples of a group one by one, to find those that cannot be answered."""
        for item in waiting:
            if not isinstance(item, tuple):
                self._write([item])
                continue
            where, example = item
            try:
                line = self._answer([example])[0]
            except DataError as error:
                line = self._error(example.id, f"{where}: {error}")
            self._write([line])

    def _error(self, name: str, problem: str) -> JsonObject:
        if self.stops:
            raise DataError(f"{problem}. {_REMEDY}")
        self.num_errors += 1
        return {"id": name, "error": problem}

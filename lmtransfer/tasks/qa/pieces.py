"""Tokens of questions, dialogue turns and passages, with spellings if the encoder reads characters.

Shape legend: n tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.encoded import CharacterTable, character_rows_of
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tokenizers.base import Tokenizer


class Piece(NamedTuple):
    """Token ids of a text, and the row of each in the table of spellings (None without spellings), int32 (n,)."""

    ids: np.ndarray
    rows: np.ndarray | None

    def cut(self, start: int, stop: int) -> Piece:
        """Return the tokens from ``start`` to ``stop``."""
        return Piece(self.ids[start:stop], None if self.rows is None else self.rows[start:stop])


class QuestionPieces:
    """Encodes each distinct question, turn and passage of the examples once.

    Args:
        examples: the questions.
        tokenizer: gives the ids and the character offsets.
        max_question_tokens: longest question with its history. The question keeps its beginning; the history keeps
            its end, which is nearest to the question.
        history_turns: number of earlier turns (question and answer) that precede the question.
    """

    def __init__(
        self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, *, max_question_tokens: int, history_turns: int
    ) -> None:
        self._tokenizer = tokenizer
        self._capacity, self._turns = max_question_tokens, history_turns
        self._character_rows = character_rows_of(tokenizer)
        self._passages: dict[str, tuple[Piece, np.ndarray]] = {}
        distinct: dict[str, None] = {}
        for example in examples:
            distinct.update(dict.fromkeys([*self._history(example), example.question]))
        encoded = zip(distinct, tokenizer.encode_ids(list(distinct)), strict=True)
        self._texts = {text: self._piece(text, ids) for text, ids in encoded}

    def special(self, token_id: int) -> Piece:
        """Return a special token as a piece, with its own row in the table of spellings."""
        ids = np.array([token_id], dtype=np.int32)
        return Piece(ids, None if self._character_rows is None else ids)

    def passage(self, text: str) -> tuple[Piece, np.ndarray]:
        """Return a whole passage, and the character span of each of its tokens, int32, shape (n, 2)."""
        if text not in self._passages:
            encoding = self._tokenizer.encode(text)
            self._passages[text] = (self._piece(text, encoding.ids), encoding.offsets)
        return self._passages[text]

    def question(self, example: QuestionExample) -> tuple[list[Piece], bool]:
        """Return the tokens of the history and then of the question, and whether no token was cut."""
        own = self._texts[example.question]
        parts, complete = [own.cut(0, self._capacity)], len(own.ids) <= self._capacity
        left = self._capacity - len(parts[0].ids)
        for text in reversed(self._history(example)):
            whole = self._texts[text]
            parts.insert(0, whole.cut(max(0, len(whole.ids) - left), len(whole.ids)))
            complete = complete and len(whole.ids) <= left
            left -= len(parts[0].ids)
        return parts, complete

    def character_table(self, pieces: Iterable[Piece]) -> CharacterTable | None:
        """Return the table of spellings with the rows of all these tokens, or None without spellings."""
        if self._character_rows is None:
            return None
        return self._character_rows.character_table(piece.rows for piece in pieces if piece.rows is not None)

    def _history(self, example: QuestionExample) -> list[str]:
        recent = example.history[max(0, len(example.history) - self._turns) :]
        return [text for turn in recent for text in (turn.question, turn.answer)]

    def _piece(self, text: str, ids: np.ndarray) -> Piece:
        ids = ids.astype(np.int32, copy=False)
        return Piece(ids, None if self._character_rows is None else self._character_rows.rows(ids, text))

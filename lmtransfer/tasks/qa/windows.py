"""Questions and passages as [CLS] question [SEP] passage [SEP], with overlapping windows for long passages.

Shape legend: N examples, S sequences (the windows of all examples), T tokens of all sequences, n tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.encoded import (
    CharacterTable,
    EncodedExamples,
    character_rows_of,
    join_arrays,
    ragged_offsets,
    text_capacity,
)
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.targets import SpanTargets
from lmtransfer.tokenizers.base import Tokenizer

#: The tokens for no answer.
NOWHERE = (-1, -1)


class GoldTokens(NamedTuple):
    """The tokens of the answer to train on, as indices into the passage; -1 and -1 for no answer."""

    start: int
    end: int
    reachable: bool

    @classmethod
    def of(
        cls, example: QuestionExample, spans: np.ndarray, windows: Sequence[tuple[int, int]], *, longest: int
    ) -> GoldTokens:
        """Return the first gold answer that tokens of one window express exactly, or else tokens that cover the first.

        Args:
            example: the question; if it has another kind of answer, its first gold answer is the evidence.
            spans: character span of each passage token, shape (n, 2).
            windows: windows of the passage, each from its first token to one past its last.
        """
        gold_answers = example.answers or ()
        if not gold_answers or gold_answers[0].start is None:
            return cls(*NOWHERE, reachable=True)
        nearest: tuple[int, int] | None = None
        for gold in (
            gold_answers if example.kind is None else gold_answers[:1]
        ):  # another kind of answer: only its evidence
            match = _exact(gold, example.passage, spans)
            if match is None:
                continue
            tokens, exact = match
            answer = cls(*tokens, reachable=True)
            if exact and tokens[1] - tokens[0] < longest and any(map(answer.is_inside, windows)):
                return answer
            nearest = nearest or tokens
        return cls(*(nearest or NOWHERE), reachable=example.kind is not None)

    def is_inside(self, window: tuple[int, int]) -> bool:
        """Whether all tokens are in a window, which goes from its first token to one past its last."""
        return 0 <= window[0] <= self.start and self.end < window[1]


def _exact(gold: GoldSpan, passage: str, spans: np.ndarray) -> tuple[tuple[int, int], bool] | None:
    """Return a gold answer's tokens, and whether they express it exactly; None if it has no tokens."""
    if gold.start is None or gold.end is None:
        return None
    answer = _strip(passage, gold.start, gold.end)
    tokens = covering_tokens(spans, *answer)
    return None if tokens is None else (tokens, text_of_tokens(passage, spans, *tokens) == answer)


def covering_tokens(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token that share a character with a span of the text; None if no token does.

    Args:
        spans: character span of each token, shape (n, 2).
    """
    sharing = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1]))
    return (int(sharing[0]), int(sharing[-1])) if len(sharing) else None


def text_of_tokens(passage: str, spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return the characters from token ``start`` to token ``end`` inclusive, without surrounding white space."""
    return _strip(passage, int(spans[start, 0]), int(spans[end, 1]))


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


#: Default number of tokens between the starts of consecutive windows; smaller in short windows.
STRIDE = 128
_NUM_SPECIALS = 3


class TextTokens(NamedTuple):
    """Token ids of a text, and the row of each in the table of spellings (None without spellings), int32 (n,)."""

    ids: np.ndarray
    rows: np.ndarray | None

    def cut(self, start: int, stop: int) -> TextTokens:
        """Return the tokens from ``start`` to ``stop``."""
        return TextTokens(self.ids[start:stop], None if self.rows is None else self.rows[start:stop])


class QuestionPieces:
    """The tokens of the examples' texts; each distinct question, turn and passage is encoded once.

    Args:
        max_question_tokens: maximum length of a question with its history. The question keeps its beginning; the
            history keeps its end, nearest to the question.
    """

    def __init__(
        self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, *, max_question_tokens: int, history_turns: int
    ) -> None:
        self._tokenizer = tokenizer
        self._capacity, self._turns = max_question_tokens, history_turns
        self._character_rows = character_rows_of(tokenizer)
        self._passages: dict[str, tuple[TextTokens, np.ndarray]] = {}
        distinct: dict[str, None] = {}
        for example in examples:
            distinct.update(dict.fromkeys([*self._history(example), example.question]))
        encoded = zip(distinct, tokenizer.encode_ids(list(distinct)), strict=True)
        self._texts = {text: self._piece(text, ids) for text, ids in encoded}

    def special(self, token_id: int) -> TextTokens:
        """Return a special token as a piece, with its own row in the table of spellings."""
        ids = np.array([token_id], dtype=np.int32)
        return TextTokens(ids, None if self._character_rows is None else ids)

    def passage(self, text: str) -> tuple[TextTokens, np.ndarray]:
        """Return a whole passage, and the character span of each of its tokens, int32, shape (n, 2)."""
        if text not in self._passages:
            encoding = self._tokenizer.encode(text)
            self._passages[text] = (self._piece(text, encoding.ids), encoding.offsets)
        return self._passages[text]

    def question(self, example: QuestionExample) -> tuple[list[TextTokens], bool]:
        """Return the tokens of the history followed by the question, and whether all tokens were kept."""
        own = self._texts[example.question]
        parts, complete = [own.cut(0, self._capacity)], len(own.ids) <= self._capacity
        left = self._capacity - len(parts[0].ids)
        for text in reversed(self._history(example)):
            whole = self._texts[text]
            parts.insert(0, whole.cut(max(0, len(whole.ids) - left), len(whole.ids)))
            complete = complete and len(whole.ids) <= left
            left -= len(parts[0].ids)
        return parts, complete

    def character_table(self, pieces: Iterable[TextTokens]) -> CharacterTable | None:
        """Return the table of spellings with the rows of all these tokens; None without spellings."""
        if self._character_rows is None:
            return None
        return self._character_rows.character_table(piece.rows for piece in pieces if piece.rows is not None)

    def _history(self, example: QuestionExample) -> list[str]:
        recent = example.history[max(0, len(example.history) - self._turns) :]
        return [text for turn in recent for text in (turn.question, turn.answer)]

    def _piece(self, text: str, ids: np.ndarray) -> TextTokens:
        ids = ids.astype(np.int32, copy=False)
        return TextTokens(ids, None if self._character_rows is None else self._character_rows.rows(ids, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedQuestion(QuestionExample):
    """A question with the token positions of its passage and windows.

    Attributes:
        spans: character span of each token of the passage, int32, shape (n, 2); shared by questions about the same
            passage.
        window_starts: first passage token of each window, in the order of the example's sequences.
    """

    spans: np.ndarray = field(compare=False, repr=False)
    window_starts: tuple[int, ...] = field(repr=False)


def encode_questions(
    examples: Sequence[QuestionExample],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    num_segments: int,
    stride: int = STRIDE,
    max_question_tokens: int = 64,
    history_turns: int = 0,
    max_answer_tokens: int | None = None,
) -> EncodedExamples:
    """Encode questions as BERT does (Devlin et al. 2019, section 4.2, and run_squad.py of google-research/bert).

    Each distinct passage is encoded once. An answer's tokens are those that share a character with it. The target is
    the first gold answer that tokens of one window express exactly. If there is none, the target is the tokens that
    cover the first answer, and the example is unreachable. Another kind of answer is the target of the windows that
    contain its evidence, or of all windows if no window contains the evidence.

    Differences from run_squad.py: windows overlap by at least half, even if they are short; a question takes at most
    half of the space; and answers begin and end exactly where the annotator's do, by characters rather than words.

    Args:
        max_answer_tokens: maximum length of an answer; a longer gold answer is unreachable. None for any length.
    """
    most = text_capacity(_NUM_SPECIALS, max_length=max_length)
    if min(stride, max_question_tokens) < 1 or history_turns < 0:
        raise ValueError(
            f"stride={stride}, max_question_tokens={max_question_tokens}, history_turns={history_turns}: leave no "
            "space for a passage"
        )
    question_capacity = min(max_question_tokens, most // 2)
    pieces = QuestionPieces(examples, tokenizer, max_question_tokens=question_capacity, history_turns=history_turns)
    sequences = _Sequences(cls=pieces.special(tokenizer.cls_id), sep=pieces.special(tokenizer.sep_id))
    questions: list[WindowedQuestion] = []
    unreachable: list[str] = []
    num_truncated = 0
    for number, example in enumerate(examples):
        passage, spans = pieces.passage(example.passage)
        question, complete = pieces.question(example)
        num_truncated += not complete
        capacity = max_length - sum(len(part.ids) for part in question) - _NUM_SPECIALS
        starts = window_starts(len(passage.ids), capacity=capacity, stride=stride)
        windows = [(start, min(start + capacity, len(passage.ids))) for start in starts]
        answer = GoldTokens.of(example, spans, windows, longest=max_answer_tokens or capacity)
        if not answer.reachable:
            unreachable.append(example.id)
        sequences.add(number, question, passage, windows, answer, example.kind)
        questions.append(_add_windows(example, spans, starts))

    sizes = np.array(sequences.lengths, dtype=np.int64).reshape(-1, 2)
    return EncodedExamples(
        examples=tuple(questions),
        owners=np.array(sequences.owners, dtype=np.int64),
        tokens_T=join_arrays(piece.ids for piece in sequences.pieces),
        segments_T=np.repeat(np.tile(np.array([0, min(1, num_segments - 1)], np.int8), len(sizes)), sizes.ravel()),
        offsets=ragged_offsets(sizes.sum(1)),
        targets=SpanTargets(*np.array(sequences.targets, dtype=np.int64).reshape(-1, 5).T.copy()),
        target_offsets=np.arange(len(sizes) + 1),
        num_truncated=num_truncated,
        character_table=pieces.character_table(sequences.pieces),
        unreachable_ids=tuple(unreachable),
    )


@dataclass(slots=True)
class _Sequences:
    """The growing list of sequences for all questions, one per window.

    Attributes:
        lengths: lengths of the question with its two special tokens, and of the passage with its one.
    """

    cls: TextTokens
    sep: TextTokens
    owners: list[int] = field(default_factory=list)
    pieces: list[TextTokens] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    targets: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self,
        number: int,
        question: Sequence[TextTokens],
        passage: TextTokens,
        windows: Sequence[tuple[int, int]],
        answer: GoldTokens,
        kind: int | None,
    ) -> None:
        """Add the windows of one question, with the answer in the windows that contain it.

        Another kind of answer is the target of the windows that contain its evidence, or of all windows if none does.
        """
        first = sum(len(part.ids) for part in question) + 2
        evidence = [answer.is_inside(window) for window in windows]
        for (start, stop), here in zip(windows, evidence, strict=True):
            self.owners.append(number)
            self.pieces += [self.cls, *question, self.sep, passage.cut(start, stop), self.sep]
            self.lengths.append((first, stop - start + 1))
            span = (first + answer.start - start, first + answer.end - start) if here else NOWHERE
            answer_kind = -1
            if kind is not None:
                span, answer_kind = NOWHERE, kind if here or not any(evidence) else -1
            self.targets.append((*span, answer_kind, first, first + stop - start))


def window_starts(num_tokens: int, *, capacity: int, stride: int) -> range:
    """Return the first passage token of each window; the last window is the first to reach the passage's end.

    Windows overlap by at least half, so that an answer of up to half a window is complete in one of them.
    """
    step = min(stride, max(1, capacity // 2))
    num_further = max(0, -(-(num_tokens - capacity) // step))
    return range(0, step * num_further + 1, step)


def _add_windows(example: QuestionExample, spans: np.ndarray, starts: Iterable[int]) -> WindowedQuestion:
    values = {part.name: getattr(example, part.name) for part in fields(QuestionExample)}
    return WindowedQuestion(**values, spans=spans, window_starts=tuple(starts))

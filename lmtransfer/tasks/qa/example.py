"""Questions about passages, and their encoding as [CLS] question [SEP] passage [SEP], with overlapping windows.

Shape legend: n tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.encoded import EncodedExamples, TokenRows, ragged_offsets, text_capacity
from lmtransfer.tasks.heads import SpanTargets
from lmtransfer.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class GoldSpan:
    """An annotator's answer."""

    text: str  # the text used for scoring
    start: int | None = None  # first character in the passage; None if the answer is not a span of it (yes, no)
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a dialogue."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """One question.

    Attributes:
        answers: gold answers, the one to train on first; empty if the passage contains none; None if hidden.
        history: earlier turns of the dialogue, oldest first.
        kind: index in the task's ``labels`` of the kind of an answer that is not a span (yes, no, unknown); None for a
            span.
        metadata: names and values of additional gold labels in the source, such as QuAC's followup.
    """

    id: str
    question: str
    passage: str
    answers: tuple[GoldSpan, ...] | None = None
    history: tuple[Turn, ...] = ()
    kind: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def has_gold(self) -> bool:
        """Whether the answer is known."""
        return self.answers is not None

    @property
    def content(self) -> tuple[str, ...]:
        """Question, passage and earlier turns of the dialogue."""
        return (self.question, self.passage, *(text for turn in self.history for text in (turn.question, turn.answer)))

    @property
    def class_index(self) -> int:
        """0 for a span, 1 for no answer, 2 and above for other kinds of answer."""
        if self.kind is not None:
            return 2 + self.kind
        return 0 if self.answers is None or self.answers else 1

    @property
    def group(self) -> str:
        """The passage, which all questions of a dialogue share."""
        return self.passage


#: Default number of tokens between the starts of consecutive windows; fewer if windows are short.
STRIDE = 128
_NUM_SPECIALS = 3
#: The first and last token for no answer.
_NOWHERE = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedQuestion(QuestionExample):
    """A question with the character spans of its passage's tokens and the positions of its windows.

    Attributes:
        spans: character span of each token of the passage, int32, shape (n, 2); shared by all questions about the
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

    Each distinct passage is encoded once. The tokens of an answer are those that share a character with it. The target
    is the first gold answer that the tokens of one window represent exactly. If there is no such answer, the target is
    the tokens that cover the first answer, and the example is unreachable. An answer of another kind is the target of
    the windows that contain its evidence, or of all windows if none of them does.

    Differences from run_squad.py: windows overlap by at least half, even if they are short; a question takes up at most
    half of the space; and answers begin and end exactly where the annotator's do, at characters rather than words.

    Args:
        max_answer_tokens: maximum length of an answer; a longer gold answer is unreachable. None for any length.
    """
    most = text_capacity(_NUM_SPECIALS, max_length=max_length)
    if min(stride, max_question_tokens) < 1 or history_turns < 0:
        raise ValueError(
            f"stride={stride}, max_question_tokens={max_question_tokens}, history_turns={history_turns} leave no room "
            "for a passage"
        )
    pieces = QuestionPieces(
        examples, tokenizer, max_question_tokens=min(max_question_tokens, most // 2), history_turns=history_turns
    )
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    questions: list[WindowedQuestion] = []
    owners: list[int] = []
    tokens: list[np.ndarray] = []
    sizes: list[tuple[int, int]] = []  # of the question with two special tokens, and of the passage with one
    targets: list[tuple[int, ...]] = []
    unreachable: list[str] = []
    num_truncated = 0
    for number, example in enumerate(examples):
        passage, spans = pieces.passage(example.passage)
        question, complete = pieces.question(example)
        num_truncated += not complete
        capacity = max_length - len(question) - _NUM_SPECIALS
        starts = window_starts(len(passage), capacity=capacity, stride=stride)
        windows = [(start, min(start + capacity, len(passage))) for start in starts]
        answer = GoldTokens.of(example, spans, windows, longest=max_answer_tokens or capacity)
        if not answer.reachable:
            unreachable.append(example.id)
        first = len(question) + 2
        evidence = [answer.is_inside(window) for window in windows]
        for (start, stop), here in zip(windows, evidence, strict=True):
            owners.append(number)
            tokens += [cls, question, sep, passage[start:stop], sep]
            sizes.append((first, stop - start + 1))
            span = (first + answer.start - start, first + answer.end - start) if here else _NOWHERE
            kind = -1
            if example.kind is not None:
                span, kind = _NOWHERE, example.kind if here or not any(evidence) else -1
            targets.append((*span, kind, first, first + stop - start))
        values = {part.name: getattr(example, part.name) for part in fields(QuestionExample)}
        questions.append(WindowedQuestion(**values, spans=spans, window_starts=tuple(starts)))
    sizes_S2 = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    tokens_T, character_table = pieces.token_rows.join(tokens)
    return EncodedExamples(
        examples=tuple(questions),
        owners=np.array(owners, dtype=np.int64),
        tokens_T=tokens_T,
        segments_T=np.repeat(np.tile(np.array([0, min(1, num_segments - 1)], np.int8), len(sizes)), sizes_S2.ravel()),
        offsets=ragged_offsets(sizes_S2.sum(1)),
        targets=SpanTargets(*np.array(targets, dtype=np.int64).reshape(-1, 5).T.copy()),
        target_offsets=np.arange(len(sizes) + 1),
        num_truncated=num_truncated,
        character_table=character_table,
        unreachable_ids=tuple(unreachable),
    )


def window_starts(num_tokens: int, *, capacity: int, stride: int) -> range:
    """Return the first passage token of each window; the last window is the first to reach the end of the passage.

    Windows overlap by at least half, so that an answer of up to half a window is contained whole in one of them.
    """
    step = min(stride, max(1, capacity // 2))
    num_further = max(0, -(-(num_tokens - capacity) // step))
    return range(0, step * num_further + 1, step)


class QuestionPieces:
    """Encodes each distinct question, turn and passage of the examples once, as rows of ``TokenRows``.

    Args:
        max_question_tokens: maximum length of a question with its history. A long question is cut at the end, and the
            history at the beginning.
    """

    def __init__(
        self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, *, max_question_tokens: int, history_turns: int
    ) -> None:
        self.token_rows = TokenRows(tokenizer)
        self._tokenizer, self._capacity, self._turns = tokenizer, max_question_tokens, history_turns
        self._passages: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        texts = list(
            dict.fromkeys(text for example in examples for text in (*self._history(example), example.question))
        )
        encoded = zip(texts, tokenizer.encode_ids(texts), strict=True)
        self._texts = {text: self.token_rows.rows(ids, text) for text, ids in encoded}

    def passage(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a whole passage, and the character span of each token, int32, shape (n, 2)."""
        if text not in self._passages:
            encoding = self._tokenizer.encode(text)
            self._passages[text] = (self.token_rows.rows(encoding.ids, text), encoding.offsets)
        return self._passages[text]

    def question(self, example: QuestionExample) -> tuple[np.ndarray, bool]:
        """Return the tokens of the history followed by the question, and whether all tokens were kept."""
        history = np.concatenate([np.zeros(0, np.int32), *(self._texts[text] for text in self._history(example))])
        own = self._texts[example.question]
        left = max(0, self._capacity - len(own))
        kept = np.concatenate([history[max(0, len(history) - left) :], own[: self._capacity]])
        return kept, len(kept) == len(history) + len(own)

    def _history(self, example: QuestionExample) -> list[str]:
        recent = example.history[max(0, len(example.history) - self._turns) :]
        return [text for turn in recent for text in (turn.question, turn.answer)]


class GoldTokens(NamedTuple):
    """The first and last token of the answer to train on, as positions in the passage; -1 for no answer."""

    start: int
    end: int
    reachable: bool

    @classmethod
    def of(
        cls, example: QuestionExample, spans: np.ndarray, windows: Sequence[tuple[int, int]], *, longest: int
    ) -> GoldTokens:
        """Return the first gold answer that tokens of one window match exactly, or else tokens that cover the first.

        Args:
            example: the question; if its answer is of another kind, its first gold answer is the evidence.
            spans: character span of each passage token, shape (n, 2).
            windows: the first token of each window, and one past its last token.
        """
        gold_answers = example.answers or ()
        if not gold_answers or gold_answers[0].start is None:
            return cls(*_NOWHERE, reachable=True)
        nearest: tuple[int, int] | None = None
        for gold in gold_answers if example.kind is None else gold_answers[:1]:
            match = _exact(gold, example.passage, spans)
            if match is None:
                continue
            tokens, exact = match
            answer = cls(*tokens, reachable=True)
            if exact and tokens[1] - tokens[0] < longest and any(map(answer.is_inside, windows)):
                return answer
            nearest = nearest or tokens
        return cls(*(nearest or _NOWHERE), reachable=example.kind is not None)

    def is_inside(self, window: tuple[int, int]) -> bool:
        """Whether all tokens of the answer are in a window (first token, one past the last token)."""
        return 0 <= window[0] <= self.start and self.end < window[1]


def _exact(gold: GoldSpan, passage: str, spans: np.ndarray) -> tuple[tuple[int, int], bool] | None:
    """Return a gold answer's tokens, and whether they match it exactly; None if it has no tokens."""
    if gold.start is None or gold.end is None:
        return None
    answer = _strip(passage, gold.start, gold.end)
    tokens = covering_tokens(spans, *answer)
    return None if tokens is None else (tokens, text_of_tokens(passage, spans, *tokens) == answer)


def covering_tokens(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token that share a character with a span of the text; None if there are none.

    Args:
        spans: character span of each token, shape (n, 2).
    """
    sharing = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1]))
    return (int(sharing[0]), int(sharing[-1])) if len(sharing) else None


def text_of_tokens(passage: str, spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return the character span of tokens ``start`` to ``end`` (inclusive), without surrounding white space."""
    return _strip(passage, int(spans[start, 0]), int(spans[end, 1]))


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())

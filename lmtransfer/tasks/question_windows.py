"""Questions with their passages as [CLS] question [SEP] passage [SEP], a long passage in overlapping windows.

Shape legend: N examples, S sequences (the windows of all of them), T tokens of all sequences, n tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.encoded import EncodedExamples, Spelling, Targets, ragged_offsets
from lmtransfer.tasks.question_example import GoldSpan, QuestionExample
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.tokenizers.characters import spell

_NUM_SPECIALS = 3
_NOWHERE = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedQuestion(QuestionExample):
    """A question, and where the tokens of its passage and of its windows are.

    Attributes:
        spans: character span of each token of the passage, int32, shape (n, 2); questions about one passage share it.
        window_starts: the passage's token that each window begins with, in the order of the example's sequences.
    """

    spans: np.ndarray = field(compare=False, repr=False)
    window_starts: tuple[int, ...] = field(repr=False)


class _Text(NamedTuple):
    """Token ids of a text, and the row of each in the table of spellings (None where nothing is spelt)."""

    ids: np.ndarray
    rows: np.ndarray | None


def encode_questions(
    examples: Sequence[QuestionExample],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    num_segments: int,
    stride: int = 128,
    max_question_tokens: int = 64,
    history_turns: int = 0,
    max_answer_tokens: int | None = None,
) -> EncodedExamples:
    """Encode questions as BERT does (Devlin et al. 2019, section 4.2, and run_squad.py of google-research/bert).

    Each distinct passage is encoded once. A target has the columns [start, end, kind, first, stop] (see ``Targets``).
    The answer's tokens are those that share a character with it: of several gold answers the first that can be given
    exactly; where none can, the nearest to the first one is trained on, and the example is ``unreachable``. An answer
    of another kind belongs to the windows that show the evidence for it, or, where that is not known, to all of them.

    Where we differ from run_squad.py: windows overlap by half at least, however short they are; a question has half
    the room at most; and the answer begins and ends where the annotator's does, by characters, not by words.

    Args:
        examples: N questions.
        tokenizer: gives the ids and the character offsets.
        max_length: longest sequence in tokens, specials included.
        num_segments: how many segment ids the encoder tells apart; the passage has 1, or 0 where there is one only.
        stride: tokens from the start of a window to that of the next.
        max_question_tokens: longest question with its history. The question keeps its beginning; the history keeps
            its end, the turns nearest to the question.
        history_turns: how many earlier turns (question and answer) precede the question.
        max_answer_tokens: longest answer that is ever given; a longer one is unreachable. None: any length.

    Raises:
        ValueError: a number that leaves no room for a passage.
    """
    if max_length <= _NUM_SPECIALS or min(stride, max_question_tokens) < 1 or history_turns < 0:
        raise ValueError(
            f"max_length={max_length}, stride={stride}, max_question_tokens={max_question_tokens}, "
            f"history_turns={history_turns}: leave no room for a passage"
        )
    room_for_question = min(max_question_tokens, (max_length - _NUM_SPECIALS) // 2)
    speller = _Speller(tokenizer) if isinstance(tokenizer, CharacterTokenizer) else None
    texts = _encode_texts(_question_texts(examples, history_turns), tokenizer, speller)
    passages: dict[str, tuple[_Text, np.ndarray]] = {}

    kept: list[WindowedQuestion] = []
    unreachable: list[str] = []
    num_truncated = 0
    owners: list[int] = []
    pieces: list[_Text] = []
    lengths: list[tuple[int, int]] = []  # of the question with its two specials, of the passage with its one
    targets: list[tuple[int, ...]] = []
    cls, sep = _special(tokenizer.cls_id, speller), _special(tokenizer.sep_id, speller)
    for number, example in enumerate(examples):
        if example.passage not in passages:
            encoding = tokenizer.encode(example.passage)
            passages[example.passage] = (_spelt(example.passage, encoding.ids, speller), encoding.offsets)
        passage, spans = passages[example.passage]
        question, complete = _question(example, texts, room_for_question, history_turns)
        num_truncated += not complete
        first = sum(len(part.ids) for part in question) + 2
        room = max_length - first - 1
        starts = window_starts(len(passage.ids), room=room, stride=stride)
        windows = [(start, min(start + room, len(passage.ids))) for start in starts]
        answer = _GoldTokens.of(example, spans, windows, longest=max_answer_tokens or room)
        if not answer.reachable:
            unreachable.append(example.id)
        shown = [answer.inside(window) for window in windows]
        for (start, stop), here in zip(windows, shown, strict=True):
            owners.append(number)
            pieces += [cls, *question, sep, _cut(passage, start, stop), sep]
            lengths.append((first, stop - start + 1))
            given = (first + answer.start - start, first + answer.end - start) if here else _NOWHERE
            kind = -1
            if example.kind is not None:
                given, kind = _NOWHERE, example.kind if here or not any(shown) else -1
            targets.append((*given, kind, first, first + stop - start))
        kept.append(_windowed(example, spans, starts))

    sizes = np.array(lengths, dtype=np.int64).reshape(-1, 2)
    return EncodedExamples(
        examples=tuple(kept),
        owners=np.array(owners, dtype=np.int64),
        tokens_T=_joined(piece.ids for piece in pieces),
        segments_T=np.repeat(np.tile(np.array([0, min(1, num_segments - 1)], np.int8), len(sizes)), sizes.ravel()),
        offsets=ragged_offsets(sizes.sum(1)),
        targets=Targets(np.array(targets, dtype=np.int64).reshape(-1, 5), np.arange(len(targets) + 1)),
        num_truncated=num_truncated,
        spelling=None
        if speller is None
        else speller.spelling(piece.rows for piece in pieces if piece.rows is not None),
        unreachable=tuple(unreachable),
    )


def window_starts(num_tokens: int, *, room: int, stride: int) -> range:
    """The token of the passage that each window begins with; the last window is the first that reaches the end.

    Windows overlap by half at least, so that an answer of up to half a window is whole in one of them.

    Args:
        num_tokens: of the passage.
        room: tokens of the passage that a window has room for.
        stride: tokens from the start of a window to that of the next, at most.
    """
    step = min(stride, max(1, room // 2))
    num_further = max(0, -(-(num_tokens - room) // step))
    return range(0, step * num_further + 1, step)


def covering_tokens(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that share a character with a stretch of text; None where none does.

    Args:
        spans: character span of each token, shape (n, 2).
        start: first character.
        end: one past the last character.
    """
    sharing = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1]))
    return (int(sharing[0]), int(sharing[-1])) if len(sharing) else None


def text_of_tokens(passage: str, spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The characters from the first of token ``start`` to the last of token ``end``, without white space at the edges.

    Args:
        passage: the text.
        spans: character span of each of its tokens, shape (n, 2).
        start: first token.
        end: last token.

    Returns:
        First character, and one past the last.
    """
    return _stripped(passage, int(spans[start, 0]), int(spans[end, 1]))


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


class _GoldTokens(NamedTuple):
    """The tokens of the answer to train on, counted in the passage; -1 and -1 for none."""

    start: int
    end: int
    reachable: bool

    @classmethod
    def of(
        cls, example: QuestionExample, spans: np.ndarray, windows: Sequence[tuple[int, int]], *, longest: int
    ) -> _GoldTokens:
        golds = example.answers or ()
        if not golds or golds[0].start is None:
            return cls(*_NOWHERE, reachable=True)
        nearest: tuple[int, int] | None = None
        for gold in golds if example.kind is None else golds[:1]:  # of another kind: the evidence
            found = _exact(gold, example.passage, spans)
            if found is None:
                continue
            tokens, exact = found
            answer = cls(*tokens, reachable=True)
            if exact and tokens[1] - tokens[0] < longest and any(map(answer.inside, windows)):
                return answer
            nearest = nearest or tokens
        return cls(*(nearest or _NOWHERE), reachable=example.kind is not None)

    def inside(self, window: tuple[int, int]) -> bool:
        """Whether these tokens are all in a window, from its first to one past its last."""
        return 0 <= window[0] <= self.start and self.end < window[1]


def _exact(gold: GoldSpan, passage: str, spans: np.ndarray) -> tuple[tuple[int, int], bool] | None:
    """The tokens of a gold answer, and whether they are exactly that; None where it has no tokens."""
    if gold.start is None or gold.end is None:
        return None
    wanted = _stripped(passage, gold.start, gold.end)
    tokens = covering_tokens(spans, *wanted)
    return None if tokens is None else (tokens, text_of_tokens(passage, spans, *tokens) == wanted)


class _Speller:
    """A table of spellings that grows by each word outside the vocabulary."""

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer
        self._added: dict[str, int] = {}

    def rows(self, text: str, ids: np.ndarray) -> np.ndarray:
        """The row of each token of a whole text, int32."""
        rows = ids.copy()
        unknown = np.flatnonzero(ids == self._tokenizer.unk_id)
        if len(unknown):
            size, added = self._tokenizer.vocab_size, self._added
            words = self._tokenizer.unknown_words(text)
            rows[unknown] = [added.setdefault(word, size + len(added)) for word in words]
        return rows

    def spelling(self, rows: Iterable[np.ndarray]) -> Spelling:
        """The table as it is now, for all tokens."""
        return Spelling(np.concatenate([self._tokenizer.characters, spell(list(self._added))]), _joined(rows))


def _question_texts(examples: Iterable[QuestionExample], history_turns: int) -> list[str]:
    """Every distinct question, and what precedes one."""
    distinct: dict[str, None] = {}
    for example in examples:
        distinct.update(dict.fromkeys([*_history(example, history_turns), example.question]))
    return list(distinct)


def _history(example: QuestionExample, turns: int) -> list[str]:
    recent = example.history[max(0, len(example.history) - turns) :]
    return [text for turn in recent for text in (turn.question, turn.answer)]


def _encode_texts(texts: list[str], tokenizer: Tokenizer, speller: _Speller | None) -> dict[str, _Text]:
    encoded = zip(texts, tokenizer.encode_ids(texts), strict=True)
    return {text: _spelt(text, ids, speller) for text, ids in encoded}


def _question(
    example: QuestionExample, texts: dict[str, _Text], room: int, history_turns: int
) -> tuple[list[_Text], bool]:
    """The question's tokens with those of its history before them, and whether none were cut."""
    own = texts[example.question]
    parts, complete = [_cut(own, 0, room)], len(own.ids) <= room
    left = room - len(parts[0].ids)
    for text in reversed(_history(example, history_turns)):
        whole = texts[text]
        parts.insert(0, _cut(whole, max(0, len(whole.ids) - left), len(whole.ids)))
        complete = complete and len(whole.ids) <= left
        left -= len(parts[0].ids)
    return parts, complete


def _spelt(text: str, ids: np.ndarray, speller: _Speller | None) -> _Text:
    ids = ids.astype(np.int32, copy=False)
    return _Text(ids, None if speller is None else speller.rows(text, ids))


def _special(token_id: int, speller: _Speller | None) -> _Text:
    ids = np.array([token_id], dtype=np.int32)
    return _Text(ids, None if speller is None else ids)


def _cut(text: _Text, start: int, stop: int) -> _Text:
    return _Text(text.ids[start:stop], None if text.rows is None else text.rows[start:stop])


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *arrays])


def _windowed(example: QuestionExample, spans: np.ndarray, starts: Iterable[int]) -> WindowedQuestion:
    asked = {part.name: getattr(example, part.name) for part in fields(QuestionExample)}
    return WindowedQuestion(**asked, spans=spans, window_starts=tuple(starts))

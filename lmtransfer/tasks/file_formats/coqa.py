"""CoQA's files: conversations about a story, with free-form answers and the evidence for each answer.

Source: Reddy et al., "CoQA: A Conversational Question Answering Challenge" (2019), https://stanfordnlp.github.io/coqa.
Each file is one JSON document: ``data`` is a list of stories with ``story``, ``questions`` (``turn_id``,
``input_text``), ``answers`` (also ``span_start``, ``span_end``, ``span_text``) and, for evaluation,
``additional_answers`` by other people.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode, load_json
from lmtransfer.tasks.file_formats.squad import BadAnswersPolicy, QuestionFile, Questions
from lmtransfer.tasks.metrics.question_answering import normalize_answer
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample, Turn

_WORD = re.compile(r"\S+")
_PART = re.compile(r"[^\W_]+")
_MAX_PARTS = 8

KINDS: Final = ("yes", "no", "unknown")
_UNKNOWN = "unknown"


class _Word(NamedTuple):
    """A word delimited by white space, and the pieces into which it can be cut, with their normalized words."""

    words: tuple[str, ...]
    all_words: frozenset[str]
    heads: tuple[tuple[int, tuple[str, ...]], ...]  # pieces that end with the word, by first character
    tails: tuple[tuple[int, tuple[str, ...]], ...]  # pieces that start with the word, by one past the last character
    pieces: tuple[tuple[int, int, tuple[str, ...]], ...]  # all pieces, by first character and one past the last


def closest_span(text: str, answer: str) -> tuple[int, int] | None:
    """Find the span with the highest word F1 against an answer.

    Spans begin and end at the edges of words delimited by white space and, inside a word, at the edges of runs of
    letters and digits, so that *Bob* is found in *Bob's* and *brown* in *brown-haired*. A word of more than eight such
    runs is cut only at the first and the last run. F1 is ``token_f1`` (lower case, no punctuation or articles). Among
    spans with equal F1, the shortest wins, then the first. For a short answer, the time is linear in the length of the
    text; for a long answer, it grows with the product of both lengths. Reddy et al. (2019) define the best extractive
    answer in this way.

    Returns:
        First character, and one past the last; None if text and answer have no word in common.
    """
    answer_words = Counter(normalize_answer(answer).split())
    num_answer_words = answer_words.total()
    words = [(match.start(), _cut(match.group())) for match in _WORD.finditer(text)]
    best_key: tuple[float, int, int] = (0.0, 0, 0)  # F1, and the keys that break ties
    best: tuple[int, int] | None = None

    def offer(start: int, end: int, common: int, size: int) -> None:
        nonlocal best_key, best
        key = (2 * common / (size + num_answer_words), start - end, -start)
        if common and key > best_key:
            best_key, best = key, (start, end)

    # A span whose first or last piece has no word of the answer is no better than the shorter span without that piece.
    # With w answer words, a span of n words has F1 of at most 2 w / (n + w), so a span of more than w * w words is
    # never better than a single word.
    for place, (begin, first) in enumerate(words):
        if answer_words.keys().isdisjoint(first.all_words):
            continue
        for start, end, part in first.pieces:
            offer(begin + start, begin + end, _take(answer_words.copy(), part), len(part))
        for start, head in first.heads:
            if answer_words.keys().isdisjoint(head):
                continue
            left = answer_words.copy()
            common, size = _take(left, head), len(head)
            for further in range(place + 1, len(words)):
                offset, last = words[further]
                if common == num_answer_words or 2 * num_answer_words / (size + 1 + num_answer_words) < best_key[0]:
                    break
                if not answer_words.keys().isdisjoint(last.all_words):
                    for end, tail in last.tails:
                        if not answer_words.keys().isdisjoint(tail):
                            offer(begin + start, offset + end, common + _take(left.copy(), tail), size + len(tail))
                    common += _take(left, last.words)
                size += len(last.words)
    return best


def _take(left: Counter[str], words: tuple[str, ...]) -> int:
    """Remove words from a multiset, and return how many of them the multiset contained."""
    taken = 0
    for word in words:
        if left[word] > 0:
            left[word] -= 1
            taken += 1
    return taken


@lru_cache(maxsize=1 << 14)
def _cut(word: str) -> _Word:
    parts = [part.span() for part in _PART.finditer(word)]
    inner = parts if len(parts) <= _MAX_PARTS else [parts[0], parts[-1]]
    starts = sorted({0, *(start for start, _ in inner)})
    ends = sorted({len(word), *(end for _, end in inner)})
    pieces = tuple(
        (start, end, tuple(normalize_answer(word[start:end]).split()))
        for start in starts
        for end in ends
        if start < end
    )
    return _Word(
        words=next(words for start, end, words in pieces if (start, end) == (0, len(word))),
        all_words=frozenset(token for *_, words in pieces for token in words),
        heads=tuple((start, words) for start, end, words in pieces if end == len(word)),
        tails=tuple((end, words) for start, end, words in pieces if start == 0),
        pieces=pieces,
    )


class _Answer(NamedTuple):
    """A parsed answer."""

    gold: GoldSpan | None  # None without a text; without a span if the evidence is bad or missing
    kind: int | None
    text: str


def read_coqa(path: Path, *, bad_answers: BadAnswersPolicy = "refuse", kinds: Sequence[str] = KINDS) -> QuestionFile:
    """Read a file of conversations.

    - The id is ``<story's id>:<turn_id>``.
    - The references are the free-form answers (``input_text``), first from ``answers``, then from
      ``additional_answers`` in order. The training target is a span: the part of the evidence (``span_start`` to
      ``span_end``, without surrounding white space) that is closest to the free-form answer (see ``closest_span``), or
      the whole evidence if they have no word in common.
    - Yes, no and unknown, compared as in the official script, are other kinds of answer. The span of yes and no is the
      whole evidence (no span if ``span_start`` is -1); unknown has no span. Such answers in ``additional_answers`` have
      no span.
    - The history is all earlier turns with their free-form answers, whose texts are empty if hidden.
    - ``source``, the domain by which the official script groups questions, is in the metadata.

    Args:
        bad_answers: what to do with evidence that is not where the file says; see ``Questions``. Skipped answers come
            last; a skipped answer of another kind loses only its evidence.
        kinds: names of the other kinds of answer; an example's ``kind`` is an index into this list.
    """
    questions = Questions(path, bad_answers)
    for conversation in load_json(path).field("data").items():
        story_id = conversation.field("id").name()
        story = conversation.field("story").nonblank_text()
        source = conversation.get("source")
        metadata = () if source is None else (("source", source.text()),)
        question_nodes = conversation.field("questions").items()
        turns = [node.field("turn_id").number() for node in question_nodes]
        by_person = _answers_by_person(conversation, turns)
        history: tuple[Turn, ...] = ()
        for place, (question_node, turn) in enumerate(zip(question_nodes, turns, strict=True)):
            question_id = questions.begin(question_node, f"{story_id}:{turn}")
            question = question_node.field("input_text").nonblank_text()
            answers = [_answer(person[place], question_id, story, kinds, questions) for person in by_person]
            first = answers[0] if answers else None
            questions.examples.append(
                QuestionExample(
                    question_id,
                    question,
                    story,
                    _golds(answers, question_id, questions) if answers else None,
                    history,
                    None if first is None else first.kind,
                    metadata,
                )
            )
            history = (*history, Turn(question, "" if first is None else first.text))
    return questions.as_file()


def _answers_by_person(conversation: JsonNode, turns: list[int]) -> list[list[JsonNode]]:
    """Return each person's answers, one per turn; empty if they are hidden."""
    additional = conversation.get("additional_answers")
    first = conversation.get("answers")
    if first is None and additional is None:
        return []
    people = [conversation.field("answers"), *(node for _, node in (additional.fields() if additional else []))]
    by_person = []
    for person in people:
        answers = person.items()
        answer_turns = [answer.field("turn_id").number() for answer in answers]
        if answer_turns != turns:
            raise DataError(
                f"{person.where}: the questions have turn_id {_few(turns)}, but the answers have {_few(answer_turns)}; "
                "each question needs one answer, in the same order"
            )
        by_person.append(answers)
    return by_person


def _few(turns: list[int]) -> str:
    return ", ".join(map(str, turns[:30])) + (f" ... ({len(turns)})" if len(turns) > 30 else "")


def _answer(node: JsonNode, question_id: str, story: str, kinds: Sequence[str], questions: Questions) -> _Answer:
    node.question = question_id
    questions.num_answers += 1
    text = node.field("input_text").text()
    start, end = node.field("span_start").number(), node.field("span_end").number()
    evidence = node.field("span_text").text()
    if not text.strip():
        questions.add_problem(question_id, f"the answer {text!r} is empty")
        return _Answer(None, None, text)
    normalized = normalize_answer(text)
    kind = kinds.index(normalized) if normalized in kinds else None
    if kind is not None and (normalized == _UNKNOWN or start == -1):
        return _Answer(GoldSpan(text), kind, text)
    problem = _problem(story, start, end, evidence)
    if problem is not None:
        questions.add_problem(question_id, problem)
        return _Answer(GoldSpan(text), kind, text)
    quoted = story[start:end]
    start += len(quoted) - len(quoted.lstrip())
    end = start + len(quoted.strip())
    if kind is not None:
        return _Answer(GoldSpan(text, start, end), kind, text)
    closest = closest_span(story[start:end], text)
    if closest is None:
        return _Answer(GoldSpan(text, start, end), None, text)
    return _Answer(GoldSpan(text, start + closest[0], start + closest[1]), None, text)


def _problem(story: str, start: int, end: int, evidence: str) -> str | None:
    """Return a description of what is wrong with an answer's evidence; None if nothing is."""
    if not 0 <= start < end <= len(story):
        return f"span_start={start}, span_end={end} is not a range of the story's {len(story):,} characters"
    if not evidence.strip() or evidence.split() != story[start:end].split():
        return f"span_start={start} to span_end={end} is {story[start:end][:60]!r}, not {evidence[:60]!r}"
    return None


def _golds(answers: Sequence[_Answer], question_id: str, questions: Questions) -> tuple[GoldSpan, ...]:
    """Return a question's gold answers; empty if the question is left out."""
    first, kind = answers[0].gold, answers[0].kind
    others = [
        answer.gold if answer.kind is None else GoldSpan(answer.text)
        for answer in answers[1:]
        if answer.gold is not None
    ]
    gold_answers = [gold for gold in (first, *others) if gold is not None]
    if kind is None:
        gold_answers.sort(key=lambda gold: gold.start is None)
        if not gold_answers or gold_answers[0].start is None:
            questions.skipped.append(question_id)
            return ()
    return tuple(gold_answers)

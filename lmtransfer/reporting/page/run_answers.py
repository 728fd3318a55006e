"""What the report shows of the answers of each run: confusions, the worst errors, marked spans and tagged sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtransfer.reporting.page.confusion import Confusion, confusion
from lmtransfer.reporting.page.label_scores import LabelScore, label_scores
from lmtransfer.reporting.page.seeds_answers import answers_of
from lmtransfer.reporting.page.spans import Piece, excerpt, find_span
from lmtransfer.reporting.page.tagged import TaggedWord, tagged_words, worst_sentences
from lmtransfer.reporting.page.texts import ExampleText, FoundTexts, Texts
from lmtransfer.reporting.page.wrong_answers import (
    WrongAnswer,
    worst_label_sets,
    worst_labels,
    worst_scores,
    worst_spans,
)
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.runs.predictions import prediction_files
from lmtransfer.system.printable import printable
from lmtransfer.tasks.metrics.scored_examples import Kept

#: The answers of at most so many runs are shown: first the best run of each task, then the second best, and so on.
MOST_RUNS = 24
#: Longer texts are cut.
MOST_CHARACTERS = 600
_ON_TEST = (
    "These are answers to test examples. They are not shown, so that nobody chooses a model by looking at test data."
)


@dataclass(frozen=True, slots=True)
class ShownError:
    """A wrong answer with its text.

    Attributes:
        name: id of the example.
        texts: the text or the pair of texts; empty if they were not found.
        gold: the gold answer.
        predicted: the answer of the run.
        certainty: score, probability and number of seeds of the answer, in words; empty if unknown.
        question: the question about a passage; empty if there is none.
        pieces: the marked passage; empty if there is none.
    """

    name: str
    texts: tuple[str, ...]
    gold: str
    predicted: str
    certainty: str
    question: str = ""
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownSentence:
    """A sentence with its tags; see ``WrongSentence``."""

    name: str
    words: tuple[TaggedWord, ...]
    num_wrong: int


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """The answers of one run.

    Attributes:
        name: name of the run.
        transfer: how the encoder was transferred.
        group: task, split and number of labels.
        remarks: sentences about what is missing.
        confusion: the confusions; None if the answers are no labels.
        label_scores: the scores of each label; empty if an example has one label only.
        errors: the worst errors, the worst first.
        sentences: the worst tagged sentences, the worst first.
        num_seeds: number of seeds whose answers are shown.
    """

    name: str
    transfer: str
    group: str
    remarks: tuple[str, ...] = ()
    confusion: Confusion | None = None
    label_scores: tuple[LabelScore, ...] = ()
    errors: tuple[ShownError, ...] = ()
    sentences: tuple[ShownSentence, ...] = ()
    num_seeds: int = 0


def all_answers(entries: Sequence[Entry], texts: Texts) -> tuple[list[RunAnswers], int]:
    """The answers of the runs that kept predictions.

    Args:
        entries: the entries of the report.
        texts: finds the texts of examples.

    Returns:
        The answers, task by task, and the number of further runs that are not shown.
    """
    kept = [
        entry
        for entry in entries
        if entry.score is not None
        and not entry.is_pretraining
        and entry.transfer != "zero-shot"
        and prediction_files(entry.run.path)
    ]
    ranks: dict[str, int] = {}
    ranked = []
    for entry in sorted(kept, key=_by_score):
        ranks[entry.group] = rank = ranks.get(entry.group, -1) + 1
        ranked.append((rank, entry.group, entry))
    chosen = sorted(ranked, key=lambda found: found[:2])[:MOST_RUNS]
    shown = [run_answers(entry, texts) for _, _, entry in sorted(chosen, key=lambda found: (found[1], found[0]))]
    return [answers for answers in shown if answers is not None], len(ranked) - len(chosen)


def run_answers(entry: Entry, texts: Texts) -> RunAnswers | None:
    """The answers of one run; None if it has none that could be shown."""
    made = RunAnswers(entry.name, entry.transfer, entry.group)
    if entry.split.startswith("test"):
        return replace(made, remarks=(_ON_TEST,))
    problems: list[str] = []
    answers = answers_of(entry, problems)
    remarks = tuple(f"{problem[0].upper()}{problem[1:]}." for problem in problems[:3])
    if not answers or not len(answers[0].examples) or answers[0].examples.kind == "pairs":
        return replace(made, remarks=remarks) if remarks else None
    if answers[0].examples.kind == "tagging":
        shown, missing = _sentences(entry, answers, texts)
        found = replace(made, sentences=shown)
    else:
        errors, missing = _errors(entry, answers, texts)
        found = replace(made, errors=errors)
    remarks += (f"Some texts are not shown: {missing}.",) if missing else ()
    return replace(
        found,
        remarks=remarks,
        confusion=confusion(answers),
        label_scores=label_scores(answers),
        num_seeds=len(answers),
    )


def _by_score(entry: Entry) -> float:
    assert entry.score is not None
    return -entry.score.mean if higher_is_better(entry.metric or "", entry.run.result) else entry.score.mean


def _errors(entry: Entry, answers: Sequence[Kept], texts: Texts) -> tuple[tuple[ShownError, ...], str]:
    kind = answers[0].examples.kind
    worst = {
        "classification": worst_labels,
        "multi_label": worst_label_sets,
        "regression": worst_scores,
        "span": worst_spans,
    }[kind](answers)
    found = _find(entry, answers[0], [error.row for error in worst], texts)
    return tuple(_shown(error, answers, found) for error in worst), found.missing


def _shown(error: WrongAnswer, answers: Sequence[Kept], found: FoundTexts) -> ShownError:
    examples = answers[0].examples
    text = found.texts.get(int(examples.keys[error.row]))
    is_span = examples.kind == "span"
    shown = ShownError(
        name=examples.ids[error.row],
        texts=() if text is None or is_span else tuple(_cut(part) for part in text.content),
        gold=(error.gold or "no answer") if is_span else error.gold,
        predicted=(error.predicted or "no answer") if is_span else error.predicted,
        certainty=_certainty(error, kind=examples.kind),
    )
    if text is None or not is_span or len(text.content) < 2:
        return shown
    return replace(shown, question=_cut(text.content[0]), pieces=tuple(_pieces(error, answers, text)))


def _pieces(error: WrongAnswer, answers: Sequence[Kept], text: ExampleText) -> list[Piece]:
    passage = text.content[1]
    gold = find_span(passage, error.gold, start=text.gold_start)
    starts = {
        int(kept.examples.starts[error.row])
        for kept in answers
        if len(kept.examples.starts) and kept.examples.answers[error.row] == error.predicted
    }
    start = min((start for start in starts if start >= 0), default=None)
    near = None if gold is None else gold.start
    predicted = find_span(passage, error.predicted, start=start, near=near)
    pieces = excerpt(passage, gold=gold, predicted=predicted)
    return [Piece(printable(piece.text), piece.kind) for piece in pieces]


def _sentences(entry: Entry, answers: Sequence[Kept], texts: Texts) -> tuple[tuple[ShownSentence, ...], str]:
    worst = worst_sentences(answers)
    kept = answers[0]
    found = _find(entry, kept, [sentence.row for sentence in worst], texts)
    shown = []
    for sentence in worst:
        text = found.texts.get(int(kept.examples.keys[sentence.row]))
        if text is not None and len(text.content) == len(sentence.predicted):
            words = tagged_words(kept, sentence, [printable(word) for word in text.content])
            shown.append(ShownSentence(kept.examples.ids[sentence.row], tuple(words), sentence.num_wrong))
    return tuple(shown), found.missing


def _find(entry: Entry, kept: Kept, rows: Sequence[int], texts: Texts) -> FoundTexts:
    return texts.find(entry.run, kept, [int(kept.examples.keys[row]) for row in rows]) if rows else FoundTexts()


def _certainty(error: WrongAnswer, *, kind: str) -> str:
    parts = []
    if error.score is not None:
        parts.append(f"F1 {100 * error.score:.0f} %" if kind == "span" else f"squared error {error.score:.2f}")
    if error.confidence is not None:
        parts.append(f"probability {100 * error.confidence:.0f} %")
    if error.num_agreeing is not None and error.num_seeds > 1:
        parts.append(f"{error.num_agreeing} of {error.num_seeds} seeds")
    return ", ".join(parts)


def _cut(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= MOST_CHARACTERS else f"{clean[: MOST_CHARACTERS - 3]}..."

"""Extractive question answering: SQuAD 1.1 and 2.0, the dialogues of QuAC and CoQA, and the user's own files.

Shape legend: N examples, S sequences (the windows of all examples), C other kinds of answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import DataFile, LargeCount, Whole
from lmtransfer.data.documents import Notes
from lmtransfer.data.files import plain_name
from lmtransfer.data.table_rows import TableColumns
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.base import Answer, Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.coqa import KINDS, read_coqa
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.file_formats.quac import read_quac
from lmtransfer.tasks.file_formats.squad import (
    BadAnswersPolicy,
    QuestionFile,
    holds_rows,
    list_ids,
    read_span_hub,
    read_span_rows,
    read_squad,
)
from lmtransfer.tasks.heads import HeadSpec, SpanSpec, SpanTargets
from lmtransfer.tasks.input_files import InputFile, InputRow, OpenInput, Reader, two_texts
from lmtransfer.tasks.languages import (
    PLACE,
    check_languages,
    file_lists,
    in_language,
    scores_by_language,
    with_languages,
)
from lmtransfer.tasks.metrics.question_answering import (
    coqa_questions,
    coqa_scores,
    quac_questions,
    quac_scores,
    squad2_questions,
    squad2_scores,
    squad_questions,
    squad_scores,
)
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.qa.example import STRIDE, QuestionExample, WindowedQuestion, encode_questions, text_of_tokens
from lmtransfer.tasks.settings import FileSettings, HubDatasetSettings, LocatedFiles, TaskSettings
from lmtransfer.tokenizers.base import Tokenizer

SpanFormat = Literal["squad", "quac", "coqa", "jsonl"]


@dataclass(frozen=True, slots=True)
class AnswersById:
    """Answers and gold answers by question id, as the official scripts expect them."""

    texts: Mapping[str, str]
    spans: Mapping[str, str]  # text of the best span, even if the answer is of another kind
    null_odds: Mapping[str, float]  # null score minus span score; a large value means no answer
    references: Mapping[str, Sequence[str]]  # the gold texts; empty if there is no answer
    domains: Mapping[str, str]

    @classmethod
    def of(cls, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> AnswersById:
        """Index the answers to these questions, which are in the same order."""
        by_id = dict(zip((example.id for example in examples), answers, strict=True))
        return cls(
            texts={name: answer.text for name, answer in by_id.items()},
            spans={name: answer.best or answer.text for name, answer in by_id.items()},
            null_odds={name: answer.null_score - answer.score for name, answer in by_id.items()},
            references={example.id: [gold.text for gold in example.answers or ()] for example in examples},
            domains={example.id: dict(example.metadata).get("source", "") for example in examples},
        )


class Squad:
    """Reads and scores the files of SQuAD: version 1.1, or 2.0, in which a question may have no answer.

    Args:
        threshold: null odds above which there is no answer.
    """

    kinds: ClassVar[tuple[str, ...]] = ()  # names of the answers that are not spans
    on_hub: ClassVar[bool] = True  # whether the hub has data sets with these columns

    def __init__(self, *, no_answer: bool = False, threshold: float = 0.0) -> None:
        self.no_answer, self.threshold = no_answer, threshold

    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        """Read the questions of a file (``kinds``: names of the answers that are not spans, in the task's order)."""
        return read_squad(path, bad_answers=bad_answers)

    def scores(self, answers_by_id: AnswersById) -> dict[str, float]:
        """Compute the official metrics, 0 to 1."""
        if not self.no_answer:
            return squad_scores(answers_by_id.texts, answers_by_id.references)
        return squad2_scores(
            answers_by_id.spans, answers_by_id.references, null_odds=answers_by_id.null_odds, threshold=self.threshold
        )

    def questions(self, answers_by_id: AnswersById) -> dict[str, dict[str, float]]:
        """Return each question's scores, by metric and question id."""
        if not self.no_answer:
            return squad_questions(answers_by_id.texts, answers_by_id.references)
        return squad2_questions(
            answers_by_id.spans, answers_by_id.references, null_odds=answers_by_id.null_odds, threshold=self.threshold
        )


class OwnQuestions(Squad):
    """The user's questions, in rows or in a ``.json`` file in SQuAD's format; scored like SQuAD."""

    @override
    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        if plain_name(path).lower().endswith(".json") and not holds_rows(path):
            return read_squad(path, bad_answers=bad_answers)
        return read_span_rows(path, bad_answers=bad_answers)


class Quac(Squad):
    """Reads and scores QuAC's dialogues."""

    on_hub = False

    @override
    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        return read_quac(path, bad_answers=bad_answers)

    @override
    def scores(self, answers_by_id: AnswersById) -> dict[str, float]:
        dialogues = {name: name.rpartition("_q#")[0] or name for name in answers_by_id.references}
        return quac_scores(answers_by_id.texts, answers_by_id.references, dialogues=dialogues)

    @override
    def questions(self, answers_by_id: AnswersById) -> dict[str, dict[str, float]]:
        scores = quac_questions(answers_by_id.texts, answers_by_id.references)
        return {name: values for name, values in scores.items() if name != "human_f1"}


class Coqa(Squad):
    """Reads and scores CoQA's dialogues."""

    kinds = KINDS
    on_hub = False

    @override
    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        return read_coqa(path, bad_answers=bad_answers, kinds=kinds)

    @override
    def scores(self, answers_by_id: AnswersById) -> dict[str, float]:
        """Compute the official metrics, also for each domain if every question has a domain."""
        groups = answers_by_id.domains if all(answers_by_id.domains.values()) else None
        return coqa_scores(answers_by_id.texts, answers_by_id.references, groups=groups)

    @override
    def questions(self, answers_by_id: AnswersById) -> dict[str, dict[str, float]]:
        return coqa_questions(answers_by_id.texts, answers_by_id.references)


#: How the files of each data set are read and scored, by ``file_format``.
SETS: Mapping[SpanFormat, type[Squad]] = {"squad": Squad, "quac": Quac, "coqa": Coqa, "jsonl": OwnQuestions}


#: The score of a passage without a legal span: the lowest float32 value, because JSON has no infinity.
NO_SPAN_SCORE = float(np.finfo(np.float32).min)


def decode_spans(
    encoded: EncodedExamples, outputs: np.ndarray, *, labels: Sequence[str], no_answer: bool, threshold: float = 0.0
) -> Iterator[SpanAnswer]:
    """Yield one answer per example, which does not depend on the number and order of its windows.

    The span is the best of the windows' best spans (on a tie, the first in the passage). The null score is the smallest
    of the windows' null scores, as in run_squad.py of google-research/bert for SQuAD 2.0: there is no answer only if
    every window says so. An answer of another kind is predicted if some window scores it above a span.

    Args:
        outputs: [start, end, score, null score, and the log odds of each other kind against a span], float32, shape
            (S, 4 + C); start and end are positions in the sequence, or -1 if no span is legal.
        threshold: null odds (null score minus span score) above which there is no answer.
    """
    targets_of = SpanTargets.of(encoded.targets)
    passages = np.stack([targets_of.first, targets_of.stop], axis=1)
    edges = np.searchsorted(encoded.owners, np.arange(len(encoded.examples) + 1)).tolist()
    for question, first, last in zip(encoded.examples, edges[:-1], edges[1:], strict=True):
        rows = outputs[first:last]
        best = _best(question, passages[first:last], rows)
        null_score = float(rows[:, 3].min())
        text = question.passage[best.start : best.end]
        answer = SpanAnswer(text, best.start, best.end, best.score, null_score, best=text)
        odds = rows[:, 4:].max(axis=0)
        if len(odds) and odds.max() > 0:
            name = labels[int(odds.argmax())]
            answer = replace(answer, text=name, start=None, end=None, kind=name)
        elif best.score == NO_SPAN_SCORE or (no_answer and null_score - best.score > threshold):
            answer = replace(answer, text="", start=None, end=None)
        yield answer


class _Span(NamedTuple):
    """A character span, compared so that ``max`` returns the earlier of two spans with equal scores."""

    score: float
    earlier: tuple[int, int]

    @property
    def start(self) -> int:
        return -self.earlier[0]

    @property
    def end(self) -> int:
        return -self.earlier[1]


def _best(question: WindowedQuestion, passages: np.ndarray, rows: np.ndarray) -> _Span:
    """Return the best legal span over all windows, in characters of the passage."""
    candidates = [_Span(NO_SPAN_SCORE, (0, 0))]
    for begin, (first, stop), row in zip(question.window_starts, passages.tolist(), rows, strict=True):
        start, end, score = int(row[0]), int(row[1]), float(row[2])
        if first <= start <= end < stop and math.isfinite(score):
            where = text_of_tokens(question.passage, question.spans, begin + start - first, begin + end - first)
            candidates.append(_Span(score, (-where[0], -where[1])))
    return max(candidates)


class QuestionReader(Reader):
    """A reader for the user's questions."""

    formats = ("text", "jsonl", "parquet", "squad", "quac", "coqa")
    file_only = ("parquet", "squad", "quac", "coqa")

    def __init__(self, kind: str, *, file_format: str, labels: Sequence[str]) -> None:
        super().__init__(kind)
        self._own_rows = file_format == "jsonl"
        self.json_format = "squad" if self._own_rows else file_format
        self._labels = labels

    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> QuestionExample:
        """Build an example from a line with the question, then the passage."""
        return QuestionExample(name, *two_texts(line, "a question and a passage"))

    def parse_file(self, source: InputFile) -> OpenInput:
        """Open JSON, parquet or a published format; answers are not used."""
        if source.file_format == "squad" and source.path is not None and self._own_rows and holds_rows(source.path):
            source = replace(source, file_format="jsonl")
        if source.file_format in ("jsonl", "parquet"):
            return source.each_row(("question", "context"), _question)
        return OpenInput(TableColumns(("id", "question", "context")), self._questions(source))

    def _questions(self, source: InputFile) -> Iterator[InputRow]:
        assert source.path is not None
        policy: BadAnswersPolicy = "refuse" if source.stops else "skip"
        name = next(name for name in SETS if name == source.file_format)
        read = SETS[name]().read(source.path, bad_answers=policy, kinds=self._labels)
        for example in read.examples:
            where = f"{source.name} (question {example.id})"
            row = {"id": example.id, "question": example.question, "context": example.passage}
            yield InputRow(where, example.id, replace(example, answers=None, kind=None), row)
        for question in read.skipped_questions:
            source.refuse(
                f"{source.name} (question {question}): its gold answer is not at its offset", {"id": question}
            )


def _question(row: JsonNode, name: str) -> QuestionExample:
    return QuestionExample(name, row.field("question").nonblank_text(), row.field("context").nonblank_text())


class SpanQa(Task):
    """Questions about passages, answered by a span of the passage and scored as by the data set's official script.

    All files of a split are read. Test files may lack the answers.
    """

    class Settings(TaskSettings, FileSettings, HubDatasetSettings):
        """The settings of question answering.

        Attributes:
            file_format: ``squad`` (1.1 and 2.0), ``quac``, ``coqa``, or ``jsonl``: one question per line (see
                ``tasks.file_formats.squad``), or SQuAD's format in a ``.json`` file.
            no_answer: whether a question may have no answer. If not, the null score is still trained, on windows that
                do not contain the answer, but does not affect predictions.
            null_threshold: predict no answer if the null score exceeds that of the best span by more than this; the
                scores also include the best threshold.
            labels: kinds of answer other than spans; CoQA's are yes, no and unknown.
            stride: number of tokens between the starts of consecutive windows of a long passage.
            max_question_tokens: maximum length of a question with its history.
            max_answer_tokens: maximum length of a predicted answer.
            history_turns: number of earlier turns of the dialogue to encode before the question.
            bad_answers: what to do with gold answers that are not where the file says: ``refuse`` raises an error;
                ``skip`` skips them and counts them in ``notes``.
        """

        file_format: SpanFormat = "squad"
        no_answer: bool = False
        null_threshold: float = 0.0
        labels: Sequence[str] = ()
        stride: LargeCount = STRIDE
        max_question_tokens: LargeCount = 64
        max_answer_tokens: LargeCount = 30
        history_turns: Whole = 0
        bad_answers: BadAnswersPolicy = "refuse"

    settings: Settings
    main_metric = "f1"
    baseline_name = "no answer"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        asked = self.settings
        self.no_answer, self.labels = asked.no_answer, tuple(asked.labels)
        self.questions = SETS[asked.file_format](no_answer=asked.no_answer, threshold=asked.null_threshold)
        self.files = {
            split: [LocatedFiles(files={split: [file]}, data_root=asked.data_root, task=self.name) for file in names]
            for split, names in asked.file_names().items()
            if names
        }
        self.hub = asked.hub_source()
        self.splits = tuple(dict.fromkeys([*self.files, *(asked.hub_splits or {})]))
        self.notes: dict[str, Notes] = {}
        problems, kinds = [], self.questions.kinds
        if not self.splits:
            problems.append("task.files is empty: set a file for each split (task.files.train=<file>)")
        if self.hub is not None and not self.questions.on_hub:
            problems.append(
                f"task.hub={asked.hub}: only SQuAD's columns can be read from the hub; set files for "
                f"{asked.file_format}"
            )
        if sorted(self.labels) != sorted(kinds):
            problems.append(
                f"task.labels={list(self.labels)} must be [{', '.join(kinds)}] in the format {asked.file_format}"
            )
        if kinds and asked.no_answer:
            problems.append(
                "task.no_answer=true: is not allowed for CoQA, where the answer to unanswerable questions is the label "
                "unknown"
            )
        if problems:
            raise ConfigError(problems)

    @override
    def reader(self) -> QuestionReader:
        return QuestionReader(SpanSpec.kind, file_format=self.settings.file_format, labels=self.labels)

    @property
    def head(self) -> HeadSpec:
        """A head that predicts the first and last token of a span, or another kind of answer."""
        return SpanSpec(len(self.labels), max_answer_tokens=self.settings.max_answer_tokens)

    @override
    def examples(self, split: str) -> list[QuestionExample]:
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has the splits {', '.join(self.splits)}")
        notes = self.notes[split] = Notes()
        questions: list[QuestionExample] = []
        seen: dict[str, tuple[int, str]] = {}
        for number, (origin, read) in enumerate(self._read(split)):
            if not read.examples:
                raise DataError(f"{origin}: there are no questions")
            for kind, ids in (
                ("gold answers that are not at their offsets, not used for training", read.bad_answers),
                ("questions left out because they have no other answer", read.skipped_questions),
            ):
                if ids:
                    notes.add(kind, f"{origin}: {list_ids(ids)}", len(ids))
            for example in read.examples:
                other, where = seen.setdefault(example.id, (number, origin))
                if other != number:
                    raise DataError(
                        f"{origin}: question id {example.id} is also in {where}; give each question a unique id"
                    )
                if example.answers == () and not self.no_answer:
                    raise DataError(
                        f"{origin}: question {example.id} has no answer; set task.no_answer=true to allow this (as in "
                        "task=squad2)"
                    )
            questions += read.examples
        return questions

    def check_windows(self, longest: int) -> None:
        """Check that windows overlap or touch; the default ``stride`` suits all lengths and is not checked."""
        stride = self.settings.stride
        if stride != STRIDE and stride > longest:
            raise ConfigError(
                f"task.stride={stride} is longer than a window of {longest} tokens (task.max_length, or the encoder's "
                f"maximum); set a number from 1 to {longest} (windows overlap up to {longest // 2})"
            )

    @override
    def encode(
        self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode questions with the windows of their passages."""
        return encode_questions(
            examples,
            tokenizer,
            max_length=max_length,
            num_segments=num_segments,
            stride=self.settings.stride,
            max_question_tokens=self.settings.max_question_tokens,
            history_turns=self.settings.history_turns,
            max_answer_tokens=self.settings.max_answer_tokens,
        )

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[SpanAnswer]:
        """Yield one answer per question, over all windows of its passage."""
        return decode_spans(
            encoded, outputs, labels=self.labels, no_answer=self.no_answer, threshold=self.settings.null_threshold
        )

    def score(self, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> dict[str, float]:
        """Compute the official metrics, F1 first, as fractions.

        Questions that may have no answer are scored at ``null_threshold``; ``best_f1`` and ``best_exact`` are the
        scores at the best thresholds.
        """
        scores = self.questions.scores(AnswersById.of(examples, answers))
        return {self.main_metric: scores[self.main_metric], **scores}

    @override
    def scored_examples(self, examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> ScoredExamples:
        questions = self.questions.questions(AnswersById.of(examples, answers))
        class_indices = np.array([example.class_index for example in examples], dtype=np.int64)
        return scored_examples(
            examples,
            kind="span",
            ratios={name: _ratio(scores, examples) for name, scores in questions.items()},
            answers=[answer.text for answer in answers],
            gold_answers=[next((gold.text for gold in example.answers or ()), "") for example in examples],
            classes=class_indices,
            class_names=("a span", "no answer", *self.labels),
            starts=np.array([-1 if answer.start is None else answer.start for answer in answers], dtype=np.int64),
        )

    def baseline(self, train: Sequence[QuestionExample], examples: Sequence[QuestionExample]) -> list[Answer] | None:
        """Predict the most frequent answer that is not a span, such as no answer; None if all answers are spans."""
        counts = Counter("" if example.kind is None else self.labels[example.kind] for example in train)
        if not self.labels:
            return [SpanAnswer("") for _ in examples] if self.no_answer else None
        del counts[""]
        kind = max(self.labels, key=counts.__getitem__)
        return [SpanAnswer(kind, kind=kind) for _ in examples]

    @override
    def origin(self, split: str) -> str:
        paths = [file.find(split) for file in self.files.get(split, [])]
        return str(paths[0]) if paths and all(paths) else self.name

    def _read(self, split: str) -> Iterator[tuple[str, QuestionFile]]:
        """Yield the name of each file of a split, and its questions."""
        located = self.files.get(split, [])
        paths = [file.find(split) for file in located]
        if self.hub is not None and not (paths and all(paths)):
            places = " or ".join(file.places(split) for file in located) or "(none configured)"
            origin = self.hub.origin(split)
            yield origin, read_span_hub(self.hub, split, bad_answers=self.settings.bad_answers, places=places)
            return
        for file, path in zip(located, paths, strict=True):
            if path is None:
                raise file.missing_error(split)
            yield str(path), self.questions.read(path, bad_answers=self.settings.bad_answers, kinds=self.labels)


def _ratio(scores: Mapping[str, float], examples: Sequence[QuestionExample]) -> Ratio:
    """Return the mean over the examples that have a score, ignoring the others."""
    parts = np.array([scores.get(example.id, 0.0) for example in examples], dtype=np.float64)
    return Ratio(parts, np.array([float(example.id in scores) for example in examples]))


#: Name of a question's language in its metadata.
_LANGUAGE = "language"


class CrossLingualQa(SpanQa):
    """Questions in SQuAD's format, with one file per language in the splits that are scored by language.

    The metrics of SQuAD's script are computed over the questions of all languages; F1 is also reported for each
    language, as ``language/de/f1``. Translations have the same published id, so ids get the language's code as prefix.
    """

    class Settings(SpanQa.Settings):
        """The settings of questions in several languages.

        Attributes:
            languages: the languages to score; each replaces ``{language}`` in file names.
            files: a file or a list of files per split; a name with ``{language}`` stands for one file per language.
        """

        languages: Sequence[str]
        files: Mapping[str, DataFile | Sequence[DataFile] | None]

    settings: Settings

    def __init__(
        self, *, languages: Sequence[str], files: Mapping[str, str | Sequence[str] | None], **settings: Any
    ) -> None:
        self.languages = check_languages(languages)
        self._languages_of: dict[str, list[str | None]] = {}
        file_names: dict[str, list[str]] = {}
        for split, names in file_lists(files).items():
            pairs = [
                (file if code is None else in_language(file, code, key="task.languages"), code)
                for file in names
                for code in (self.languages if PLACE in file else (None,))
            ]
            file_names[split] = [file for file, _ in pairs]
            self._languages_of[split] = [code for _, code in pairs]
        super().__init__(languages=languages, files=file_names, **settings)

    @override
    def score(self, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and F1 for each language."""
        return scores_by_language(super().score, examples, answers, _languages(examples), metric=self.main_metric)

    @override
    def scored_examples(self, examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> ScoredExamples:
        """Return predicted and gold texts; the languages are the classes, and translations form groups."""
        questions = [example.id.partition(":")[2] for example in examples]  # the same in all languages
        return with_languages(super().scored_examples(examples, answers), _languages(examples), questions)

    def _read(self, split: str) -> Iterator[tuple[str, QuestionFile]]:
        """Yield the name of each file of a split, and its questions with their language."""
        for code, (origin, read) in zip(self._languages_of[split], super()._read(split), strict=True):
            if code is None:
                yield origin, read
                continue
            examples = [
                replace(example, id=f"{code}:{example.id}", metadata=(*example.metadata, (_LANGUAGE, code)))
                for example in read.examples
            ]
            yield origin, replace(read, examples=examples)


def _languages(examples: Sequence[QuestionExample]) -> list[str | None]:
    return [dict(example.metadata).get(_LANGUAGE) for example in examples]

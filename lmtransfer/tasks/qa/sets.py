"""The question sets: how each set's files are read, and how its official script scores answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from lmtransfer.data.files import plain_name
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.file_formats.coqa import KINDS, read_coqa
from lmtransfer.tasks.file_formats.quac import read_quac
from lmtransfer.tasks.file_formats.squad import BadAnswersPolicy, QuestionFile, holds_rows, read_span_rows, read_squad
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
from lmtransfer.tasks.qa.example import QuestionExample

SpanFormat = Literal["squad", "quac", "coqa", "jsonl"]


@dataclass(frozen=True, slots=True)
class AnswersById:
    """Answers and gold answers by question id, in the format that the official scripts expect."""

    texts: Mapping[str, str]
    spans: Mapping[str, str]  # text of the best span, even if the answer is of another kind
    null_odds: Mapping[str, float]  # null score minus span score; a large value means no answer
    references: Mapping[str, Sequence[str]]  # the gold texts; empty if there is no answer
    domains: Mapping[str, str]

    @classmethod
    def of(cls, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> AnswersById:
        """Collect the answers to these questions, given in the same order."""
        by_id = dict(zip((example.id for example in examples), answers, strict=True))
        return cls(
            texts={name: answer.text for name, answer in by_id.items()},
            spans={name: answer.best or answer.text for name, answer in by_id.items()},
            null_odds={name: answer.null_score - answer.score for name, answer in by_id.items()},
            references={example.id: [gold.text for gold in example.answers or ()] for example in examples},
            domains={example.id: dict(example.metadata).get("source", "") for example in examples},
        )


class Squad:
    """SQuAD 1.1, or 2.0, in which a question may have no answer.

    Args:
        threshold: null odds above which there is no answer.
    """

    kinds: ClassVar[tuple[str, ...]] = ()  # names of the answers that are not spans
    on_hub: ClassVar[bool] = True  # whether the hub has sets with these columns

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
    """Rows of questions, or a document in SQuAD's format, whose file name ends in ``.json``; scored as SQuAD."""

    @override
    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        if plain_name(path).endswith(".json") and not holds_rows(path):
            return read_squad(path, bad_answers=bad_answers)
        return read_span_rows(path, bad_answers=bad_answers)


class Quac(Squad):
    """QuAC's dialogues."""

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
    """CoQA's dialogues."""

    kinds = KINDS
    on_hub = False

    @override
    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        return read_coqa(path, bad_answers=bad_answers, kinds=kinds)

    @override
    def scores(self, answers_by_id: AnswersById) -> dict[str, float]:
        """Also score each domain if every question has one."""
        groups = answers_by_id.domains if all(answers_by_id.domains.values()) else None
        return coqa_scores(answers_by_id.texts, answers_by_id.references, groups=groups)

    @override
    def questions(self, answers_by_id: AnswersById) -> dict[str, dict[str, float]]:
        return coqa_questions(answers_by_id.texts, answers_by_id.references)


#: Question sets by the name that a task's YAML file uses.
SETS: Mapping[SpanFormat, type[Squad]] = {"squad": Squad, "quac": Quac, "coqa": Coqa, "jsonl": OwnQuestions}

"""The sets of questions: how the files of each are written, and what its own script makes of the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from lmtransfer.data.files import plain_name
from lmtransfer.metrics.coqa import coqa_questions, coqa_scores
from lmtransfer.metrics.quac import quac_questions, quac_scores
from lmtransfer.metrics.squad import squad2_questions, squad2_scores, squad_questions, squad_scores
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.file_formats.answer_places import BadAnswersPolicy, QuestionFile
from lmtransfer.tasks.file_formats.coqa import KINDS, read_coqa
from lmtransfer.tasks.file_formats.quac import read_quac
from lmtransfer.tasks.file_formats.span_rows import read_span_rows
from lmtransfer.tasks.file_formats.squad import read_squad
from lmtransfer.tasks.qa.example import QuestionExample

SpanFormat = Literal["squad", "quac", "coqa", "jsonl"]


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers and gold answers by question id, as the official scripts take them.

    Attributes:
        texts: what is answered.
        spans: the best span, whatever is answered.
        null_odds: how much more there is to say for no answer than for it.
        references: the gold texts; none where there is no answer.
        domains: where each question is from; empty where that is not said.
    """

    texts: Mapping[str, str]
    spans: Mapping[str, str]
    null_odds: Mapping[str, float]
    references: Mapping[str, Sequence[str]]
    domains: Mapping[str, str]

    @classmethod
    def of(cls, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> Answered:
        """The answers to these questions, in their order."""
        given = dict(zip((example.id for example in examples), answers, strict=True))
        return cls(
            texts={name: answer.text for name, answer in given.items()},
            spans={name: answer.best or answer.text for name, answer in given.items()},
            null_odds={name: answer.null_score - answer.score for name, answer in given.items()},
            references={example.id: [gold.text for gold in example.answers or ()] for example in examples},
            domains={example.id: dict(example.metadata).get("source", "") for example in examples},
        )


class Squad:
    """SQuAD 1.1, or 2.0, in which a question may have no answer.

    Args:
        no_answer: whether one may.
        threshold: null odds above which there is none.

    Attributes:
        kinds: the answers that are no spans.
        on_hub: whether there are sets on the hub with its columns.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    on_hub: ClassVar[bool] = True

    def __init__(self, *, no_answer: bool = False, threshold: float = 0.0) -> None:
        self.no_answer, self.threshold = no_answer, threshold

    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        """The questions of a file.

        Args:
            path: the file.
            bad_answers: what becomes of gold answers that are not where the file says.
            kinds: names of the answers that are no spans, in the task's order.

        Raises:
            DataError: it is malformed.
        """
        return read_squad(path, bad_answers=bad_answers)

    def scores(self, given: Answered) -> dict[str, float]:
        """The official metrics, 0 to 1."""
        if not self.no_answer:
            return squad_scores(given.texts, given.references)
        return squad2_scores(given.spans, given.references, null_odds=given.null_odds, threshold=self.threshold)

    def questions(self, given: Answered) -> dict[str, dict[str, float]]:
        """What each question is worth in them, by metric and id."""
        if not self.no_answer:
            return squad_questions(given.texts, given.references)
        return squad2_questions(given.spans, given.references, null_odds=given.null_odds, threshold=self.threshold)


class OwnQuestions(Squad):
    """One question a line, or SQuAD's format where a file's name ends in ``.json``; scored as SQuAD."""

    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        """See ``Squad``."""
        if plain_name(path).endswith(".json"):
            return read_squad(path, bad_answers=bad_answers)
        return read_span_rows(path, bad_answers=bad_answers)


class Quac(Squad):
    """QuAC's dialogues."""

    on_hub = False

    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        """See ``Squad``."""
        return read_quac(path, bad_answers=bad_answers)

    def scores(self, given: Answered) -> dict[str, float]:
        """See ``Squad``."""
        dialogues = {name: name.rpartition("_q#")[0] or name for name in given.references}
        return quac_scores(given.texts, given.references, dialogues=dialogues)

    def questions(self, given: Answered) -> dict[str, dict[str, float]]:
        """See ``Squad``."""
        found = quac_questions(given.texts, given.references)
        return {name: values for name, values in found.items() if name != "human_f1"}


class Coqa(Squad):
    """CoQA's dialogues."""

    kinds = KINDS
    on_hub = False

    def read(self, path: Path, *, bad_answers: BadAnswersPolicy, kinds: Sequence[str]) -> QuestionFile:
        """See ``Squad``."""
        return read_coqa(path, bad_answers=bad_answers, kinds=kinds)

    def scores(self, given: Answered) -> dict[str, float]:
        """See ``Squad``; also by domain, where each question has one."""
        groups = given.domains if all(given.domains.values()) else None
        return coqa_scores(given.texts, given.references, groups=groups)

    def questions(self, given: Answered) -> dict[str, dict[str, float]]:
        """See ``Squad``."""
        return coqa_questions(given.texts, given.references)


#: By the name that a task's YAML gives them.
SETS: Mapping[SpanFormat, type[Squad]] = {"squad": Squad, "quac": Quac, "coqa": Coqa, "jsonl": OwnQuestions}

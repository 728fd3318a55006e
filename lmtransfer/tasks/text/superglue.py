"""The SuperGLUE tasks whose rows are not plain texts with a label: WiC, WSC, MultiRC and ReCoRD.

Source: Wang et al. 2019 (https://arxiv.org/abs/1905.00537), in the published files, one JSON object per line. BoolQ,
CB, COPA and RTE need no code of their own. Published test labels are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import ChoiceAnswer, LabelAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.metrics.answer_text import exact_match, token_f1
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.text.choice_example import ChoiceExample
from lmtransfer.tasks.text.choices import MultipleChoice
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.file_task import JsonLinesTask
from lmtransfer.tasks.text.single_label import Classification, LabelMetric

#: Marks around the word in question, as in T5 (Raffel et al. 2020, appendix B).
MARK = "*"
_PLACEHOLDER, _HIGHLIGHT = "@placeholder", "@highlight"


class JsonLinesClassification(JsonLinesTask, Classification):
    """A classification task in JSON lines, with labels named by the class."""

    class Settings(Classification.Settings, JsonLinesTask.Settings):
        """The settings of a classification task in JSON lines."""

        labels: None = None

    settings: Settings


def _label(row: JsonNode) -> int | None:
    """Return the label of a row, true or false (or 1 or 0); None if hidden."""
    gold = row.get("label")
    if gold is None:
        return None
    if gold.value in (0, 1):  # also false and true
        return int(gold.value)
    raise DataError(f"{gold.where}: {str(gold.value)[:40]!r} must be true or false")


class WordInContext(JsonLinesClassification):
    """WiC: whether a word has the same meaning in two sentences (Pilehvar and Camacho-Collados 2019).

    The word is marked by asterisks in both sentences. (SuperGLUE's baseline classifies the vectors of the two words
    beside that of [CLS].)
    """

    labels = ("different", "same")
    pairs = True

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[TextExample]:
        first, second = (_mark_word(row, f"sentence{n}", f"start{n}", f"end{n}") for n in (1, 2))
        yield TextExample(name, first, second, _label(row))


def _mark_word(row: JsonNode, key: str, start_key: str, end_key: str) -> str:
    """Return a sentence with marks around its word."""
    text, start, end = row.field(key).nonblank_text(), row.field(start_key).number(), row.field(end_key).number()
    if not 0 <= start < end <= len(text):
        raise DataError(f"{row.field(start_key).where}: {start} to {end} is not a range of characters in {key}")
    return f"{text[:start]}{MARK}{text[start:end]}{MARK}{text[end:]}"


class WinogradSchema(JsonLinesClassification):
    """WSC: whether a pronoun in a text refers to a noun phrase (Levesque et al. 2012).

    The text comes after the question ``Does "him" refer to "Mark" in this passage?``, as in the BabyLM challenge.
    """

    labels = ("no", "yes")
    pairs = True

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[TextExample]:
        target = row.field("target")
        noun, pronoun = (target.field(f"span{n}_text").nonblank_text() for n in (1, 2))
        question = f'Does "{pronoun}" refer to "{noun}" in this passage?'
        yield TextExample(name, question, row.field("text").nonblank_text(), _label(row))


class MultiSentenceReading(JsonLinesClassification):
    """MultiRC: whether an answer to a question about a passage is right (Khashabi et al. 2018).

    An example is a passage, and a question with one of its answers; its id is ``split:passage.question.answer``.
    SuperGLUE's metrics are ``f1`` of the right answers over all answers, and ``exact_match``: the share of questions
    with all answers judged correctly.
    """

    class Settings(JsonLinesClassification.Settings):
        """The settings of MultiRC: F1 decides, and exact match is always computed."""

        metrics: Sequence[LabelMetric] = ("f1",)

    settings: Settings
    labels = ("wrong", "right")
    pairs = True

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[TextExample]:
        passage = row.field("passage")
        text = passage.field("text").nonblank_text()
        for place, question in enumerate(passage.field("questions").items()):
            question_text = question.field("question").nonblank_text()
            for number, answer in enumerate(question.field("answers").items()):
                pair = f"{question_text} {answer.field('text').text()}".strip()
                yield TextExample(f"{name}.{place}.{number}", text, pair, _label(answer))

    @override
    def score(self, examples: Sequence[TextExample], answers: Iterable[LabelAnswer]) -> dict[str, float]:
        """Compute F1 over all answers, and the exact match of questions."""
        answer_list = list(answers)
        return {
            **super().score(examples, answer_list),
            "exact_match": _by_question(examples, answer_list).value() or 0.0,
        }

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        """Return predicted and gold labels, and which questions have only correct predictions."""
        predictions = super().scored_examples(examples, answers)
        return replace(predictions, ratios={**predictions.ratios, "exact_match": _by_question(examples, answers)})


def _by_question(examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> Ratio:
    """Return the share of questions with only correct predictions; a question counts at its first answer."""
    questions = [example.id.rpartition(".")[0] for example in examples]
    right: dict[str, bool] = {}
    for question, example, answer in zip(questions, examples, answers, strict=True):
        right[question] = right.get(question, True) and answer.label == example.label
    first = {question: row for row, question in reversed(list(enumerate(questions)))}
    counts = np.array([float(first[question] == row) for row, question in enumerate(questions)])
    return Ratio(counts * np.array([right[question] for question in questions]), counts)


class CommonsenseReading(MultipleChoice):
    """ReCoRD: which entity in a news text fills the gap in a statement about it (Zhang et al. 2018).

    The choices are the statement with each entity of the passage in the gap, in order, each spelling once; several may
    be right. The official metrics are ``f1`` and ``exact_match`` of the text of the chosen entity, the best over the
    right entities.
    """

    main_metric = "f1"
    baseline_name = "most frequent entity"

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[ChoiceExample]:
        passage = row.field("passage")
        text, spans = passage.field("text").nonblank_text(), passage.field("entities").items()
        places = [(span.field("start").number(), span.field("end").number() + 1) for span in spans]
        entities = tuple(dict.fromkeys(text[start:end] for start, end in places))
        for place, question in enumerate(row.field("qas").items()):
            query, gold = question.field("query"), question.get("answers")
            if _PLACEHOLDER not in query.nonblank_text():
                raise DataError(f"{query.where}: has no {_PLACEHOLDER}")
            nodes = [] if gold is None else [answer.field("text") for answer in gold.items()]
            unknown = next((node for node in nodes if node.text() not in entities), None)
            if unknown is not None:
                raise DataError(f"{unknown.where}: {unknown.text()[:40]!r} is not an entity of the passage")
            yield ChoiceExample(
                id=f"{name}.{place}",
                text=" ".join(part.strip() for part in text.split(_HIGHLIGHT)),
                choices=tuple(query.nonblank_text().replace(_PLACEHOLDER, entity) for entity in entities),
                right_choices=None if gold is None else frozenset(entities.index(node.text()) for node in nodes),
                fillings=entities,
            )

    @override
    def score(self, examples: Sequence[ChoiceExample], answers: Iterable[ChoiceAnswer]) -> dict[str, float]:
        return {name: ratio.value() or 0.0 for name, ratio in _of_entities(examples, list(answers)).items()}

    @override
    def scored_examples(self, examples: Sequence[ChoiceExample], answers: Sequence[ChoiceAnswer]) -> ScoredExamples:
        """Return the chosen entity and a right entity for each statement."""
        return scored_examples(
            examples,
            kind="span",
            ratios=_of_entities(examples, answers),
            answers=[example.fillings[answer.choice] for example, answer in zip(examples, answers, strict=True)],
            gold_answers=[example.fillings[min(example.right_choices or {0})] for example in examples],
        )

    def baseline(self, train: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> list[Answer]:
        """Answer with the entity that the passage names most often (on a tie, the first)."""
        answers: list[Answer] = []
        for example in examples:
            counts = [example.text.count(entity) for entity in example.fillings]
            choice = counts.index(max(counts))
            answers.append(ChoiceAnswer(choice, example.choices[choice]))
        return answers


def _of_entities(examples: Sequence[ChoiceExample], answers: Sequence[ChoiceAnswer]) -> dict[str, Ratio]:
    """Return the F1 and exact match of each chosen entity, the best over the right entities."""
    pairs = [
        (example.fillings[answer.choice], [example.fillings[place] for place in example.right_choices or ()])
        for example, answer in zip(examples, answers, strict=True)
    ]
    return {
        name: Ratio.mean(np.array([max(score(said, gold) for gold in right) for said, right in pairs]))
        for name, score in (("f1", token_f1), ("exact_match", exact_match))
    }

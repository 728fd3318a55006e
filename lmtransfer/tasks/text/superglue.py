"""The SuperGLUE tasks whose rows are not plain texts with a label: COPA, WiC, WSC, MultiRC and ReCoRD.

Source: Wang et al. 2019 (https://arxiv.org/abs/1905.00537), in the published files, one JSON object per line. BoolQ,
CB and RTE are ``TextClassification`` tasks. Published test labels are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lmtransfer.data.documents import Notes, clean
from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import ChoiceAnswer, LabelAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.heads import NO_LABEL, ClassificationSpec, HeadSpec, LabelTargets, Targets
from lmtransfer.tasks.input_files import SEPARATOR, Reader
from lmtransfer.tasks.metrics.question_answering import exact_match, token_f1
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.text.classification import Classification, LabelMetric
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tasks.text.task import JsonLinesTask
from lmtransfer.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A text with choices.

    Attributes:
        right_choices: indices of the correct choices, at least one; None if hidden.
        fillings: the text that fills the gap in each choice; empty if the choices have no gap.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    right_choices: frozenset[int] | None = None
    fillings: tuple[str, ...] = ()

    @property
    def has_gold(self) -> bool:
        """Whether the correct choices are known."""
        return self.right_choices is not None

    @property
    def class_index(self) -> int:
        """The first correct choice."""
        return -1 if self.right_choices is None else min(self.right_choices)

    @property
    def group(self) -> str:
        """The text."""
        return self.text

    @property
    def content(self) -> tuple[str, ...]:
        """The text and its choices."""
        return (self.text, *self.choices)


#: The wording of each kind of question in the files.
_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


class ChoiceReader(Reader):
    """A reader for lines of the form ``text [SEP] first choice [SEP] second choice``."""

    formats = ("text",)

    @override
    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> ChoiceExample:
        text, *choices = (part.strip() for part in clean(line, where, notes).split(SEPARATOR))
        if not text or len(choices) < 2 or not all(choices):
            raise ValueError(f"expected a text and at least two choices, with {SEPARATOR} between them")
        return ChoiceExample(name, text, tuple(choices))


@dataclass(frozen=True, slots=True)
class ChoiceSpec(ClassificationSpec):
    """One decision per choice: whether it is right. An answer compares all choices of a text."""

    kind: ClassVar[str] = "choice"

    def predictions(self, outputs: np.ndarray) -> None:  # type: ignore[override]
        """Return None, because an answer needs the outputs for all choices."""

    def gold(self, targets: Targets[np.ndarray]) -> None:  # type: ignore[override]
        """Return None, like ``predictions``."""

    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """Describe whether the choice is right."""
        label = int(LabelTargets.of(targets).labels[0])
        return "choice hidden" if label < 0 else f"a {labels[label]} choice"


class MultipleChoice(JsonLinesTask):
    """The base class of tasks with several choices per text.

    Each choice forms a pair with the text, and the head decides whether the choice is right; the answer is the choice
    with the highest odds. This differs from a softmax over the choices of a text (BERT on SWAG: Devlin et al. 2019,
    section 4.4): pairs are independent, so micro-batches need not keep the choices of a text together.
    """

    main_metric = "accuracy"
    labels = ("wrong", "right")
    baseline_name = "most frequent choice"

    @property
    def head(self) -> HeadSpec:
        """A head that decides whether the choice in a pair is right."""
        return ChoiceSpec(len(self.labels), pairs=True)

    @override
    def encode(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode each choice as [CLS] text [SEP] choice [SEP]."""
        pairs = [TextExample(example.id, example.text, choice) for example in examples for choice in example.choices]
        right = [
            NO_LABEL if example.right_choices is None else int(place in example.right_choices)
            for example in examples
            for place in range(len(example.choices))
        ]
        targets = LabelTargets(np.array(right, dtype=np.int64))
        encoded = encode_texts(pairs, targets, tokenizer, max_length=max_length, num_segments=num_segments)
        counts = [len(example.choices) for example in examples]
        return replace(encoded, examples=tuple(examples), owners=np.repeat(np.arange(len(examples)), counts))

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[ChoiceAnswer]:
        """Yield the choice with the highest odds for each example (on a tie, the first)."""
        odds = outputs[:, 1].astype(np.float64) - outputs[:, 0]
        edges = np.searchsorted(encoded.owners, np.arange(len(encoded.examples) + 1)).tolist()
        for example, first, stop in zip(encoded.examples, edges[:-1], edges[1:], strict=True):
            powers = np.exp(odds[first:stop] - odds[first:stop].max())
            choice = int(odds[first:stop].argmax())
            yield ChoiceAnswer(choice, example.choices[choice], tuple((powers / powers.sum()).tolist()))

    @override
    def score(self, examples: Sequence[ChoiceExample], answers: Iterable[ChoiceAnswer]) -> dict[str, float]:
        """Compute the accuracy over examples."""
        right = [answer.choice == example.class_index for example, answer in zip(examples, answers, strict=True)]
        return {"accuracy": float(np.mean(right))}

    @override
    def scored_examples(self, examples: Sequence[ChoiceExample], answers: Sequence[ChoiceAnswer]) -> ScoredExamples:
        predicted = np.array([answer.choice for answer in answers], dtype=np.int64)
        gold = np.array([example.class_index for example in examples], dtype=np.int64)
        names = [f"choice {place + 1}" for place in range(max(len(example.choices) for example in examples))]
        return scored_examples(
            examples,
            kind="classification",
            labels=names,
            predicted=predicted,
            gold=gold,
            ratios={"accuracy": Ratio.mean(predicted == gold)},
            classes=gold,
            class_names=names,
            confidences=[answer.probabilities[answer.choice] if answer.probabilities else None for answer in answers],
        )

    def baseline(self, train: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> list[Answer]:
        """Predict the choice that is most often correct in training for every example (on a tie, the first)."""
        choice = int(np.bincount([example.class_index for example in train if example.has_gold]).argmax())
        return [ChoiceAnswer(choice, example.choices[choice]) for example in examples]

    @override
    def reader(self) -> ChoiceReader:
        return ChoiceReader(ChoiceSpec.kind)

    @override
    def echo(self, example: ChoiceExample) -> dict[str, Any]:
        return {"text": example.text, "choices": list(example.choices)}


class Copa(MultipleChoice):
    """COPA: which of two alternatives is the cause or the effect of a premise, in the format of SuperGLUE."""

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[ChoiceExample]:
        question, gold = row.field("question"), row.get("label")
        if question.text() not in _QUESTIONS:
            raise DataError(f"{question.where}: {question.text()[:40]!r} must be {' or '.join(_QUESTIONS)}")
        label = None if gold is None else gold.number()
        if label not in (None, 0, 1):
            raise DataError(f"{row.where}: label: {label} must be 0 (choice1) or 1 (choice2)")
        yield ChoiceExample(
            id=name,
            text=f"{row.field('premise').nonblank_text()} {_QUESTIONS[question.text()]}",
            choices=(row.field("choice1").nonblank_text(), row.field("choice2").nonblank_text()),
            right_choices=None if label is None else frozenset([label]),
        )


#: The mark before and after the word in question, as in T5 (Raffel et al. 2020, appendix B).
MARK = "*"
_PLACEHOLDER, _HIGHLIGHT = "@placeholder", "@highlight"


class JsonLinesClassification(JsonLinesTask, Classification):
    """A classification task in JSON lines whose label names are fixed."""

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

    Asterisks mark the word in both sentences. (SuperGLUE's baseline classifies the vectors of both words, together with
    that of [CLS].)
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

    The question ``Does "him" refer to "Mark" in this passage?`` precedes the text, as in the BabyLM challenge.
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
    """MultiRC: whether an answer to a question about a passage is correct (Khashabi et al. 2018).

    An example is a passage with a question and one of its answers; the id is ``split:passage.question.answer``.
    SuperGLUE's metrics are ``f1`` of the correct answers over all answers, and ``exact_match``, the share of questions
    whose answers are all classified correctly.
    """

    class Settings(JsonLinesClassification.Settings):
        """The settings of MultiRC, whose main metric is F1; exact match is always computed."""

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
        """Compute F1 over all answers, and exact match over questions."""
        answer_list = list(answers)
        return {
            **super().score(examples, answer_list),
            "exact_match": _by_question(examples, answer_list).value() or 0.0,
        }

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        """Return predicted and gold labels, and exact match over questions."""
        predictions = super().scored_examples(examples, answers)
        return replace(predictions, ratios={**predictions.ratios, "exact_match": _by_question(examples, answers)})


def _by_question(examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> Ratio:
    """Return the share of questions with only correct predictions; a question takes the place of its first answer."""
    questions = [example.id.rpartition(".")[0] for example in examples]
    right: dict[str, bool] = {}
    for question, example, answer in zip(questions, examples, answers, strict=True):
        right[question] = right.get(question, True) and answer.label == example.label
    first = {question: row for row, question in reversed(list(enumerate(questions)))}
    counts = np.array([float(first[question] == row) for row, question in enumerate(questions)])
    return Ratio(counts * np.array([right[question] for question in questions]), counts)


class CommonsenseReading(MultipleChoice):
    """ReCoRD: which entity in a news text fills the gap in a statement about it (Zhang et al. 2018).

    Each choice is the statement with an entity of the passage in the gap; the entities are distinct and in order of
    appearance, and several may be correct. The official metrics are ``f1`` and ``exact_match`` of the chosen entity's
    text, the best over the correct entities. As in the official script, two entities that consist only of articles or
    punctuation match exactly, but have F1 0.
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
                raise DataError(f"{query.where}: the query has no {_PLACEHOLDER}")
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
        """Return the chosen entity and a correct entity for each statement."""
        return scored_examples(
            examples,
            kind="span",
            ratios=_of_entities(examples, answers),
            answers=[example.fillings[answer.choice] for example, answer in zip(examples, answers, strict=True)],
            gold_answers=[example.fillings[min(example.right_choices or {0})] for example in examples],
        )

    def baseline(self, train: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> list[Answer]:
        """Predict the entity that the passage names most often (on a tie, the first)."""
        answers: list[Answer] = []
        for example in examples:
            counts = [example.text.count(entity) for entity in example.fillings]
            choice = counts.index(max(counts))
            answers.append(ChoiceAnswer(choice, example.choices[choice]))
        return answers


def _of_entities(examples: Sequence[ChoiceExample], answers: Sequence[ChoiceAnswer]) -> dict[str, Ratio]:
    """Return the F1 and exact match of each chosen entity, the best over the correct entities."""
    pairs = [
        (example.fillings[answer.choice], [example.fillings[place] for place in example.right_choices or ()])
        for example, answer in zip(examples, answers, strict=True)
    ]
    return {
        name: Ratio.mean(np.array([max(score(said, gold) for gold in right) for said, right in pairs]))
        for name, score in (("f1", partial(token_f1, empty_agree=False)), ("exact_match", exact_match))
    }

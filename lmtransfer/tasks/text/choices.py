"""Multiple choice: which of several continuations of a text is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lmtransfer.data.documents import Notes, clean
from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import ChoiceAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec
from lmtransfer.tasks.input_files import SEPARATOR, InputFile, LocatedExample, Reader
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.targets import NO_LABEL, LabelTargets, Targets
from lmtransfer.tasks.text.choice_example import ChoiceExample
from lmtransfer.tasks.text.encoding import encode_texts
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.file_task import JsonLinesTask
from lmtransfer.tokenizers.base import Tokenizer

#: The question in words, by the value in the files.
_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


class ChoiceReader(Reader):
    """A reader of texts with choices, in lines ``text [SEP] first choice [SEP] second choice``."""

    formats = ("text",)

    @override
    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> ChoiceExample:
        text, *choices = (part.strip() for part in clean(line, where, notes).split(SEPARATOR))
        if not text or len(choices) < 2 or not all(choices):
            raise ValueError(f"expected a text and at least two choices, with {SEPARATOR} between them")
        return ChoiceExample(name, text, tuple(choices))

    def parse_file(self, source: InputFile) -> Iterator[LocatedExample]:
        """Raise an ``AssertionError``, because only lines are supported."""
        raise AssertionError(f"format {source.file_format} was accepted, but there is no reader for it")


@dataclass(frozen=True, slots=True)
class ChoiceSpec(ClassificationSpec):
    """Whether each choice is right; the answer compares the choices of a text."""

    kind: ClassVar[str] = "choice"

    def predictions(self, outputs: np.ndarray) -> None:  # type: ignore[override]
        """Return None, because a single choice is not an answer."""

    def gold(self, targets: Targets[np.ndarray]) -> None:  # type: ignore[override]
        """Return None, like ``predictions``."""

    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """Say whether the choice is right."""
        label = int(LabelTargets.of(targets).labels[0])
        return "choice hidden" if label < 0 else f"a {labels[label]} choice"


class MultipleChoice(JsonLinesTask):
    """The base of tasks with several choices per text.

    Each choice forms a separate pair of texts, and the head decides whether it is right; the answer is the choice with
    the highest odds. This differs from a softmax over the choices of a text (BERT on SWAG: Devlin et al. 2019, section
    4.4): each pair is an independent row, so micro-batches need not keep the choices of a text together.
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
        """Yield each example's choice with the highest odds (on a tie, the first)."""
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
        """Answer every example with the choice that is most often right in training (on a tie, the first)."""
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

"""Classification of single texts and text pairs, each with one label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import DataFile, DropoutProb
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import ColumnSpec
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.heads import NO_LABEL, ClassificationSpec, HeadSpec, LabelTargets, weights_in_order
from lmtransfer.tasks.label_checks import (
    OTHER_SPELLING,
    as_integer,
    check_label,
    check_labels,
    check_names,
    check_training_file,
    find_label,
    index_labels,
    joining_mark,
    list_labels,
    merge_spellings,
    quote_label,
    to_nfc,
)
from lmtransfer.tasks.languages import (
    check_languages,
    file_lists,
    in_language,
    places_in_languages,
    scores_by_language,
    with_languages,
)
from lmtransfer.tasks.metrics.calibration import calibration
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.subsets import fold_of
from lmtransfer.tasks.text.example import TextExample, with_sentences
from lmtransfer.tasks.text.files import HIDDEN_NUMBER, TextColumns, TextRow
from lmtransfer.tasks.text.task import CHUNK, JsonLinesTask, TextFileTask, TextTask

#: Number of parts into which the scored examples are divided for temperature scaling.
CALIBRATION_PARTS = 5

LabelMetric = Literal["accuracy", "f1", "macro_f1", "matthews"]


class Classification(TextTask):
    """The base class of all classification tasks: label names, metrics, answers and the majority baseline.

    A task with its own source of examples extends this class with ``splits`` and ``examples``. A task that reads files
    or the hub is a ``TextClassification`` and needs no code.
    """

    kind = ClassificationSpec.kind

    class Settings(TextTask.Settings):
        """The settings of a classification task.

        Attributes:
            labels: names of the labels, in order; null: the labels in the training file, sorted.
            metrics: some of accuracy, f1, macro_f1, matthews; the first metric chooses checkpoints and decides the
                verdict.
            positive_label: the label whose F1 counts; null: the second of two labels.
            class_weights: weight of each label in the training loss: balanced, or by name such as {spam: 5} (1 for
                others); null: all 1.
            label_smoothing: share of each training target that is spread evenly over all labels, 0 to 1 (Szegedy et
                al. 2016, section 7).
        """

        labels: Sequence[str] | None
        metrics: Sequence[LabelMetric] = ("accuracy",)
        positive_label: str | None = None
        class_weights: Literal["balanced"] | Mapping[str, float] | None = None
        label_smoothing: DropoutProb = 0.0

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        labels = self.settings.labels
        if labels is not None:
            self.labels = self._check([to_nfc(label, "task.labels") for label in labels])

    @cached_property
    @override
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._check(self.discover_labels())

    def discover_labels(self) -> list[str]:
        """Discover the label names in the data, for tasks that do not list them."""
        raise ConfigError(
            f"task.labels=null: {type(self).__name__} cannot discover the labels; list their names in order"
        )

    def _check(self, labels: Sequence[str]) -> tuple[str, ...]:
        positive, names = self.settings.positive_label, list_labels(labels)
        checked = check_names(labels)
        if positive is not None and positive not in labels:
            raise ConfigError(f"task.positive_label={positive} must be one of {names}")
        if "f1" in self.metric_names and positive is None and len(labels) > 2:
            raise ConfigError(
                f"task.metrics: f1 is computed for one label, but there are {names}; set task.positive_label to one of "
                "them, or use macro_f1"
            )
        weights_in_order(self.settings.class_weights, labels)  # raises an error if they do not match the labels
        return checked

    @property
    def head(self) -> HeadSpec:
        """A head that predicts one of the labels."""
        weights = weights_in_order(self.settings.class_weights, self.labels)
        return ClassificationSpec(len(self.labels), self.pairs, weights, self.settings.label_smoothing)

    @override
    def gold(self, examples: Sequence[TextExample]) -> LabelTargets[np.ndarray]:
        labels = [NO_LABEL if example.label is None else example.label for example in examples]
        return LabelTargets(np.array(labels, dtype=np.int64))

    def number_of(self, answer: LabelAnswer) -> float:
        """Return the label's index."""
        return answer.label

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[LabelAnswer]:
        """Yield the most probable label of each example."""
        for start in range(0, len(encoded.examples), CHUNK):
            logits = outputs[start : start + CHUNK].astype(np.float64)
            powers = np.exp(logits - logits.max(1, keepdims=True))
            probabilities = powers / powers.sum(1, keepdims=True)
            for label, row in zip(logits.argmax(1).tolist(), probabilities.tolist(), strict=True):
                yield LabelAnswer(label, self.labels[label], dict(zip(self.labels, row, strict=True)))

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        predicted = np.array([answer.label for answer in answers], dtype=np.int64)
        gold = self.gold(examples).labels
        return scored_examples(
            examples,
            kind="classification",
            labels=self.labels,
            predicted=predicted,
            gold=gold,
            ratios={"accuracy": Ratio.mean(predicted == gold)},
            classes=gold,
            class_names=self.labels,
            positive=self.positive,
            confidences=[
                None if answer.probabilities is None else answer.probabilities[answer.name] for answer in answers
            ],
        )

    @override
    def calibration(self, encoded: EncodedExamples, outputs: np.ndarray) -> dict[str, Any] | None:
        """Measure calibration before and after temperature scaling.

        The examples are divided into parts that share no text. Each part's temperature is fitted on the other parts.
        """
        gold, groups = LabelTargets.of(encoded.targets).labels, [example.group for example in encoded.examples]
        if not np.isfinite(outputs).all():
            return None
        parts = None
        if groups.count("") + len({*groups} - {""}) >= CALIBRATION_PARTS:
            parts = fold_of(np.full(len(groups), -1), groups, folds=CALIBRATION_PARTS, seed=0, names=())
        return calibration(outputs, gold, parts)

    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Answer]:
        """Predict the most frequent training label for every example (on a tie, the first label)."""
        gold = [example.label for example in train if example.label is not None]
        label = int(np.bincount(gold, minlength=len(self.labels)).argmax())
        return [LabelAnswer(label, self.labels[label])] * len(examples)

    @property
    def positive(self) -> int:
        """Index of the positive class, for which F1 is computed: the second label by default."""
        return 1 if self.settings.positive_label is None else self.labels.index(self.settings.positive_label)


class TextClassification(TextFileTask, Classification):
    """Single texts or pairs with one label each, from one file per split or from the hub.

    By default, the labels are those in the training file, in numerical order if they are numbers, otherwise in
    alphabetical order.
    """

    class Settings(Classification.Settings, TextFileTask.Settings):
        """The settings of a classification of texts in tables.

        Attributes:
            label_column: column of the label.
            label_values: values of the labels in the files, in the order of ``labels``; null: the label names.
            phrases: whether the training split contains sentences and their phrases, in which case training and
                held-out examples never come from the same sentence.
        """

        label_column: ColumnNames
        label_values: Sequence[str] | None = None
        phrases: bool = False
        hidden_values: Sequence[str] = (HIDDEN_NUMBER,)

    settings: Settings
    gold_setting = "label_column"
    _joined_by: str | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        labels, values, folds = self.settings.labels, self.settings.label_values, self.settings.folds
        if values is not None and (labels is None or len(values) != len(labels)):
            advice = "set task.labels too" if labels is None else f"set one value for each of the {len(labels)} labels"
            raise ConfigError(f"task.label_values={list(values)}: {advice}")
        if self.settings.phrases and folds is not None:
            raise ConfigError(
                f"task.folds={folds} with task.phrases=true: folds would divide sentences; leave out one of the two"
            )

    def hidden_values(self) -> set[str]:
        """Return the values that mark a hidden label in the files, except those that are labels."""
        labels = index_labels(self._label_values or self.settings.labels or ())
        return {value for value in self.settings.hidden_values if as_integer(value) not in labels}

    @cached_property
    def _label_values(self) -> list[str] | None:
        values = self.settings.label_values
        return None if values is None else [to_nfc(value, "task.label_values") for value in values]

    @override
    def examples(self, split: str) -> list[TextExample]:
        examples = super().examples(split)
        if split == "train" and self._joined_by is not None:
            kind = f"labels that look like several joined by {self._joined_by!r} (task=multi_label divides them)"
            self.notes[split].add(kind, self.origin(split))
        return with_sentences(examples) if self.settings.phrases and split == "train" else examples

    def discover_labels(self) -> list[str]:
        """Return the labels of the training split in numerical or, if some are not numbers, alphabetical order."""
        check_training_file(self.splits, self.name)
        column, counts = f"task.label_column={self.gold_column}", Counter[str]()
        for row in self.files.rows("train", Notes()):
            if row.gold is not None:  # rows without a label are rejected, with their line, when the examples are read
                check_label(row.gold, row.where, column)
                counts[row.gold] += 1
        labels = merge_spellings(counts)
        check_labels(labels, origin=self.origin("train"), items="rows", column=column)
        self._joined_by = joining_mark(labels, "|;,", alone="|;,")
        try:
            return sorted(labels, key=lambda label: int(as_integer(label)))
        except ValueError:
            return sorted(labels)

    @cached_property
    def _index_of(self) -> dict[bool, dict[str, int]]:
        """The index of each label, by the label's name (True) and by its value in the files (False)."""
        return {True: index_labels(self.labels), False: index_labels(self._label_values or self.labels)}

    @override
    def example_of(self, row: TextRow) -> TextExample:
        if row.gold is None:
            return TextExample(row.id, row.text, row.text_pair)
        values = self.labels if row.is_label_name or self._label_values is None else self._label_values
        index = find_label(row.gold, self._index_of[row.is_label_name])
        if index is None:
            meaning = "task.labels" if values is self.labels else "task.label_values"
            names = list_labels(values)
            hint = f"; if it stands for a hidden label, set task.hidden_values=[{row.gold}]" * (
                row.gold == HIDDEN_NUMBER
            )
            raise ValueError(
                f"label {quote_label(row.gold)} in column {self.gold_column!r} is not one of {names} ({meaning}{hint})"
            )
        if row.gold != values[index]:
            row.notes.add(OTHER_SPELLING, row.where)
        return TextExample(row.id, row.text, row.text_pair, index)


class CrossLingualClassification(TextClassification):
    """Classification in several languages, with a training file per language and a language column in other files.

    The metrics are computed over the examples of all scored languages; the main metric is also reported for each
    language, as ``language/de/accuracy``. Held-out examples, which choose checkpoints, are in the training language.
    """

    class Settings(TextClassification.Settings):
        """The settings of a classification in several languages.

        Attributes:
            files: file of each split; alternative names are tried in order.
            language: the training language, which replaces ``{language}`` in file names.
            languages: the languages to score.
            language_column: column of the language; optional in the training file.
            label_aliases: alternative spellings of labels, such as ``{contradictory: contradiction}``.
        """

        files: Mapping[str, DataFile | Sequence[DataFile] | None]
        language: str
        languages: Sequence[str]
        language_column: str
        label_aliases: Mapping[str, str] | None = None

    settings: Settings

    def __init__(self, *, files: Mapping[str, str | Sequence[str] | None], language: str, **settings: Any) -> None:
        own_files = {
            split: [in_language(name, language, key="task.language") for name in names]
            for split, names in file_lists(files).items()
        }
        super().__init__(files=own_files, language=language, **settings)
        self.languages = check_languages(self.settings.languages)

    def text_columns(self) -> TextColumns:
        """Return the columns to read, including the language column."""
        language = ColumnSpec((self.settings.language_column,), "task.language_column", required=False)
        return replace(super().text_columns(), language=language)

    @override
    def example_of(self, row: TextRow) -> TextExample:
        gold = None if row.gold is None else (self.settings.label_aliases or {}).get(row.gold, row.gold)
        return replace(super().example_of(replace(row, gold=gold)), language=row.language)

    @override
    def examples(self, split: str) -> list[TextExample]:
        """Read all examples of a split in the scored languages."""
        examples = super().examples(split)
        if split == "train" or all(example.language is None for example in examples):
            return examples
        present = {example.language or "" for example in examples}
        missing = [language for language in self.languages if language not in present]
        if missing:
            raise DataError(
                f"{self.origin(split)}: no rows in {', '.join(missing)} (task.languages), only in "
                f"{', '.join(sorted(present))}; use a file with all languages, or correct task.languages"
            )
        return [example for example in examples if example.language in self.languages]

    @override
    def score(self, examples: Sequence[TextExample], answers: Iterable[LabelAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and the main metric for each language."""
        languages = [example.language for example in examples]
        return scores_by_language(super().score, examples, answers, languages, metric=self.main_metric)

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        """Return predicted and gold labels; the languages are the classes, and translations form groups."""
        languages = [example.language for example in examples]
        items = places_in_languages(languages, [example.label for example in examples])
        return with_languages(super().scored_examples(examples, answers), languages, items)


_FIELD = re.compile(r"\{(\w+)\}")


class TemplateClassification(JsonLinesTask, Classification):
    """Texts from templates, such as ``Question: {question}``, filled with the fields of JSON lines.

    Raises:
        ConfigError: a template names no field.
    """

    class Settings(Classification.Settings, JsonLinesTask.Settings):
        """The settings of a classification task with templates.

        Attributes:
            text: template of the text, or of the first text of a pair; ``{name}`` is replaced by a field's value.
            text_pair: template of the second text; null: single texts.
            labels: names of the labels; the field ``label`` is the name of a label, or its index from 0.
        """

        text: str
        text_pair: str | None = None
        labels: Sequence[str]

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.pairs = self.settings.text_pair is not None
        for key in ("text", "text_pair"):
            template = getattr(self.settings, key)
            if template is not None and not _FIELD.search(template):
                raise ConfigError(f"task.{key}={template} names no field of the file; write one such as {{sentence}}")

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[TextExample]:
        pair = None if self.settings.text_pair is None else _fill(self.settings.text_pair, row)
        yield TextExample(name, _fill(self.settings.text, row), pair, self._label(row))

    def _label(self, row: JsonNode) -> int | None:
        gold = row.get("label")
        if gold is None:
            return None
        if gold.value in self.labels:
            return self.labels.index(gold.value)
        if isinstance(gold.value, int | float) and gold.value in range(len(self.labels)):
            return int(gold.value)
        raise DataError(
            f"{gold.where}: {str(gold.value)[:40]!r} must be an index from 0 to {len(self.labels) - 1}, or one of "
            f"{', '.join(self.labels)}"
        )


def _fill(template: str, row: JsonNode) -> str:
    return _FIELD.sub(lambda match: row.field(match[1]).nonblank_text(), template)

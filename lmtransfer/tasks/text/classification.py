"""Classification of single texts and text pairs, from published files or from the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import ColumnSpec
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.label_checks import check_label, check_labels, list_labels, quote_label, to_nfc
from lmtransfer.tasks.languages import (
    PLACE,
    check_all_present,
    check_languages,
    groups_of_translations,
    language_classes,
    places_in_languages,
    scores_by_language,
)
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.text.example import TextExample, with_sentences
from lmtransfer.tasks.text.files import HIDDEN_NUMBER, TextColumns, TextRow
from lmtransfer.tasks.text.single_label import Classification
from lmtransfer.tasks.text.task import TextFileTask


class TextClassification(TextFileTask, Classification):
    """Single texts or pairs with one label each, from one file per split or from a ``datasets`` name.

    By default the labels are those in the training file, sorted by size if they are numbers, otherwise alphabetically.
    """

    class Settings(Classification.Settings, TextFileTask.Settings):
        """The settings of a classification of texts in tables.

        Attributes:
            label_column: column of the label.
            label_values: values of the labels in the files, in the order of ``labels``; null: the label names.
            phrases: whether the training split holds sentences and their phrases, in which case the held-out part and
                the training part share no sentence.
        """

        label_column: ColumnNames
        label_values: Sequence[str] | None = None
        phrases: bool = False
        hidden_values: Sequence[str] = (HIDDEN_NUMBER,)

    settings: Settings
    gold_setting = "label_column"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        labels, values, folds = self.settings.labels, self.settings.label_values, self.settings.folds
        if values is not None and (labels is None or len(values) != len(labels)):
            advice = "set task.labels too" if labels is None else f"set one value for each of the {len(labels)} labels"
            raise ConfigError(f"task.label_values={list(values)}: {advice}")
        if self.settings.phrases and folds is not None:
            raise ConfigError(f"task.folds={folds} with task.phrases=true: folds would divide sentences; leave one out")

    def hidden_values(self) -> set[str]:
        """Return the values in the files that mean a hidden label, excluding labels."""
        return set(self.settings.hidden_values) - set(self._label_values or self.settings.labels or ())

    @cached_property
    def _label_values(self) -> list[str] | None:
        values = self.settings.label_values
        return None if values is None else [to_nfc(value, "task.label_values") for value in values]

    @override
    def examples(self, split: str) -> list[TextExample]:
        examples = super().examples(split)
        return with_sentences(examples) if self.settings.phrases and split == "train" else examples

    def discover_labels(self) -> list[str]:
        """Return the labels of the training split, sorted by size if they are numbers, otherwise alphabetically."""
        if "train" not in self.splits:
            raise ConfigError(
                f"task.labels=null: the labels are read from the training file, but task {self.name} has none; list "
                "them in task.labels=[...], or set task.files.train= to a file"
            )
        column, counts = f"task.label_column={self.gold_column}", Counter[str]()
        for row in self.files.rows("train", Notes()):
            if row.gold is not None:  # a row without a label is rejected when the examples are read, with its line
                check_label(row.gold, row.where, column)
                counts[row.gold] += 1
        check_labels(counts, origin=self.origin("train"), items="rows", column=column)
        try:
            return sorted(counts, key=int)
        except ValueError:
            return sorted(counts)

    @cached_property
    def _index_of(self) -> dict[bool, dict[str, int]]:
        """Our index of each label, by the label's name (True) and by its value in the files (False)."""
        return {
            is_name: {value: index for index, value in enumerate(values)}
            for is_name, values in ((True, self.labels), (False, self._label_values or self.labels))
        }

    @override
    def example_of(self, row: TextRow) -> TextExample:
        indices = self._index_of[row.is_label_name]
        if row.gold is not None and row.gold not in indices:
            meaning = "task.labels" if row.is_label_name or self._label_values is None else "task.label_values"
            names = list_labels(list(indices))
            hint = f"; if it stands for a hidden label, set task.hidden_values=[{row.gold}]" * (
                row.gold == HIDDEN_NUMBER
            )
            raise ValueError(
                f"label {quote_label(row.gold)} in column {self.gold_column!r} is not one of {names} ({meaning}{hint})"
            )
        return TextExample(row.id, row.text, row.text_pair, None if row.gold is None else indices[row.gold])


class CrossLingualClassification(TextClassification):
    """A training file per language, and other files with a language column.

    The metrics are over the examples of all scored languages; the main metric is also reported for each language, as
    ``language/de/accuracy``. The held-out part, which chooses checkpoints, is in the training language.
    """

    class Settings(TextClassification.Settings):
        """The settings of a classification in several languages.

        Attributes:
            files: file of each split; alternative names are tried in order.
            language: the training language, which replaces ``{language}`` in the names of files.
            languages: the languages to score.
            language_column: column of the language; optional in the training file.
            label_aliases: alternative spellings of labels, such as ``{contradictory: contradiction}``.
        """

        files: Mapping[str, str | Sequence[str] | None]
        language: str
        languages: Sequence[str]
        language_column: str
        label_aliases: Mapping[str, str] | None = None

    settings: Settings

    def __init__(self, *, files: Mapping[str, str | Sequence[str] | None], language: str, **settings: Any) -> None:
        names = {
            split: [files_of_split] if isinstance(files_of_split, str) else list(files_of_split or ())
            for split, files_of_split in files.items()
        }
        if (
            any(PLACE in file for files_of_split in names.values() for file in files_of_split)
            and not language.isalnum()
        ):
            raise ConfigError(f"task.language={language}: must be a language code, such as en")
        in_language = {
            split: [file.replace(PLACE, language) for file in files_of_split] for split, files_of_split in names.items()
        }
        super().__init__(files=in_language, language=language, **settings)
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
        check_all_present(self.languages, {example.language or "" for example in examples}, origin=self.origin(split))
        return [example for example in examples if example.language in self.languages]

    @override
    def score(self, examples: Sequence[TextExample], answers: Iterable[LabelAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and the main metric for each language."""
        answer_list = list(answers)

        def score(rows: Sequence[int]) -> dict[str, float]:
            return super(CrossLingualClassification, self).score(
                [examples[row] for row in rows], [answer_list[row] for row in rows]
            )

        languages = [example.language for example in examples]
        return {**super().score(examples, answer_list), **scores_by_language(languages, self.main_metric, score)}

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        """Return predicted and gold labels; classes are the languages, translations are in one group."""
        predictions = super().scored_examples(examples, answers)
        languages = [example.language for example in examples]
        classes = language_classes(languages)
        if classes is None:
            return predictions
        items = places_in_languages(languages, [example.label for example in examples])
        clusters = groups_of_translations(predictions.clusters, items)
        return replace(predictions, clusters=clusters, classes=classes[0], class_names=classes[1])

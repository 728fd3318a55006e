"""Classification trained in one language and scored in several, from the published files of XNLI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from lmtransfer.data.tables import ColumnSpec
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.answers import LabelAnswer
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
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextColumns, TextRow


class CrossLingualClassification(TextClassification):
    """A training file per language, and other files with a language column.

    The metrics are over the examples of all scored languages; the main metric is also reported for each language, as
    ``language/de/accuracy``. The held-out part, which chooses checkpoints, is in the training language.

    Raises:
        ConfigError: ``language`` is not a language code, or one of ``languages`` occurs twice.
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

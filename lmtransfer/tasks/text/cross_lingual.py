"""Classification that is trained in one language and scored in several, in the published files of XNLI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from lmtransfer.config.types import Count, DropoutProb, Folder, LargeCount, Name, OpenShare
from lmtransfer.data.tables import Column
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.languages import (
    PLACE,
    check_found,
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
from lmtransfer.tasks.text.single_label import LabelMetric


class CrossLingualClassification(TextClassification):
    """A training file for each language, and other files with a column of languages.

    The metrics are over the examples of all scored languages; the main metric is also given for each language, as
    ``language/de/accuracy``. The held-out part, which chooses checkpoints, is in the training language.

    Args:
        name: the task's name in tables and results.
        labels: names of the labels in order.
        language: the training language, which replaces ``{language}`` in the names of files.
        languages: the languages that are scored.
        text_column: column of the text, or of the first text of a pair.
        text_pair_column: column of the second text; null: single texts.
        label_column: column of the label.
        language_column: column of the language; the training file need not have it.
        files: file of each split; several names for one are tried in order.
        label_aliases: further spellings of labels, such as ``{contradictory: contradiction}``.
        metrics: names of the metrics; the first is the main one.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        class_weights: weight of each label in the training loss, by name (1 for labels that are not named); balanced:
            each label has the same total weight; null: all 1.
        label_smoothing: share of each training target that is spread evenly over all labels, 0 to 1.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: ``language`` is no code, or one of ``languages`` occurs twice.
    """

    def __init__(
        self,
        *,
        name: Name,
        labels: Sequence[str],
        language: str,
        languages: Sequence[str],
        text_column: str | Sequence[str],
        label_column: str | Sequence[str],
        language_column: str,
        files: Mapping[str, str | Sequence[str] | None],
        text_pair_column: str | Sequence[str] | None = None,
        label_aliases: Mapping[str, str] | None = None,
        metrics: Sequence[LabelMetric] = ("accuracy",),
        max_length: Count | None = None,
        num_train: LargeCount | None = None,
        dev_from_train: OpenShare | None = None,
        class_weights: Literal["balanced"] | Mapping[str, float] | None = None,
        label_smoothing: DropoutProb = 0.0,
        data_root: Folder | None = None,
    ) -> None:
        self.languages, self.language = check_languages(languages), language
        if any(PLACE in file for file in _names(files)) and not language.isalnum():
            raise ConfigError(f"task.language={language}: must be the code of a language, such as en")
        self._language_column, self._aliases = language_column, dict(label_aliases or {})
        super().__init__(
            name=name,
            labels=labels,
            text_column=text_column,
            text_pair_column=text_pair_column,
            label_column=label_column,
            files={split: [file.replace(PLACE, language) for file in _names({split: files[split]})] for split in files},
            metrics=metrics,
            max_length=max_length,
            num_train=num_train,
            dev_from_train=dev_from_train,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            data_root=data_root,
        )

    def read_from(self, files: Any, *, columns: TextColumns, **rest: Any) -> None:
        """Set the source of the examples, with the column of languages; see ``TextFileTask``."""
        language = Column((self._language_column,), "task.language_column", required=False)
        super().read_from(files, columns=replace(columns, language=language), **rest)

    def example_of(self, row: TextRow) -> TextExample:
        """Make the example of a row; see ``TextFileTask``."""
        gold = None if row.gold is None else self._aliases.get(row.gold, row.gold)
        return replace(super().example_of(replace(row, gold=gold)), language=row.language)

    def examples(self, split: str) -> list[TextExample]:
        """Read all examples of a split in the scored languages; see ``Task.examples``."""
        found = super().examples(split)
        if split == "train" or all(example.language is None for example in found):
            return found
        check_found(self.languages, {example.language or "" for example in found}, origin=self.origin(split))
        return [example for example in found if example.language in self.languages]

    def score(self, examples: Sequence[TextExample], answers: Iterable[LabelAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and the main metric for each; see ``Task.score``."""
        given = list(answers)

        def score(rows: Sequence[int]) -> dict[str, float]:
            return super(CrossLingualClassification, self).score(
                [examples[row] for row in rows], [given[row] for row in rows]
            )

        languages = [example.language for example in examples]
        return {**super().score(examples, given), **scores_by_language(languages, self.main_metric, score)}

    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        """Return predicted and gold labels; classes are the languages, translations are in one group. See ``Task``."""
        found = super().scored_examples(examples, answers)
        languages = [example.language for example in examples]
        classes = language_classes(languages)
        if classes is None:
            return found
        items = places_in_languages(languages, [example.label for example in examples])
        clusters = groups_of_translations(found.clusters, items)
        return replace(found, clusters=clusters, classes=classes[0], class_names=classes[1])


def _names(files: Mapping[str, str | Sequence[str] | None]) -> list[str]:
    """All names of files."""
    return [name for given in files.values() for name in ([given] if isinstance(given, str) else given or [])]

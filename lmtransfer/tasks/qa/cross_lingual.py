"""Question answering trained in one language and scored in several, from the published files of XQuAD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.file_formats.answer_places import QuestionFile
from lmtransfer.tasks.languages import (
    PLACE,
    check_languages,
    groups_of_translations,
    language_classes,
    scores_by_language,
)
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.qa.task import SpanQa

#: Name of a question's language in its metadata.
_LANGUAGE = "language"


class CrossLingualQa(SpanQa):
    """Questions in SQuAD's format, with one file per language in the splits that are scored by language.

    The metrics are over the questions of all languages, by SQuAD's script; F1 is also reported for each language, as
    ``language/de/f1``. The same question has the same published id in every language, so ids get the language's code.

    Raises:
        ConfigError: there is no language, or one occurs twice; see also ``SpanQa``.
    """

    class Settings(SpanQa.Settings):
        """The settings of questions in several languages.

        Attributes:
            languages: the languages to score; each replaces ``{language}`` in the names of files.
            files: a file or a list of files per split; a name with ``{language}`` stands for one file per language.
        """

        languages: Sequence[str]
        files: Mapping[str, str | Sequence[str] | None]

    settings: Settings

    def __init__(
        self, *, languages: Sequence[str], files: Mapping[str, str | Sequence[str] | None], **settings: Any
    ) -> None:
        self.languages = check_languages(languages)
        self._languages_of: dict[str, list[str | None]] = {}
        file_names: dict[str, list[str]] = {}
        for split, names in files.items():
            pairs = [
                (file.replace(PLACE, code or ""), code)
                for file in ([names] if isinstance(names, str) else names or [])
                for code in (self.languages if PLACE in file else (None,))
            ]
            file_names[split] = [file for file, _ in pairs]
            self._languages_of[split] = [code for _, code in pairs]
        super().__init__(languages=languages, files=file_names, **settings)

    @override
    def score(self, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and F1 for each language."""
        answer_list = list(answers)

        def score(rows: Sequence[int]) -> dict[str, float]:
            return super(CrossLingualQa, self).score(
                [examples[row] for row in rows], [answer_list[row] for row in rows]
            )

        return {
            **super().score(examples, answer_list),
            **scores_by_language(_languages(examples), self.main_metric, score),
        }

    @override
    def scored_examples(self, examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> ScoredExamples:
        """Return predicted and gold texts; classes are the languages, translations are in one group."""
        predictions = super().scored_examples(examples, answers)
        classes = language_classes(_languages(examples))
        if classes is None:
            return predictions
        questions = [example.id.partition(":")[2] for example in examples]  # the same in all languages
        clusters = groups_of_translations(predictions.clusters, questions)
        return replace(predictions, clusters=clusters, classes=classes[0], class_names=classes[1])

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

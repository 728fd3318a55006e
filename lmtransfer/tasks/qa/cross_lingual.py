"""Questions that are trained in one language and scored in several, in the published files of XQuAD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lmtransfer.config.types import Count, Folder, LargeCount, Name, OpenShare
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.file_formats.answer_places import BadAnswersPolicy, QuestionFile
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
from lmtransfer.tasks.qa.windows import STRIDE

#: Name of a question's language in its metadata.
_LANGUAGE = "language"


class CrossLingualQa(SpanQa):
    """Questions in SQuAD's format, with a file for each language in the splits that are scored by language.

    The metrics are over the questions of all languages, by SQuAD's script; F1 is also given for each language, as
    ``language/de/f1``. The same question has the same published id in every language, so ids get the language's code.

    Args:
        name: the task's name in tables and results.
        languages: the languages that are scored; each replaces ``{language}`` in the names of files.
        files: a file or a list of files for each split; a name with ``{language}`` stands for one file per language.
        stride: tokens between the starts of two windows of a long passage.
        max_question_tokens: longest question in tokens.
        max_answer_tokens: longest answer in tokens.
        bad_answers: what to do with gold answers that are not where the file says.
        max_length: longest sequence in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: there is no language, or one occurs twice; see also ``SpanQa``.
    """

    def __init__(
        self,
        *,
        name: Name,
        languages: Sequence[str],
        files: Mapping[str, str | Sequence[str] | None],
        stride: int = STRIDE,
        max_question_tokens: LargeCount = 64,
        max_answer_tokens: LargeCount = 30,
        bad_answers: BadAnswersPolicy = "refuse",
        max_length: Count | None = None,
        num_train: LargeCount | None = None,
        dev_from_train: OpenShare | None = None,
        data_root: Folder | None = None,
    ) -> None:
        self.languages = check_languages(languages)
        self._languages_of: dict[str, list[str | None]] = {}
        named: dict[str, list[str]] = {}
        for split, given in files.items():
            pairs = [
                (file.replace(PLACE, code or ""), code)
                for file in ([given] if isinstance(given, str) else given or [])
                for code in (self.languages if PLACE in file else (None,))
            ]
            named[split] = [file for file, _ in pairs]
            self._languages_of[split] = [code for _, code in pairs]
        super().__init__(
            name=name,
            files=named,
            stride=stride,
            max_question_tokens=max_question_tokens,
            max_answer_tokens=max_answer_tokens,
            bad_answers=bad_answers,
            max_length=max_length,
            num_train=num_train,
            dev_from_train=dev_from_train,
            data_root=data_root,
        )

    def score(self, examples: Sequence[QuestionExample], answers: Iterable[SpanAnswer]) -> dict[str, float]:
        """Compute the metrics over all languages, and F1 for each; see ``SpanQa``."""
        given = list(answers)

        def score(rows: Sequence[int]) -> dict[str, float]:
            return super(CrossLingualQa, self).score([examples[row] for row in rows], [given[row] for row in rows])

        return {**super().score(examples, given), **scores_by_language(_languages(examples), self.main_metric, score)}

    def scored_examples(self, examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> ScoredExamples:
        """Return predicted and gold texts; classes are the languages, translations are in one group. See ``SpanQa``."""
        found = super().scored_examples(examples, answers)
        classes = language_classes(_languages(examples))
        if classes is None:
            return found
        questions = [example.id.partition(":")[2] for example in examples]  # the same in all languages
        clusters = groups_of_translations(found.clusters, questions)
        return replace(found, clusters=clusters, classes=classes[0], class_names=classes[1])

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

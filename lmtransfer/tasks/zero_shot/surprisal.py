"""The surprisal of each word of a text, without training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import DataFile
from lmtransfer.data.files import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Item, ModelFacts

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Passage(Item):
    """A text whose words are scored; its id consists of the file and the line."""

    text: str

    @property
    def words(self) -> list[tuple[int, int]]:
        """The characters [start, end) of each word; white space separates words."""
        return [match.span() for match in _WORD.finditer(self.text)]

    @property
    def content(self) -> tuple[str, ...]:
        """The text."""
        return (self.text,)


class Surprisal(CompletionTask):
    """The surprisal of each word in bits: -log2 of its probability in context (Hale 2001; Levy 2008).

    For a language model, the context is the text before the word in its line. For a masked model, it is the rest of the
    line, and the value is a pseudo-surprisal. The surprisal of a word is the sum over its tokens. Each line is a
    separate text. ``words.tsv`` in the run directory has one row per word.
    """

    main_metric = "log2_probability"

    class Settings(CompletionTask.Settings):
        """The settings of surprisal; there is no training.

        Attributes:
            file: text file, one text per line, below ``data_root`` or the working directory.
            hidden: what is masked when a masked model predicts a token: ``token``, only that token, or
                ``rest_of_word``, also the later tokens of its word.
        """

        file: DataFile
        hidden: Literal["token", "rest_of_word"] = "token"

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.hidden = self.settings.hidden

    @override
    def examples(self, split: str) -> list[Passage]:
        """Read the lines that are not blank."""
        self.check_split(split)
        path = self.find_file(self.settings.file)
        passages = [Passage(f"{path.name}:{number}", line) for number, line in read_lines(path) if line.strip()]
        if not passages:
            raise DataError(f"task.file={self.settings.file}: the file contains no text")
        return passages

    @override
    def completions(self, item: Passage) -> list[Completion]:
        return [Completion(item.text)]

    @override
    def describe(self, method: str) -> str:
        return f"surprisal in bits, {method}"

    @override
    def evaluate(self, items: Sequence[Passage], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        answers = [
            word_surprisals(item, part.tokens[0], part.spans[0]) for item, part in zip(items, scores, strict=True)
        ]
        rows = [
            f"{item.id}\t{number}\t{item.text[slice(*span)]}\t{bits:.6f}"
            for item, surprisals in zip(items, answers, strict=True)
            for number, (span, bits) in enumerate(zip(item.words, surprisals.tolist(), strict=True))
        ]
        return Findings(
            metrics=self.score(items, answers),
            examples=self.scored_examples(items, answers),
            num_scored=len(rows),
            shown={"surprisal": "surprisal"},
            notes=[f"{len(items):,} texts", "words.tsv has one row per word"],
            files={"words.tsv": "\n".join(["text\tnumber\tword\tsurprisal", *rows]) + "\n"},
        )

    def score(self, examples: Sequence[Passage], answers: Iterable[np.ndarray]) -> dict[str, float]:
        """Compute means over words.

        Args:
            answers: surprisal of each word of each text, in bits.
        """
        mean = float(np.concatenate(list(answers)).mean())
        return {"log2_probability": -mean, "surprisal": mean}

    def scored_examples(self, examples: Sequence[Passage], answers: Sequence[np.ndarray]) -> ScoredExamples:
        """Return the log2-probability of each text, and its number of words."""
        totals = np.array([-surprisals.sum() for surprisals in answers], dtype=np.float64)
        counts = np.array([len(surprisals) for surprisals in answers], dtype=np.float64)
        ratios = {self.main_metric: Ratio(totals, counts)}
        return scored_examples(examples, kind="pairs", ratios=ratios)


def word_surprisals(passage: Passage, logs: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return the surprisal of each word, the sum over its tokens, in bits, float64.

    A token belongs to the word that contains its last character.

    Args:
        logs: log-probability of each token of the text, in nats.
        spans: characters [start, end) of each token.
    """
    starts = np.array([start for start, _ in passage.words])
    word_of = np.maximum(np.searchsorted(starts, np.maximum(spans[:, 1] - 1, 0), side="right") - 1, 0)
    return np.bincount(word_of, weights=-logs / np.log(2), minlength=len(starts))

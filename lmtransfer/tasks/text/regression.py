"""Regression: a score for a text or a text pair; and sentence similarity without training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from typing_extensions import override

from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.base import Answer, TaskWithoutHead
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec, RegressionSpec, ScoreTargets
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextRow
from lmtransfer.tasks.text.task import TextFileTask

ScoreMetric = Literal["pearson", "spearman"]


#: Maximum magnitude of a score, whose square is well within the range of float32.
_LARGEST = 1e15


class TextRegression(TextFileTask):
    """Single texts or pairs with one score each, from one file per split or from the hub."""

    class Settings(TextFileTask.Settings):
        """The settings of a regression task.

        Attributes:
            score_column: column of the score, a finite number.
            metrics: names of the metrics; the first is the main one.
        """

        score_column: ColumnNames
        metrics: Sequence[ScoreMetric] = ("pearson", "spearman")

    settings: Settings
    gold_setting = "score_column"
    kind = RegressionSpec.kind
    baseline_name = "mean score"

    @property
    def head(self) -> HeadSpec:
        """A head with a single output."""
        return RegressionSpec(pairs=self.pairs)

    @override
    def gold(self, examples: Sequence[TextExample]) -> ScoreTargets[np.ndarray]:
        scores = [math.nan if example.score is None else example.score for example in examples]
        return ScoreTargets(np.array(scores, dtype=np.float32))

    @override
    def number_of(self, answer: ScoreAnswer) -> float:
        return answer.score

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[ScoreAnswer]:
        for _, score in zip(encoded.examples, outputs[:, 0].tolist(), strict=True):
            yield ScoreAnswer(score)

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[ScoreAnswer]) -> ScoredExamples:
        """Return predicted and gold scores, and their squared errors."""
        predicted = np.array([answer.score for answer in answers], dtype=np.float64)
        gold = np.array([math.nan if example.score is None else example.score for example in examples])
        ratios = {"squared_error": Ratio.mean((predicted - gold) ** 2)}
        return scored_examples(examples, kind="regression", predicted=predicted, gold=gold, ratios=ratios)

    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Answer]:
        """Predict the mean training score for every example; the correlation is undefined and reported as 0."""
        mean = float(np.mean([example.score for example in train if example.score is not None]))
        return [ScoreAnswer(mean)] * len(examples)

    @override
    def example_of(self, row: TextRow) -> TextExample:
        score = None
        if row.gold is not None:
            try:
                score = float(row.gold)
            except ValueError:
                score = math.nan
            if not math.isfinite(score):
                raise ValueError(f"the score {row.gold[:40]!r} is not a finite number")
            if abs(score) > _LARGEST:
                raise ValueError(
                    f"the score {row.gold[:40]!r} is larger than {_LARGEST:g} in absolute value; use another unit"
                )
        return TextExample(row.id, row.text, row.text_pair, score=score)


#: Expected correlation of random answers.
CHANCE = 0.0


class SentenceSimilarity(TaskWithoutHead, TextRegression):
    """The similarity of sentence pairs, without training (STS: Agirre et al. 2012; Reimers and Gurevych 2019).

    The similarity is the cosine of the sentences' vectors. Only correlations with the gold scores are measured, because
    cosines are on a different scale.
    """

    class Settings(TextRegression.Settings):
        """The settings of sentence similarity; there is no training.

        Attributes:
            text_pair_column: column of the second sentence.
            pooling: how the tokens of a sentence become one vector; see ``transfer.pooling``. null: the pooling of the
                run's head, or the mean if it has no head.
            layers: the layers to read; see ``transfer.layers``. null: the layers of the run's head, or the last layer.
            standardise: whether to scale each feature to mean 0 and deviation 1 over the split's sentences.
        """

        text_pair_column: ColumnNames
        pooling: Literal["mean", "max", "cls", "last_token", "family"] | None = "mean"
        layers: Literal["last"] | int | Sequence[Literal["last"] | int] | None = "last"
        standardise: bool = False
        num_train: None = None
        dev_from_train: None = None
        folds: None = None

    settings: Settings

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[ScoreAnswer]) -> ScoredExamples:
        """Return cosines and gold scores."""
        said = np.array([answer.score for answer in answers], dtype=np.float64)
        gold = np.array([np.nan if example.score is None else example.score for example in examples])
        return scored_examples(examples, kind="regression", predicted=said, gold=gold, ratios={})

"""The similarity of two sentences: the cosine of their vectors, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from typing_extensions import override

from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples, scored_examples
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.regression import TextRegression
from lmtransfer.tasks.without_head import TaskWithoutHead

#: Correlation of uninformed answers.
CHANCE = 0.0


class SentenceSimilarity(TaskWithoutHead, TextRegression):
    """Sentence pairs with a score, which any run answers as it is (STS: Agirre et al. 2012; Reimers and Gurevych 2019).

    The answer to a pair is the cosine of its sentences' vectors. Only correlations with the gold scores are measured,
    because a cosine has another scale.
    """

    class Settings(TextRegression.Settings):
        """The settings of sentence similarity; there is no training.

        Attributes:
            text_pair_column: column of the second sentence.
            pooling: how the tokens of a sentence become one vector; see ``transfer.pooling``. null: the pooling of the
                run's head, or the mean if it has no head.
            layers: the layers to read; see ``transfer.layers``. null: the layers of the run's head, or the last layer.
            standardise: whether to scale each feature to mean 0 and deviation 1 over the split's sentences first.
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

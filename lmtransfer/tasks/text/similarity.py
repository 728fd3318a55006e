"""How similar two sentences are, by the cosine of their vectors, without any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from lmtransfer.config.types import Count, Folder, Name
from lmtransfer.data.tables import TableFormat
from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples, scored_examples
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.regression import ScoreMetric, TextRegression
from lmtransfer.tasks.without_head import TaskWithoutHead

#: Correlation of answers that know nothing.
CHANCE = 0.0


class SentenceSimilarity(TaskWithoutHead, TextRegression):
    """Pairs of sentences with a score, for any run as it is (STS: Agirre et al. 2012; Reimers and Gurevych 2019).

    The answer to a pair is the cosine of the vectors of its sentences. Only correlations with the gold scores are
    measured, because a cosine has another scale.

    Args:
        name: the task's name in tables and results.
        text_column: column of the first sentence.
        text_pair_column: column of the second sentence.
        score_column: column of the score.
        files: file of each split; several names for one split are tried in order.
        hidden_values: values in the files that mean a hidden score.
        columns: names of all columns, for files without a header line.
        optional_columns: how many of the last ``columns`` a row may lack.
        file_format: ``tsv``, ``quoted_tsv``, ``csv`` or ``jsonl``; null: by the file's name.
        hub: ``datasets`` name for splits without a file; null: files only.
        hub_config: its configuration.
        hub_splits: hub name of each split.
        metrics: names of the metrics; the first is the main one.
        pooling: how the tokens of a sentence become one vector; see ``transfer.pooling``. null: as the run's head
            reads a text, or the mean if it has no head.
        layers: the layers that are read; see ``transfer.layers``. null: as the run's head, or the last.
        standardise: scale each feature to mean 0 and deviation 1 over the sentences of the split first.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        data_root: folder that holds the data folders.
    """

    def __init__(
        self,
        *,
        name: Name,
        text_column: str | Sequence[str],
        text_pair_column: str | Sequence[str],
        score_column: str | Sequence[str],
        files: Mapping[str, str | Sequence[str] | None] | None = None,
        hidden_values: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        optional_columns: int = 0,
        file_format: TableFormat | None = None,
        hub: str | None = None,
        hub_config: str | None = None,
        hub_splits: Mapping[str, str] | None = None,
        metrics: Sequence[ScoreMetric] = ("pearson", "spearman"),
        pooling: Literal["mean", "max", "cls", "last_token", "family"] | None = "mean",
        layers: Literal["last"] | int | Sequence[Literal["last"] | int] | None = "last",
        standardise: bool = False,
        max_length: Count | None = None,
        data_root: Folder | None = None,
    ) -> None:
        super().__init__(
            name=name,
            text_column=text_column,
            text_pair_column=text_pair_column,
            score_column=score_column,
            files=files,
            hidden_values=hidden_values,
            columns=columns,
            optional_columns=optional_columns,
            file_format=file_format,
            hub=hub,
            hub_config=hub_config,
            hub_splits=hub_splits,
            metrics=metrics,
            max_length=max_length,
            data_root=data_root,
        )
        self.pooling, self.layers, self.standardise = pooling, layers, standardise

    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[ScoreAnswer]) -> ScoredExamples:
        """Return cosines and gold scores; see ``Task``."""
        said = np.array([answer.score for answer in answers], dtype=np.float64)
        gold = np.array([np.nan if example.score is None else example.score for example in examples])
        return scored_examples(examples, kind="regression", predicted=said, gold=gold, ratios={})

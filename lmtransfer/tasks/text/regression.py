"""Predict a score for a text or a pair of texts, from published files or from the hub."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from lmtransfer.config.types import Count, Folder, Folds, LargeCount, Name, OpenShare
from lmtransfer.data.tables import BadRowsPolicy, TableFormat, TableLayout
from lmtransfer.data.text_lines import EncodingErrors
from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec, RegressionSpec
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.places import HubSource
from lmtransfer.tasks.targets import ScoreTargets
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextColumns, TextRow
from lmtransfer.tasks.text.task import TextFileTask

ScoreMetric = Literal["pearson", "spearman"]


#: Largest magnitude of a score; its square is well within the range of float32.
_LARGEST = 1e15


class TextRegression(TextFileTask):
    """Single texts or pairs with one score each; files, columns and the hub are as in ``TextClassification``.

    Args:
        name: the task's name in tables and results.
        files: file of each split, such as ``{train: stsb/train.tsv}``; several names for one are tried in order.
        train: file of the training split, instead of ``files``.
        dev: file of the dev split, instead of ``files``.
        test: file of the test split, instead of ``files``.
        text_column: column of the text, or of the first text of a pair.
        text_pair_column: column of the second text; null: single texts.
        score_column: column of the score, a finite number.
        id_column: column of the examples' names; null: names are ``split:number``, from 0.
        hidden_values: values in the files that mean a hidden score.
        dropped_values: values in the files that mean no score; such rows are left out and counted in ``notes``.
        columns: names of all columns, for files without a header line.
        optional_columns: how many of the last ``columns`` a row may lack.
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv``, ``jsonl`` (or an array of objects)
            or ``parquet`` (or arrow); null: by the file's name, and by its quotation marks if it is tab-separated.
        delimiter: the character between columns, or ``tab``; null: the one with which the first line names the columns.
        bad_rows: ``refuse`` stops at a row that cannot be read; ``skip`` leaves it out and counts it in ``notes``.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there.
        metrics: names of the metrics; the first is the main one.
        hub: ``datasets`` name for splits without a file; null: files only.
        hub_config: its configuration.
        hub_splits: hub name of each split.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        folds: number of folds of the training split for cross-validation, if there is no dev split; null: none.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: there is no metric, or there is neither a file nor a hub name.
    """

    kind = RegressionSpec.kind
    baseline_name = "mean score"

    def __init__(
        self,
        *,
        name: Name,
        text_column: str | Sequence[str],
        score_column: str | Sequence[str],
        files: Mapping[str, str | Sequence[str] | None] | None = None,
        train: str | None = None,
        dev: str | None = None,
        test: str | None = None,
        text_pair_column: str | Sequence[str] | None = None,
        id_column: str | None = None,
        hidden_values: Sequence[str] = (),
        dropped_values: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        optional_columns: int = 0,
        file_format: TableFormat | None = None,
        delimiter: str | None = None,
        bad_rows: BadRowsPolicy = "refuse",
        encoding_errors: EncodingErrors = "strict",
        metrics: Sequence[ScoreMetric] = ("pearson", "spearman"),
        hub: str | None = None,
        hub_config: str | None = None,
        hub_splits: Mapping[str, str] | None = None,
        max_length: Count | None = None,
        num_train: LargeCount | None = None,
        dev_from_train: OpenShare | None = None,
        folds: Folds | None = None,
        data_root: Folder | None = None,
    ) -> None:
        super().__init__(
            name=name, metrics=metrics, max_length=max_length, num_train=num_train, dev_from_train=dev_from_train
        )
        self.read_from(
            files,
            train=train,
            dev=dev,
            test=test,
            columns=TextColumns.of(
                text_column=text_column,
                text_pair_column=text_pair_column,
                id_column=id_column,
                score_column=score_column,
            ),
            layout=TableLayout.of_task(file_format, columns, optional_columns, bad_rows, encoding_errors, delimiter),
            hub=HubSource.of(hub, hub_config, hub_splits),
            hidden_values=hidden_values,
            dropped_values=dropped_values,
            data_root=data_root,
            folds=folds,
        )

    @property
    def head(self) -> HeadSpec:
        """A head for one number."""
        return RegressionSpec(pairs=self.pairs)

    def gold(self, examples: Sequence[TextExample]) -> ScoreTargets[np.ndarray]:
        """The scores."""
        scores = [math.nan if example.score is None else example.score for example in examples]
        return ScoreTargets(np.array(scores, dtype=np.float32))

    def number_of(self, answer: ScoreAnswer) -> float:
        """The score."""
        return answer.score

    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[ScoreAnswer]:
        """Yield the head's number for each example.

        Args:
            encoded: N examples.
            outputs: shape (N, 1).
        """
        for _, score in zip(encoded.examples, outputs[:, 0].tolist(), strict=True):
            yield ScoreAnswer(score)

    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[ScoreAnswer]) -> ScoredExamples:
        """Return predicted and gold scores, and the squared error of each; see ``Task``."""
        predicted = np.array([answer.score for answer in answers], dtype=np.float64)
        gold = np.array([math.nan if example.score is None else example.score for example in examples])
        ratios = {"squared_error": Ratio.mean((predicted - gold) ** 2)}
        return scored_examples(examples, kind="regression", predicted=predicted, gold=gold, ratios=ratios)

    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Answer]:
        """Answer every example with the mean training score; its correlation is undefined and is reported as 0."""
        mean = float(np.mean([example.score for example in train if example.score is not None]))
        return [ScoreAnswer(mean)] * len(examples)

    def example_of(self, row: TextRow) -> TextExample:
        """Make the example of a row; see ``TextFileTask``.

        Raises:
            ValueError: the score is not a finite number, or its square exceeds the range of float32.
        """
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

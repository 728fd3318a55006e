"""Submission files for the servers that score hidden labels: GLUE's tables and SQuAD's JSON.

GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461): one table per task with the columns ``index`` and
``prediction``, with the file names and label spellings of the sample submission at https://gluebenchmark.com. SQuAD:
answers by question id, as evaluate-v1.1.py and evaluate-v2.0.py read them (https://rajpurkar.github.io/SQuAD-explorer),
and for 2.0 also the probabilities of no answer, for the script's ``--na-prob-file``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelAnswer, ScoreAnswer, SpanAnswer

#: The range of scores available to STS-B's annotators.
_LOWEST_SCORE, _HIGHEST_SCORE = 0.0, 5.0


@dataclass(frozen=True, slots=True)
class GlueTable:
    """The format of a task's predictions for GLUE.

    Attributes:
        label_names: GLUE's spelling of each of our label names; None if the prediction is a score.
    """

    file: str
    label_names: Mapping[str, str] | None


def _as_named(*labels: str) -> dict[str, str]:
    return {label: label for label in labels}


def _as_bits(no: str, yes: str) -> dict[str, str]:
    return {no: "0", yes: "1"}


_NLI = _as_named("entailment", "neutral", "contradiction")
_TABLES: dict[str, GlueTable] = {
    "cola": GlueTable("CoLA.tsv", _as_bits("unacceptable", "acceptable")),
    "sst2": GlueTable("SST-2.tsv", _as_bits("negative", "positive")),
    "mrpc": GlueTable("MRPC.tsv", _as_bits("not_equivalent", "equivalent")),
    "stsb": GlueTable("STS-B.tsv", None),
    "qqp": GlueTable("QQP.tsv", _as_bits("not_duplicate", "duplicate")),
    "mnli": GlueTable("MNLI-m.tsv", _NLI),
    "mnli_mismatched": GlueTable("MNLI-mm.tsv", _NLI),
    "ax": GlueTable("AX.tsv", _NLI),
    "qnli": GlueTable("QNLI.tsv", _as_named("entailment", "not_entailment")),
    "rte": GlueTable("RTE.tsv", _as_named("entailment", "not_entailment")),
    "wnli": GlueTable("WNLI.tsv", _as_bits("not_entailment", "entailment")),
}


def glue_table(task: str, split: str, labels: Sequence[str]) -> GlueTable:
    """Return GLUE's format for the predictions of a split.

    Args:
        split: MNLI has separate files for splits that end in ``mismatched`` and for others.
    """
    table = _TABLES.get(f"{task}_mismatched" if split.endswith("mismatched") else task)
    if table is None:
        tasks = ", ".join(name for name in _TABLES if name != "mnli_mismatched")
        raise ConfigError(f"submission=glue: task {task}, split {split}, is not in GLUE; GLUE has {tasks}")
    glue_labels = table.label_names or {}
    if set(labels) != set(glue_labels):
        raise ConfigError(
            f"submission=glue: task {task} has the labels {', '.join(labels) or 'none'}, but GLUE has the labels "
            f"{', '.join(glue_labels) or 'none, only scores'}"
        )
    return table


def glue_lines(table: GlueTable, answers: Iterable[LabelAnswer | ScoreAnswer]) -> Iterator[str]:
    """Yield the lines of the file, without line ends.

    Args:
        answers: answers to all rows of the published test file, in order.
    """
    yield "index\tprediction"
    for index, answer in enumerate(answers):
        yield f"{index}\t{_prediction(table, answer, index)}"


def _prediction(table: GlueTable, answer: LabelAnswer | ScoreAnswer, index: int) -> str:
    if isinstance(answer, LabelAnswer):
        assert table.label_names is not None
        return table.label_names[answer.name]
    if not math.isfinite(answer.score):
        raise DataError(f"row {index}: the score {answer.score} is not a finite number; did training diverge?")
    return f"{min(_HIGHEST_SCORE, max(_LOWEST_SCORE, answer.score)):.3f}"


def check_complete(ids: Sequence[str], split: str) -> None:
    """Check that no row of a split was left out, because GLUE identifies rows by their position."""
    for place, name in enumerate(ids):
        number = name.removeprefix(f"{split}:")
        if number != name and number != str(place):
            raise DataError(
                f"split {split}: row {place} was left out because it cannot be read, but a submission needs every row; "
                "set task.bad_rows=refuse to see what is wrong with the row"
            )


def squad_predictions(ids: Sequence[str], answers: Iterable[SpanAnswer]) -> dict[str, str]:
    """Return the answers by question id; a text is empty for no answer."""
    predictions = {name: answer.text for name, answer in zip(ids, answers, strict=True)}
    if len(predictions) != len(ids):
        raise DataError(
            f"{len(ids) - len(predictions)} questions have the same id as another question, but a submission needs a "
            "different id for each"
        )
    return predictions


def no_answer_probabilities(ids: Sequence[str], answers: Iterable[SpanAnswer]) -> dict[str, float]:
    """Return the probability of no answer by question id, comparing "no answer" with the best span alone.

    The probability orders questions like the published null odds (null score minus span score), on which the script's
    best threshold depends, for odds up to 36; larger odds all become 1 in float64. The probability never exceeds the
    script's threshold of 1, so the script's plain scores are those of the answers.
    """
    from scipy.special import expit

    return {name: float(expit(answer.null_score - answer.score)) for name, answer in zip(ids, answers, strict=True)}

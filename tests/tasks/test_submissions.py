"""Submission files: names, spellings and numbers as the servers expect them."""

from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.answers import LabelAnswer, ScoreAnswer, SpanAnswer
from lmtransfer.tasks.metrics.question_answering import squad2_scores
from lmtransfer.tasks.submissions import (
    check_complete,
    glue_lines,
    glue_table,
    no_answer_probabilities,
    squad_predictions,
)

#: File and predictions in GLUE's sample submission, and our labels in the order of conf/task.
SAMPLE = {
    ("cola", "test"): ("CoLA.tsv", ["0", "1"]),
    ("sst2", "test"): ("SST-2.tsv", ["0", "1"]),
    ("mrpc", "test"): ("MRPC.tsv", ["0", "1"]),
    ("qqp", "test"): ("QQP.tsv", ["0", "1"]),
    ("wnli", "test"): ("WNLI.tsv", ["0", "1"]),
    ("mnli", "test"): ("MNLI-m.tsv", ["entailment", "neutral", "contradiction"]),
    ("mnli", "test_mismatched"): ("MNLI-mm.tsv", ["entailment", "neutral", "contradiction"]),
    ("ax", "test"): ("AX.tsv", ["entailment", "neutral", "contradiction"]),
    ("qnli", "test"): ("QNLI.tsv", ["entailment", "not_entailment"]),
    ("rte", "test"): ("RTE.tsv", ["entailment", "not_entailment"]),
}


@pytest.mark.parametrize(("task", "split"), SAMPLE)
def test_labels_are_spelt_as_glue_wants_them(task: str, split: str) -> None:
    file, written = SAMPLE[task, split]
    labels = list((group_config("task", task, [conf_dir()]) or {})["labels"])
    table = glue_table(task, split, labels)
    assert table.file == file
    lines = list(glue_lines(table, [LabelAnswer(label, name) for label, name in enumerate(labels)]))
    assert lines == ["index\tprediction", *(f"{index}\t{word}" for index, word in enumerate(written))]


def test_all_tasks_of_the_benchmark_have_a_file() -> None:
    tasks = set(OmegaConf.load(conf_dir() / "task" / "glue.yaml").tasks)
    assert tasks == {task for task, _ in SAMPLE} - {"ax"} | {"stsb"}


def test_scores_are_clipped_with_three_decimals() -> None:
    table = glue_table("stsb", "test", [])
    scores = [-0.2, 0.0, 2.34567, 4.9999, 5.7]
    lines = list(glue_lines(table, map(ScoreAnswer, scores)))
    assert table.file == "STS-B.tsv"
    assert lines[1:] == ["0\t0.000", "1\t0.000", "2\t2.346", "3\t5.000", "4\t5.000"]
    with refuses(DataError, "row 0", "nan"):
        list(glue_lines(table, [ScoreAnswer(math.nan)]))


def test_other_tasks_and_labels_are_refused() -> None:
    with refuses(ConfigError, "submission=glue", "snli", "test", "cola, sst2, "):
        glue_table("snli", "test", ["entailment", "neutral", "contradiction"])
    with refuses(ConfigError, "submission=glue", "no, yes", "entailment, not_entailment"):
        glue_table("rte", "test", ["no", "yes"])


def test_a_row_that_was_left_out_is_noticed() -> None:
    check_complete(["test:0", "test:1", "named"], "test")
    with refuses(DataError, "split test", "row 1 ", "task.bad_rows=refuse"):
        check_complete(["test:0", "test:2"], "test")


def test_answers_by_question_and_their_scores_are_what_the_script_makes_of_them() -> None:
    ids = ["a", "b", "c", "d"]
    answers = [
        SpanAnswer("the cat", 0, 7, score=9.0, null_score=2.0),
        SpanAnswer("", None, None, score=1.0, null_score=4.0, best="dog"),
        SpanAnswer("a dog", 0, 5, score=3.0, null_score=2.5),
        SpanAnswer("", None, None, score=-3.4e38, null_score=500.0),
    ]
    texts = squad_predictions(ids, answers)
    assert texts == {"a": "the cat", "b": "", "c": "a dog", "d": ""}
    probabilities = no_answer_probabilities(ids, answers)
    for name, log_odds in (("a", -7.0), ("b", 3.0), ("c", -0.5)):
        assert probabilities[name] == pytest.approx(1 / (1 + math.exp(-log_odds)))
    assert probabilities["d"] == 1.0
    references = {"a": ["cat"], "b": [], "c": [], "d": []}
    odds = {name: answer.null_score - answer.score for name, answer in zip(ids, answers, strict=True)}
    scored = squad2_scores(texts, references, null_odds=probabilities, threshold=1.0)
    assert scored["exact"] == 0.75  # c is unanswerable but answered
    by_odds = squad2_scores(texts, references, null_odds=odds, threshold=0.0)
    assert scored["best_f1"] == by_odds["best_f1"] == 1.0
    with refuses(DataError, "1 question", " id "):
        squad_predictions(["a", "a"], answers[:2])

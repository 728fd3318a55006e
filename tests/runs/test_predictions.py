"""Saved predictions reproduce every metric and are small; invalid files are rejected."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.predictions import file_name, prediction_files, read_predictions, write_predictions
from lmtransfer.tasks.answers import LabelAnswer, LabelSetAnswer, ScoreAnswer, SpanAnswer, TagsAnswer
from lmtransfer.tasks.file_formats.blimp import Choice
from lmtransfer.tasks.metrics.scored_examples import (
    MOST_ID_BYTES,
    MOST_TEXT_BYTES,
    Predictions,
    Ratio,
    ScoredExamples,
    contributions,
    metric_value,
    scored_examples,
)
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression
from lmtransfer.tasks.zero_shot.choices import CompletionChoice

NUM = 60
WORDS = ["the red sea", "a red sea", "Ann", "ann ran", "sea", "the", "Bob stayed", "of red"]


def texts(rng: random.Random, **gold: Any) -> list[TextExample]:
    return [TextExample(f"dev:{i}", f"text {i % 50}", **{k: f(rng, i) for k, f in gold.items()}) for i in range(NUM)]


def classification() -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(1)
    made = TextClassification(
        name="c", labels=["x", "y", "z"], train="none.tsv", text_column="t", label_column="l",
        metrics=["matthews", "accuracy", "macro_f1", "f1"], positive_label="y",
    )  # fmt: skip
    examples = texts(rng, label=lambda rng, i: rng.choice([0, 0, 1, 2]))
    said = [e.label if rng.random() < 0.6 else rng.randrange(3) for e in examples]
    return made, examples, [LabelAnswer(label, made.labels[label]) for label in said]


def multi_label() -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(7)
    made = MultiLabel(
        name="m", labels=["x", "y", "z"], train="none.tsv", text_column="t", label_column="l",
        metrics=["macro_f1", "micro_f1", "average_precision"],
    )  # fmt: skip
    examples = texts(rng, label_set=lambda rng, i: tuple(label for label in range(3) if rng.random() < 0.4))
    answers = []
    for example in examples:
        chances = {name: rng.betavariate(2, 2) for name in made.labels}
        chances |= {made.labels[label]: rng.betavariate(4, 2) for label in example.label_set}
        chosen = tuple(label for label, chance in enumerate(chances.values()) if chance > 0.5)
        answers.append(LabelSetAnswer(chosen, tuple(made.labels[label] for label in chosen), chances))
    return made, examples, answers


def regression() -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(2)
    made = TextRegression(name="r", train="none.tsv", text_column="t", score_column="s")
    examples = texts(rng, score=lambda rng, i: round(rng.uniform(0, 5), 1))
    return made, examples, [ScoreAnswer((e.score or 0) + rng.gauss(0, 1)) for e in examples]


def tagging() -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(3)
    made = Tagging(name="t", scheme="bio", labels=["O", "B-A", "I-A", "B-B", "I-B"], files={"train": "none"})
    lengths = [rng.randrange(1, 9) for _ in range(NUM)]
    examples = [
        TaggedExample(f"dev:{i}", tuple(f"w{i}-{j}" for j in range(n)), tuple(rng.choices(range(5), k=n)))
        for i, n in enumerate(lengths)
    ]
    said = [[tag if rng.random() < 0.7 else rng.randrange(5) for tag in e.tags or ()] for e in examples]
    return made, examples, [TagsAnswer(tuple(tags), tuple(made.labels[tag] for tag in tags)) for tags in said]


def questions(file_format: str, *, no_answer: bool, labels: tuple[str, ...] = ()) -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(4)
    made = SpanQa(name="q", files={"train": "none"}, file_format=file_format, no_answer=no_answer, labels=labels)  # type: ignore[arg-type]
    examples = []
    for i in range(NUM):
        gold = tuple(GoldSpan(rng.choice(WORDS)) for _ in range(rng.randrange(0 if no_answer else 1, 4)))
        if file_format == "quac":
            gold = gold or (GoldSpan("CANNOTANSWER"),)
        marks = (("source", rng.choice(["news", "books"])),) if file_format == "coqa" else ()
        examples.append(QuestionExample(f"C_{i // 4}_q#{i}", f"q{i}?", f"passage {i // 4}", gold, metadata=marks))
    answers = []
    for example in examples:
        text = rng.choice([*(gold.text for gold in example.answers or ()), rng.choice(WORDS)])
        null = rng.gauss(0, 1)
        answers.append(SpanAnswer("" if no_answer and null > 0 else text, score=0.0, null_score=null, best=text))
    return made, examples, answers


def pairs() -> tuple[Any, list[Any], list[Any]]:
    rng = random.Random(5)
    examples = [
        Choice(f"p{i}", ("", ""), (f"good {i}", f"bad {i}"), 0, f"paradigm{i % 7}", f"phenomenon{i % 7 // 3}")
        for i in range(NUM)
    ]
    return CompletionChoice(name="p", format="blimp", folder="none"), examples, [(rng.random(), 0.4) for _ in examples]


FAMILIES: dict[str, Callable[[], tuple[Any, list[Any], list[Any]]]] = {
    "classification": classification,
    "multi_label": multi_label,
    "regression": regression,
    "tagging": tagging,
    "squad": lambda: questions("squad", no_answer=False),
    "squad2": lambda: questions("squad", no_answer=True),
    "quac": lambda: questions("quac", no_answer=True),
    "coqa": lambda: questions("coqa", no_answer=False, labels=("yes", "no", "unknown")),
    "pairs": pairs,
}
#: Metrics to which single examples do not contribute, and metrics of groups of examples.
NOT_KEPT = ("average_precision", "best_", "heq_d", "human_f1", "phenomenon/", "paradigm/", "news_", "books_")


def kept(examples: ScoredExamples, **more: Any) -> Predictions:
    return Predictions(**{
        "task": "t", "split": "dev", "main_metric": "accuracy", "seed": 1, "pretraining_seed": None,
        "is_control": False, "examples": examples, **more,
    })  # fmt: skip


def round_trip(examples: ScoredExamples, folder: Path) -> Predictions:
    write_predictions(folder, {"dev": kept(examples)})
    return read_predictions(folder / "predictions" / "dev.parquet")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_metric_comes_back_from_the_file(family: str, tmp_path: Path) -> None:
    task, examples, answers = FAMILIES[family]()
    found = round_trip(task.scored_examples(examples, answers), tmp_path).examples
    told = {k: v for k, v in task.score(examples, answers).items() if not k.startswith(NOT_KEPT)}
    assert len(told) >= 1
    for metric, value in told.items():
        assert metric_value(found, metric) == pytest.approx(value, abs=1e-12), metric
        shares = contributions(found, metric)
        assert shares is not None
        assert shares.shape == (NUM,)
        assert shares.mean() == pytest.approx(value, abs=1e-9), metric
    assert [*found.ids] == [example.id for example in examples]
    assert found.lengths.tolist() == [sum(map(len, example.content)) for example in examples]
    groups = {example.group: place for place, example in zip(found.clusters.tolist(), examples, strict=True)}
    assert [groups[example.group] for example in examples] == found.clusters.tolist()
    assert len(set(found.clusters.tolist())) == len({example.group for example in examples})


def test_scores_of_examples_by_hand(tmp_path: Path) -> None:
    """The contribution of each example, computed from the definitions."""
    task, examples, answers = classification()
    found = round_trip(task.scored_examples(examples, answers), tmp_path).examples
    right = [float(answer.label == example.label) for answer, example in zip(answers, examples, strict=True)]
    assert contributions(found, "accuracy") == pytest.approx(right)
    task, examples, answers = regression()
    found = task.scored_examples(examples, answers)
    errors = [(answer.score - example.score) ** 2 for answer, example in zip(answers, examples, strict=True)]
    assert metric_value(found, "squared_error") == pytest.approx(sum(errors) / NUM)
    correlation = np.corrcoef([a.score for a in answers], [e.score for e in examples])[0, 1]
    assert metric_value(found, "pearson") == pytest.approx(correlation)


@pytest.mark.parametrize(("family", "metric"), [("classification", "matthews"), ("classification", "macro_f1"),
                                                ("regression", "spearman"), ("multi_label", "macro_f1")])  # fmt: skip
def test_a_metric_without_each_example_is_the_brute_force(family: str, metric: str) -> None:
    task, examples, answers = FAMILIES[family]()
    found = task.scored_examples(examples, answers)
    whole = task.score(examples, answers)[metric]
    left_out = [
        task.score([*examples[:i], *examples[i + 1 :]], [*answers[:i], *answers[i + 1 :]])[metric] for i in range(NUM)
    ]
    mean = sum(left_out) / NUM
    assert contributions(found, metric) == pytest.approx([whole + (NUM - 1) * (mean - v) for v in left_out])


@pytest.mark.parametrize(("family", "metric"), [("regression", "pearson"), ("tagging", "f1"), ("quac", "f1"),
                                                ("multi_label", "micro_f1")])  # fmt: skip
def test_the_spread_of_contributions_is_that_of_a_bootstrap(family: str, metric: str) -> None:
    task, examples, answers = FAMILIES[family]()
    found = task.scored_examples(examples, answers)
    shares = contributions(found, metric)
    assert shares is not None
    rng = np.random.default_rng(0)
    drawn = [metric_value(found, metric, rng.integers(NUM, size=NUM)) for _ in range(1000)]
    assert shares.std(ddof=1) / math.sqrt(NUM) == pytest.approx(np.std([v for v in drawn if v is not None]), rel=0.12)


def test_examples_are_told_apart_by_what_they_hold() -> None:
    ratio = {"accuracy": Ratio.mean([1.0] * 4)}
    one = [TextExample("a", "x"), TextExample("b", "x"), TextExample("c", "x", "y"), TextExample("d", "x y")]
    other = [TextExample("1", "x y"), TextExample("2", "x"), TextExample("3", "x"), TextExample("4", "x", "y")]
    keys = [scored_examples(e, kind="pairs", ratios=ratio).keys.tolist() for e in (one, other)]
    assert len(set(keys[0])) == 4
    assert keys[1] == [keys[0][3], keys[0][0], keys[0][1], keys[0][2]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_its_examples_gold_answers_labels_and_metric(family: str) -> None:
    task, examples, answers = FAMILIES[family]()
    examples, answers = examples[:50], answers[:50]  # with different contents
    whole = task.scored_examples(examples, answers)
    backwards = task.scored_examples(examples[::-1], answers[::-1])
    assert whole.fingerprint("f1") == backwards.fingerprint("f1")
    others = [whole.select(np.arange(49)).fingerprint("f1"), whole.fingerprint("accuracy")]
    if whole.labels:
        others.append(replace(whole, labels=(*whole.labels, "more")).fingerprint("f1"))
    if whole.kind != "pairs":
        turned = whole.gold_answers[::-1]
        gold = whole.gold[::-1] if whole.kind != "tagging" else (whole.gold + 1) % len(whole.labels)
        others.append(replace(whole, gold=gold, gold_answers=turned).fingerprint("f1"))
    assert len({*others, whole.fingerprint("f1")}) == len(others) + 1


@pytest.mark.parametrize(("family", "metric", "is_same"), [
    ("classification", "accuracy", True),
    ("classification", "f1", False),  # a different label counts
    ("tagging", "f1", True),
])  # fmt: skip
def test_the_order_of_labels_is_no_part_of_a_task(family: str, metric: str, is_same: bool) -> None:
    task, examples, answers = FAMILIES[family]()
    whole = task.scored_examples(examples, answers)
    moved = replace(whole, labels=whole.labels[::-1], gold=len(whole.labels) - 1 - whole.gold, positive=0)
    assert (moved.fingerprint(metric) == whole.fingerprint(metric)) is is_same


def test_a_selection_is_the_examples_alone() -> None:
    for family in FAMILIES.values():
        task, examples, answers = family()
        rows = np.array([7, 3, 41, 12, 5, 22, 30, 9, 49, 17])
        whole = task.scored_examples(examples, answers)
        alone = task.scored_examples([examples[r] for r in rows], [answers[r] for r in rows])
        chosen = whole.select(rows)
        assert chosen.ids == alone.ids
        assert (chosen.keys == alone.keys).all()
        for name in ("lengths", "predicted", "gold", "offsets"):
            assert getattr(chosen, name).tolist() == getattr(alone, name).tolist(), name
        assert chosen.answers == alone.answers
        for metric in whole.ratios:
            if whole.kind != "pairs":  # the weights are those of all examples
                assert chosen.ratios[metric].value() == pytest.approx(alone.ratios[metric].value())


def test_the_same_predictions_are_the_same_bytes_and_few(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    num = 10_000
    examples = [TextExample(f"dev:{i}", f"a text {i}") for i in range(num)]
    said, gold = rng.integers(3, size=num), rng.integers(3, size=num)
    found = scored_examples(
        examples, kind="classification", labels="abc", predicted=said, gold=gold,
        ratios={"accuracy": Ratio.mean(said == gold)}, classes=gold, class_names="abc",
    )  # fmt: skip
    write_predictions(tmp_path, {"dev": kept(found)})
    first = (tmp_path / "predictions/dev.parquet").read_bytes()
    assert len(first) < 20 * num
    write_predictions(tmp_path, {"dev": kept(found)})
    assert (tmp_path / "predictions/dev.parquet").read_bytes() == first
    again = read_predictions(tmp_path / "predictions/dev.parquet").examples
    assert (again.predicted == said).all()
    assert (again.gold == gold).all()
    rows = pandas.read_parquet(tmp_path / "predictions/dev.parquet")  # as any other program reads the file
    assert rows["id"].tolist() == [example.id for example in examples]
    assert rows["answer"].tolist() == ["abc"[label] for label in said]
    assert rows["gold"].tolist() == ["abc"[label] for label in gold]


@pytest.mark.parametrize("family", ["classification", "multi_label", "tagging", "squad"])
def test_probabilities_and_places_are_kept_with_the_answers(family: str, tmp_path: Path) -> None:
    task, examples, answers = FAMILIES[family]()
    rng = random.Random(6)
    if family == "classification":
        answers = [replace(a, probabilities={a.name: rng.random()}) for a in answers]
        expected = [a.probabilities[a.name] for a in answers]
    elif family == "multi_label":
        expected = [max(chance, 1 - chance) for a in answers for chance in a.probabilities.values()]
    elif family == "tagging":
        answers = [replace(a, probabilities=tuple(rng.random() for _ in a.tags)) for a in answers]
        expected = [probability for a in answers for probability in a.probabilities]
    else:
        answers = [replace(a, start=rng.choice([None, rng.randrange(100)])) for a in answers]
        expected = []
    made = task.scored_examples(examples, answers)
    found = round_trip(made, tmp_path).examples
    assert found.confidences.tolist() == pytest.approx(expected, abs=1e-3)
    starts = [-1 if a.start is None else a.start for a in answers] if family == "squad" else []
    assert found.starts.tolist() == starts
    rows = np.array([5, 2, 9])
    alone = task.scored_examples([examples[r] for r in rows], [answers[r] for r in rows])
    chosen = found.select(rows)
    assert chosen.confidences.tolist() == pytest.approx(alone.confidences.tolist(), abs=1e-3)
    assert chosen.starts.tolist() == alone.starts.tolist()


def test_without_the_probability_of_one_answer_none_are_kept() -> None:
    task, examples, answers = classification()
    known = [replace(a, probabilities={a.name: 0.5}) for a in answers]
    assert len(task.scored_examples(examples, known).confidences) == NUM
    assert len(task.scored_examples(examples, [*known[1:], answers[0]]).confidences) == 0


def test_long_texts_are_cut_and_nothing_breaks_in_them(tmp_path: Path) -> None:
    long = "\u00e9\0\ud800" * 400
    examples = [QuestionExample(long, "q", "p", (GoldSpan(long),)), QuestionExample("b", "q2", "p", ())]
    ratios = {"f1": Ratio.mean([0.5, 1.0])}
    made = scored_examples(examples, kind="span", ratios=ratios, answers=[long, ""], gold_answers=[long, ""])
    found = round_trip(made, tmp_path).examples
    assert len(found.ids[0].encode()) <= MOST_ID_BYTES
    assert len(found.answers[0].encode()) <= MOST_TEXT_BYTES
    assert found.answers[0].startswith("\u00e9")
    assert (found.answers[1], found.gold_answers[1]) == ("", "")


def test_files_of_a_run_its_seeds_and_its_control_are_found(tmp_path: Path) -> None:
    task, examples, answers = classification()
    made = task.scored_examples(examples, answers)
    for folder in ("seed-10", "seed-2", "control/seed-2", "pretraining-1/seed-0", "a=1/seed-0"):
        (tmp_path / folder).mkdir(parents=True)
        write_predictions(tmp_path / folder, {"dev": kept(made)})
    found = [file.parents[1].relative_to(tmp_path).as_posix() for file in prediction_files(tmp_path)]
    assert sorted(found) == ["control/seed-2", "pretraining-1/seed-0", "seed-10", "seed-2"]
    assert found.index("seed-2") < found.index("seed-10")
    one = kept(made, split="dev/../x", seed=3, pretraining_seed=1)
    assert file_name(one, alone=True) == "dev-..-x"
    assert file_name(one, alone=False) == "dev-..-x-pretraining-1-seed-3"
    assert file_name(kept(made, is_control=True), alone=False) == "dev-control-seed-1"


def test_pandas_reads_what_each_kind_answered(tmp_path: Path) -> None:
    rows = {}
    for family, make in FAMILIES.items():
        task, examples, answers = make()
        write_predictions(tmp_path / family, {"dev": kept(task.scored_examples(examples, answers))})
        rows[family] = pandas.read_parquet(tmp_path / family / "predictions" / "dev.parquet")
        assert rows[family]["id"].tolist() == [example.id for example in examples]
        if family == "multi_label":
            assert [list(names) for names in rows[family]["answer"]] == [list(answer.names) for answer in answers]
            gold = [[task.labels[label] for label in example.label_set] for example in examples]
            assert [list(names) for names in rows[family]["gold"]] == gold
        if family == "tagging":
            assert [tuple(tags) for tags in rows[family]["answer"]] == [answer.names for answer in answers]
        if family == "regression":
            assert rows[family]["gold"].tolist() == [example.score for example in examples]
        if family == "squad":
            assert rows[family]["answer"].tolist() == [answer.text for answer in answers]
    assert "answer" not in rows["pairs"]
    assert rows["pairs"]["class"].tolist() == [f"phenomenon{i % 7 // 3}" for i in range(NUM)]


def written(folder: Path, about: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a file of predictions with other columns, and without those that are None."""
    task, examples, answers = classification()
    answers = [replace(answer, probabilities={answer.name: 0.5}) for answer in answers]
    write_predictions(folder, {"dev": kept(task.scored_examples(examples, answers))})
    path = folder / "predictions/dev.parquet"
    table = parquet.read_table(path)
    told = {**json.loads(table.schema.metadata[b"lmtransfer"]), **(about or {})}
    for given, value in changes.items():
        name = given.replace("_of_", "/")
        place = table.column_names.index(name) if name in table.column_names else None
        if value is None:
            table = table.drop_columns([name])
            continue
        column = pa.array(value(table.column(name).to_pylist()) if callable(value) else value)
        table = table.append_column(name, column) if place is None else table.set_column(place, name, column)
    parquet.write_table(table.replace_schema_metadata({b"lmtransfer": json.dumps(told).encode()}), path)
    return path


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"key": None}, ("no column named key",)),
        ({"about": {"format": 1}}, ("version",)),
        ({"about": {"kind": "magic"}}, ("kind", "'magic'")),
        ({"about": {"labels": "xyz"}}, ("labels", "list")),
        ({"about": {"seed": "1"}}, ("seed", "integer")),
        ({"about": {"labels": ["x"]}}, ("'y'", "label")),
        ({"about": {"labels": ["x", "y", "z", "z"]}}, ("labels", "twice")),
        ({"answer": lambda a: ["other", *a[1:]]}, ("other",)),
        ({"answer": lambda a: [None, *a[1:]]}, ("answer", "empty")),
        ({"answer": lambda a: [[one] for one in a]}, ("answer", "list", "string")),
        ({"key": lambda a: [1.0] * len(a)}, ("key", "double", "uint64")),
        ({"key": lambda a: np.zeros(len(a), dtype=np.uint64)}, ("key", "example")),
        ({"class": lambda a: ["none such"] * len(a)}, ("none such",)),
        ({"probability": np.full(NUM, 1.5, dtype=np.float32)}, ("probability",)),
        ({"probability": np.full(NUM, np.nan, dtype=np.float32)}, ("probability", "finite")),
        ({"score_of_accuracy": None}, ("no column named score/accuracy",)),
        ({"id": lambda a: ["x" * 4000] * len(a)}, ("text", "long")),
        ({"score_of_accuracy": lambda a: [math.inf] * len(a)}, ("number", "finite")),
        ({"score_of_accuracy": lambda a: [1e308] * len(a)}, ("number", "larger")),
        ({"weight_of_accuracy": lambda a: [1e-300] * len(a)}, ("weight",)),
        ({"about": {"positive": 10**9}}, ("positive",)),
        ({"about": {"labels": [str(n) for n in range(20_000)]}}, ("label",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value)[:30],
)
def test_files_that_are_none_are_refused(changes: dict[str, Any], names: tuple[str, ...], tmp_path: Path) -> None:
    path = written(tmp_path, **changes)
    with refuses(RunDirectoryError, str(path), "lmtransfer evaluate", *names):
        read_predictions(path)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("id", pa.array([""] * 600_000)),  # more examples than a file may contain
        ("answer", pa.DictionaryArray.from_arrays(pa.array(np.zeros(600_000, np.int8)), pa.array(["x" * 2000]))),
    ],
)
def test_files_that_unpack_to_more_than_they_may_are_refused(column: str, values: Any, tmp_path: Path) -> None:
    path = written(tmp_path)
    about = parquet.read_metadata(path).metadata[b"lmtransfer"]
    parquet.write_table(pa.table({column: values}).replace_schema_metadata({b"lmtransfer": about}), path)
    assert path.stat().st_size < 200_000
    with refuses(RunDirectoryError, str(path), "lmtransfer evaluate", "500,000 examples"):
        read_predictions(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_of_a_known_size_is_refused(make: Callable[[Path], Any], tmp_path: Path) -> None:
    make(tmp_path / "dev.parquet")
    with refuses(RunDirectoryError, str(tmp_path / "dev.parquet"), "regular file"):
        read_predictions(tmp_path / "dev.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1 cut", b"PAR1" + b"\0" * 100 + b"PAR1"], ids=["empty", "cut", "zeros"])
def test_torn_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "dev.parquet"
    path.write_bytes(content)
    with refuses(RunDirectoryError, str(path), "lmtransfer evaluate"):
        read_predictions(path)


def test_other_parquet_files_and_missing_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dev.parquet"
    parquet.write_table(pa.table({"id": ["a"]}), path)
    with refuses(RunDirectoryError, str(path), "not written by lmtransfer"):
        read_predictions(path)
    with refuses(RunDirectoryError, str(tmp_path / "none.parquet"), "No such file"):
        read_predictions(tmp_path / "none.parquet")

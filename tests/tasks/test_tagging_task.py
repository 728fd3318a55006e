"""Tagging tasks: files, tag names, answers, scores and the majority baseline."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy.special import softmax
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import TaggingSpec, TagTargets
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.task import UNMARKED, Tagging

needs_data = pytest.mark.skipif("LMTRANSFER_DATA" not in os.environ, reason="LMTRANSFER_DATA names no data folder")

TRAIN = "the\tDET\ncat\tNOUN\nsleeps\tVERB\n\nthe\tDET\nsleeps\tNOUN\nsleeps\tNOUN\n"
SPANS = "Ann\tB-PER\nLee\tI-PER\nsaw\tO\nOslo\tB-LOC\n\nLee\tI-PER\nleft\tO\n"


def task(folder: Path, train: str = TRAIN, **settings: Any) -> Tagging:
    (folder / "train.conll").write_text(train, encoding="utf-8")
    settings = {"files": {"train": "train.conll", "dev": None}, "scheme": "words", **settings}
    return Tagging(name="toy", data_root=str(folder), **settings)


def shipped(name: str, **changes: Any) -> Tagging:
    node = OmegaConf.create(group_config("task", name, [conf_dir()]))
    return build(OmegaConf.merge(node, changes), data_root=os.environ.get("LMTRANSFER_DATA"))


def test_labels_are_found_in_the_training_file(tmp_path: Path) -> None:
    found = task(tmp_path)
    assert isinstance(found, Task)
    assert found.labels == ("DET", "NOUN", "VERB")
    assert found.head == TaggingSpec(3)
    assert found.splits == ("train",)
    assert found.main_metric == "accuracy"
    assert found.examples("train") == [
        TaggedExample("train:0", ("the", "cat", "sleeps"), (0, 1, 2)),
        TaggedExample("train:1", ("the", "sleeps", "sleeps"), (0, 1, 1)),
    ]
    spans = task(tmp_path, SPANS, scheme="bio")
    assert spans.labels == ("O", "B-LOC", "B-PER", "I-PER")
    assert spans.main_metric == "f1"
    assert task(tmp_path, SPANS, scheme="bio", labels=["I-PER", "B-PER", "B-LOC", "O"]).examples("train")[0].tags == (
        1, 0, 3, 2,
    )  # fmt: skip


def test_spans_that_begin_with_inside_are_counted_or_read_as_iob1(tmp_path: Path) -> None:
    spans = task(tmp_path, SPANS, scheme="bio")
    spans.examples("train")
    assert spans.notes["train"].as_dict() == {UNMARKED: {"count": 1, "first": f"{tmp_path}/train.conll:6"}}
    iob1 = task(tmp_path, SPANS.replace("B-", "I-"), scheme="iob1")
    names = [[iob1.labels[tag] for tag in example.tags or ()] for example in iob1.examples("train")]
    assert names == [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"files": {}}, ("task.files", "task.hub")),
        ({"labels": ["A"]}, ("task.labels=[A]",)),
        ({"labels": ["A", "A"]}, ("task.labels=[A, A]",)),
        ({"scheme": "bio", "labels": ["O", "NOUN"]}, ("task.labels", "'NOUN'", "task.scheme=words")),
        ({"tag_column": 0}, ("task.tag_column=0", "1")),
        ({"word_column": "form"}, ("task.word_column=form", "1")),
        ({"word_column": 2, "tag_column": 2}, ("task.tag_column=2",)),
        ({"file_format": "conllu", "tag_column": "lemma"}, ("task.tag_column=lemma", "upos", "xpos")),
        ({"file_format": "conllu", "word_column": 2}, ("task.word_column=2", "null")),
        ({"file_format": "jsonl", "tag_column": 2}, ("task.tag_column=2", "field")),
        ({"hub": "x", "hub_columns": ["tokens"]}, ("task.hub_columns=['tokens']",)),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        task(tmp_path, **settings)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with refuses(DataError, "train.conll:2", "'NOUN'", "'cat'", "DET, VERB", "task.labels"):
        task(tmp_path, labels=["DET", "VERB"]).examples("train")
    with refuses(DataError, "train.conll:1", "'DET'", "task.scheme=words"):
        task(tmp_path, scheme="bio", labels=["O", "B-X"]).examples("train")
    with refuses(DataError, "train.conll", "sentences"):
        task(tmp_path, "\n\n", labels=["A", "B"]).examples("train")
    with refuses(DataError, "train.conll", "words"):
        assert task(tmp_path, "").labels
    with refuses(DataError, "train.conll:1", "2 columns", "task.tag_column"):
        task(tmp_path, word_column=2, labels=["A", "B"]).examples("train")
    with refuses(DataError, "split=dev", "toy", "train", "task.files.dev="):
        task(tmp_path).examples("dev")
    with refuses(DataError, "gone.conll", "data_root"):
        task(tmp_path, labels=["A", "B"], files={"train": "gone.conll"}).examples("train")
    with refuses(ConfigError, "task.labels=null", "task.files.train="):
        assert task(tmp_path, files={"dev": "train.conll"}).labels
    row = '{"words": ["a"], "tags": ["X"], "id": "one"}\n'
    (tmp_path / "dev.jsonl").write_text(row + row.replace("one", "two") + row)
    with refuses(DataError, "dev.jsonl:3", "id one", "dev.jsonl:1"):
        task(tmp_path, files={"dev": "dev.jsonl"}, file_format="jsonl", labels=["X", "Y"]).examples("dev")


def test_tags_may_be_missing_in_test(tmp_path: Path) -> None:
    (tmp_path / "new.conll").write_text("a\nb\n\nc\n")
    toy = task(tmp_path, files={"train": "train.conll", "dev": "new.conll", "test": "new.conll"})
    expected = [("a", "b"), ("c",)]
    examples = toy.examples("test")
    assert [example.words for example in examples] == expected
    assert not any(example.has_gold for example in examples)
    assert examples[1].id == "test:1"
    with refuses(DataError, "new.conll:1", "1 column", "task.tag_column=2"):
        toy.examples("dev")
    with refuses(DataError, "test:0", "gold"):
        toy.score(toy.examples("test"), [TagsAnswer((0, 0), ("DET", "DET"))] * 2)


def test_answers_are_the_largest_logits_word_by_word(tmp_path: Path) -> None:
    toy = task(tmp_path)
    examples = toy.examples("train")
    outputs = np.random.default_rng(0).normal(0, 20, (6, 3)).astype(np.float32)
    encoded = EncodedExamples(
        examples=tuple(examples),
        owners=np.array([0, 0, 1]),  # the first sentence in two windows
        tokens_T=np.zeros(0, np.int32),
        segments_T=np.zeros(0, np.int8),
        offsets=np.zeros(4, np.int64),
        targets=TagTargets(*np.zeros((3, 6), np.int64)),
        target_offsets=np.array([0, 2, 3, 6]),
        num_truncated=0,
    )
    answers = list(toy.answers(encoded, outputs))
    assert [len(answer.tags) for answer in answers] == [3, 3]
    expected = softmax(outputs.astype(np.float64), axis=1)
    assert [tag for answer in answers for tag in answer.tags] == expected.argmax(1).tolist()
    np.testing.assert_allclose(np.concatenate([answer.probabilities for answer in answers]), expected.max(1), rtol=1e-9)
    assert answers[1].names == tuple(toy.labels[tag] for tag in answers[1].tags)
    assert json.loads(json.dumps(answers[0].as_dict()))["tags"] == list(answers[0].names)


def answer(toy: Tagging, names: str) -> TagsAnswer:
    tags = tuple(toy.labels.index(name) for name in names.split())
    return TagsAnswer(tags, tuple(names.split()))


def test_scores_worked_by_hand(tmp_path: Path) -> None:
    toy = task(tmp_path)
    given = iter([answer(toy, "DET NOUN NOUN"), answer(toy, "DET VERB NOUN")])
    assert toy.score(toy.examples("train"), given) == {"accuracy": 4 / 6}
    spans = task(tmp_path, SPANS, scheme="bio")
    given = iter([answer(spans, "B-PER I-PER O B-PER"), answer(spans, "B-PER I-PER")])
    # Gold: Ann Lee, Oslo, Lee. Predicted: Ann Lee (right), Oslo of another kind, and a span that is too long.
    expected = {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "accuracy": 3 / 6}
    scores = spans.score(spans.examples("train"), given)
    assert list(scores) == list(expected)
    assert scores == pytest.approx(expected)


def test_the_majority_is_the_most_frequent_tag(tmp_path: Path) -> None:
    toy = task(tmp_path)
    answers = toy.baseline(toy.examples("train"), [TaggedExample("x", ("the", "sleeps")), TaggedExample("y", ("a",))])
    assert [found.names for found in answers] == [("NOUN", "NOUN"), ("NOUN",)]
    tied = task(tmp_path, "a\tX\na\tY\n\nb\tY\na\tX\n")
    assert tied.baseline(tied.examples("train"), [TaggedExample("x", ("a",))])[0].names == ("X",)


def test_hub_tags_are_matched_by_name_not_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def hub(tags: list[list[int]]) -> None:
        names = datasets.ClassLabel(names=["O", "B-PER", "B-LOC"])
        words, text = [["Ann", "left"], ["Oslo"]], datasets.Value("string")
        features = datasets.Features({"tokens": datasets.List(text), "ner_tags": datasets.List(names)})
        table = datasets.Dataset.from_dict({"tokens": words, "ner_tags": tags}, features=features)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)

    hub([[1, 0], [-1]])
    settings = {"files": {}, "hub": "some/data", "hub_splits": {"dev": "validation"}, "scheme": "bio"}
    toy = task(tmp_path, **settings, labels=["B-LOC", "B-PER", "O"], hub_columns=["tokens", "ner_tags"])
    assert [(e.words, e.tags) for e in toy.examples("dev")] == [(("Ann", "left"), (1, 2)), (("Oslo",), None)]
    assert toy.origin("dev") == "some/data validation"
    with refuses(DataError, "some/data validation:0", "'B-PER'", "'Ann'", "B-LOC, O"):
        task(tmp_path, **settings, labels=["B-LOC", "O"], hub_columns=["tokens", "ner_tags"]).examples("dev")
    hub([[1, -1], [0]])  # -1 is not the last name in the list
    with refuses(DataError, "some/data validation:0", "-1"):
        task(tmp_path, **settings, labels=["B-LOC", "B-PER", "O"], hub_columns=["tokens", "ner_tags"]).examples("dev")
    with refuses(DataError, "column named tags", "tokens, ner_tags", "task.hub_columns"):
        task(tmp_path, **settings, labels=["B-LOC", "O"]).examples("dev")


def test_conll2003_in_its_own_form(tmp_path: Path) -> None:
    (tmp_path / "conll2003").mkdir()
    (tmp_path / "conll2003" / "eng.testa").write_text(
        "-DOCSTART- -X- O O\n\nHam NNP I-NP I-LOC\nOslo NNP I-NP B-LOC\nclub NN I-NP I-ORG\n\nrain NN I-NP O\n"
    )
    node = OmegaConf.create(group_config("task", "conll2003", [conf_dir()]))
    found = build(node, data_root=str(tmp_path))
    names = [[found.labels[tag] for tag in example.tags] for example in found.examples("dev")]
    assert names == [["B-LOC", "B-LOC", "B-ORG"], ["O"]]


@pytest.mark.data
@needs_data
def test_wnut17_has_its_published_counts() -> None:
    """Counts of sentences as in Derczynski et al. 2017; entities are counted by their first words."""
    wnut = shipped("wnut17")
    assert [len(wnut.examples(split)) for split in ("train", "dev", "test")] == [3394, 1009, 1287]
    assert shipped("wnut17", labels=None).labels == wnut.labels
    begins = Counter(wnut.labels[tag] for example in wnut.examples("test") for tag in example.tags or ())
    assert {name: count for name, count in begins.items() if name.startswith("B-")} == {
        "B-person": 429,
        "B-location": 150,
        "B-corporation": 66,
        "B-product": 127,
        "B-creative-work": 142,
        "B-group": 165,
    }


@pytest.mark.data
@needs_data
def test_ud_ewt_has_its_published_counts() -> None:
    ewt = shipped("ud_ewt")
    examples = {split: ewt.examples(split) for split in ("train", "dev", "test")}
    assert {split: len(found) for split, found in examples.items()} == {"train": 12544, "dev": 2001, "test": 2077}
    assert sum(len(example.words) for example in examples["train"]) == 204_577
    assert {tag for example in examples["train"] for tag in example.tags or ()} == set(range(17))
    ranges, nodes = (
        next(count for kind, count in ewt.notes["dev"].counts.items() if name in kind) for name in ("(3-4)", "(8.1)")
    )
    assert (ranges, nodes, len(ewt.notes["dev"].counts)) == (359, 4, 2)


def lines_of(rows: list[tuple[str, str]]) -> str:
    """Sentences of ten words each."""
    return "".join(f"{word}\t{tag}\n" + "\n" * (place % 10 == 9) for place, (word, tag) in enumerate(rows))


def test_capitals_find_the_tag_that_case_tells(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows: list[tuple[str, str]] = []
    for _ in range(400):
        tag = rng.choice(["NOUN", "VERB", "ADJ", "PROPN"])
        is_capital = rng.random() < {"NOUN": 0.6, "VERB": 0.1, "ADJ": 0.0, "PROPN": 0.95}[tag]
        rows.append(("Wort" if is_capital else "wort", tag))
    rows.append(("Einmal", "X"))  # too rare to say anything

    def share(capitals: list[bool]) -> float:
        return sum(capitals) / len(capitals)

    shares = {
        tag: [share([word.istitle() for word, own in rows if (own == tag) == is_own]) for is_own in (True, False)]
        for tag in ("NOUN", "VERB", "ADJ", "PROPN")
    }
    found = task(tmp_path, lines_of(rows))
    assert found.capitals(found.examples("train")) == pytest.approx(("PROPN", *shares["PROPN"]))
    assert max(shares, key=lambda tag: shares[tag][0] - shares[tag][1]) == "PROPN"


def test_capitals_of_spans_are_those_of_their_kind(tmp_path: Path) -> None:
    rows = [("Anna", "B-PER"), ("Ada", "I-PER"), ("saw", "O"), ("acme", "B-ORG")] * 30
    found = task(tmp_path, lines_of(rows), scheme="bio")
    assert found.capitals(found.examples("train")) == ("PER", 1.0, 0.0)
    few = task(tmp_path, lines_of(rows[:8]), scheme="bio")
    assert few.capitals(few.examples("train")) is None

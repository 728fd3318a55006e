from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.data.files import find_file, read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.tasks.text.sentiment_trees import Phrase, SentimentTrees, parse_tree, plain_word, read_trees

FINE = "(4 (2 It) (4 (2 's) (3 lovely)))"
POOR = "(1 (2 It) (1 (2 's) (0 dull)))"
EVEN = "(2 (2 -LRB-) (2 (2 either\\/or) (2 -RRB-)))"


def _task(tmp_path: Path, **changes: object) -> SentimentTrees:
    (tmp_path / "train.txt").write_text(f"{FINE}\n{POOR}\n\n{EVEN}\n")
    (tmp_path / "dev.txt").write_text(f"{POOR}\n")
    arguments: dict[str, object] = {
        "name": "toy",
        "files": {"train": ["trees/train.txt", "train.txt"], "dev": "dev.txt"},
        "data_root": str(tmp_path),
    }
    return SentimentTrees(**{**arguments, **changes})  # type: ignore[arg-type]


def test_a_tree_is_words_and_phrases() -> None:
    tree = parse_tree(FINE, num_labels=5)
    assert tree.words == ("It", "'s", "lovely")
    assert tree.phrases == (Phrase(4, 0, 3), Phrase(2, 0, 1), Phrase(4, 1, 3), Phrase(2, 1, 2), Phrase(3, 2, 3))
    assert parse_tree("  ( 2\tword )  ", num_labels=5).phrases == (Phrase(2, 0, 1),)
    assert parse_tree("(2 8\u00a01\\/2)", num_labels=5).words == ("8\u00a01\\/2",)


def test_depth_is_not_limited() -> None:
    depth = 5_000
    tree = parse_tree("(1 " * depth + "(0 word)" + ")" * depth, num_labels=2)
    assert len(tree.phrases) == depth + 1
    assert set(tree.phrases) == {Phrase(1, 0, 1), Phrase(0, 0, 1)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("(2 (2 a) (2 b)", ("bracket",)),
        ("(2 a))", ("')'", "character 5")),
        ("(2 a) (2 b)", ("'('", "character 6")),
        ("(2 a) b", ("'b'", "character 6")),
        ("(5 a)", ("'5'", "character 1", "0 to 4")),
        ("(good a)", ("'good'", "character 1", "0 to 4")),
        ("(2)", ("')'", "character 2")),
        ("()", ("')'", "character 1")),
        ("((2 a) (2 b))", ("'('", "character 1")),
        ("(2 two words)", ("'words'", "character 7")),
        ("(2 (2 a) b)", ("'b'", "character 9")),
        ("word", ("'word'", "character 0")),
        ("2\tno tree", ("'2'", "character 0")),
    ],
)
def test_what_is_no_tree_is_named_by_line(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    (tmp_path / "x.txt").write_text(f"{FINE}\n{text}\n")
    with refuses(DataError, "x.txt:2", *names):
        list(read_trees(tmp_path / "x.txt", num_labels=5))


@pytest.mark.parametrize(
    ("word", "plain"),
    [("-LRB-", "("), ("-RRB-", ")"), ("-LSB-", "["), ("-RCB-", "}"), ("``", '"'), ("''", '"')]
    + [("and\\/or", "and/or"), ("\\*\\*", "**"), ("8\u00a01\\/2", "8 1/2"), ("'s", "'s"), ("word", "word")],
)
def test_words_are_written_as_elsewhere(word: str, plain: str) -> None:
    assert plain_word(word) == plain


def test_sentences_have_the_label_of_the_whole_tree(tmp_path: Path) -> None:
    task = _task(tmp_path)
    assert isinstance(task, Task)
    assert task.head == ClassificationSpec(5)
    assert task.splits == ("train", "dev")
    assert [(e.id, e.text, task.labels[e.label]) for e in task.examples("train")] == [
        ("train:0", "It 's lovely", "very positive"),
        ("train:1", "It 's dull", "negative"),
        ("train:2", "( either/or )", "neutral"),
    ]


def test_phrases_are_of_the_training_split_only(tmp_path: Path) -> None:
    task = _task(tmp_path, phrases=True, deduplicate=False)
    found = [(e.id, e.text, e.label) for e in task.examples("train")]
    assert len(found) == 15
    assert found[:6] == [
        ("train:0", "It 's lovely", 4),
        ("train:0.1", "It", 2),
        ("train:0.2", "'s lovely", 4),
        ("train:0.3", "'s", 2),
        ("train:0.4", "lovely", 3),
        ("train:1", "It 's dull", 1),
    ]
    assert [e.text for e in task.examples("dev")] == ["It 's dull"]
    once = [(e.text, e.label) for e in _task(tmp_path, phrases=True).examples("train")]
    assert once == list(dict.fromkeys((text, label) for _, text, label in found))
    assert len(once) == 13
    (tmp_path / "train.txt").write_text("\n")
    with refuses(DataError, "train.txt", "examples"):
        task.examples("train")


def test_binary_reading_has_nothing_neutral(tmp_path: Path) -> None:
    task = _task(tmp_path, binary=True)
    assert task.labels == ("negative", "positive")
    assert [(e.id, e.label) for e in task.examples("train")] == [("train:0", 1), ("train:1", 0)]
    texts = {e.text: e.label for e in _task(tmp_path, binary=True, phrases=True).examples("train")}
    assert texts == {"It 's lovely": 1, "'s lovely": 1, "lovely": 1, "It 's dull": 0, "'s dull": 0, "dull": 0}


@pytest.mark.slow
@pytest.mark.data
def test_published_phrases_and_their_glue_versions(data_root: Path) -> None:
    files = {split: f"sst5/{split}.trees.txt" for split in ("train", "dev", "test")}
    every = SentimentTrees(name="sst5", files=files, data_root=str(data_root), phrases=True, deduplicate=False)
    examples = every.examples("train")
    # One per opening bracket: 318,582, as in torchtext's SST with train_subtrees.
    path = find_file(data_root / files["train"])
    assert path is not None
    assert len(examples) == sum(line.count("(") for _, line in read_lines(path)) == 318_582
    binary = SentimentTrees(name="sst2", files=files, data_root=str(data_root), binary=True, phrases=True)
    # GLUE's SST-2 contains the binary phrases of the training trees, in lower case and with other brackets.
    ours = {_letters(e.text): e.label for e in binary.examples("train")}
    glue = find_file(data_root / "sst2/train.tsv")
    assert glue is not None
    theirs = [line.rsplit("\t", 1) for number, line in read_lines(glue) if number > 1]
    sentences = SentimentTrees(name="sst2", files=files, data_root=str(data_root), binary=True)
    assert len(sentences.examples("train")) == 6920
    shared = [(_letters(text), int(label)) for text, label in theirs if _letters(text) in ours]
    assert len(shared) > 0.98 * len(theirs)
    assert sum(ours[text] == label for text, label in shared) > 0.99 * len(shared)


def _letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


@pytest.mark.data
def test_published_counts_of_the_binary_reading(data_root: Path) -> None:
    files = {split: f"sst5/{split}.trees.txt" for split in ("train", "dev", "test")}
    task = SentimentTrees(name="sst2", files=files, data_root=str(data_root), binary=True)
    assert Counter(e.label for e in task.examples("dev")) == {0: 428, 1: 444}  # as in GLUE's dev set
    assert len(task.examples("test")) == 1821

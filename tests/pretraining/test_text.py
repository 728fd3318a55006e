"""Screening on the command line: the output of prepare, inspect and pretrain, and refused settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.texts import made_up_documents, write_text
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.config.component import Node
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.screening import ScreenedCorpus, Screening
from lmtransfer.errors import DataError
from lmtransfer.pretraining.text import build_corpus, notes_on
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample

SECRET = "nobody has ever seen a green horse that sings so well at night"
TEXT = ["corpus=text", "corpus.path=a.txt", "corpus.validation_fraction=0.1", "tokenizer.vocab_size=60"]
OVERLAP = ["screening=drop", "screening.min_jaccard=null", "screening.overlap_with=[held_out.txt]"]
SMALL = [
    *("model=bert_tiny", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=32"),
    *("objective.max_length=32", "train.batch_tokens=256", "train.steps=2", "train.eval_every=2"),
    *("hardware.threads=1", "hardware.precision=fp32"),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = made_up_documents(120)
    documents[7] += f"\n{SECRET}."
    write_text(tmp_path / "a.txt", documents)
    (tmp_path / "held_out.txt").write_text(f"{SECRET}\n\nshort\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)


def test_what_is_left_out_of_a_folder_is_noted_for_each_part_and_through_a_screening(tmp_path: Path) -> None:
    for name, other in (("one", "x.rst"), ("two", "y.json")):
        write_text(tmp_path / name / "a.txt", ["Some text."])
        (tmp_path / name / other).write_text("{}")
    parts = {name: FileCorpus(path=name) for name in ("one", "two")}
    mixture = MixtureCorpus(name="both", parts=parts)
    assert list(mixture.left_out.first.values()) == [f"one: {tmp_path}/one/x.rst", f"two: {tmp_path}/two/y.json"]
    lines = list(notes_on(mixture))
    assert [line.partition(": ")[0] for line in lines] == ["corpus one", "corpus two"]
    assert ".rst" in lines[0]
    assert str(tmp_path / "two" / "y.json") in lines[1]
    screened = ScreenedCorpus(parts["one"], Screening(action="report"))
    assert next(notes_on(screened)).replace("corpus text", "corpus one") == lines[0]


def test_a_dropped_document_is_in_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *TEXT, *OVERLAP, "num_workers=0"]) == 0
    out = capsys.readouterr().out
    table = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert table["held_out.txt"][1] == "1"
    assert table["together"][1] == "1"
    assert any(f"{tmp_path / 'a.txt'}:" in line and SECRET[:30] in line for line in out.splitlines())
    (listed,) = (tmp_path / "cache/screening").glob("*/found.jsonl")
    assert str(listed) in out

    assert main(["pretrain", *TEXT, *OVERLAP, *SMALL, "name=x"]) == 0
    said = capsys.readouterr().err
    assert "screening of text" in said
    assert list((tmp_path / "cache/corpora").glob("text-*/manifest.json"))[1:] == []  # the same store
    assert main(["inspect", *TEXT, *OVERLAP, *SMALL, "measure=false"]) == 0
    assert "held_out.txt" in capsys.readouterr().out

    config = OmegaConf.load(tmp_path / "runs/pretrain/x/config.yaml")
    assert config.screening.overlap_with["held_out.txt"].path == str(tmp_path / "held_out.txt")
    assert main(["pretrain", *TEXT, *SMALL, "name=x", "resume=true"]) == 2
    assert "screening" in capsys.readouterr().err
    assert main(["evaluate", "run=runs/pretrain/x", "name=again", "hardware=exact"]) == 0
    results = [
        json.loads((tmp_path / f"runs/{run}/result.json").read_text()) for run in ("pretrain/x", "evaluate/again")
    ]
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"])


def test_the_run_of_others_with_a_screening_reads_nothing_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", *TEXT, *OVERLAP, *SMALL, "name=x"]) == 0
    (tmp_path / "runs/pretrain/x/made_here").unlink()
    run = OmegaConf.load(tmp_path / "runs/pretrain/x/config.yaml")
    run.seed = 1
    OmegaConf.save(run, tmp_path / "runs/pretrain/x/config.yaml")
    capsys.readouterr()
    assert main(["evaluate", "run=runs/pretrain/x", "name=again"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("screening.action=drop", "trust=true", "config.yaml")), said
    assert main(["evaluate", "run=runs/pretrain/x", "name=again", "trust=true"]) == 0
    assert main(["evaluate", "run=runs/pretrain/x", "name=other", *TEXT[:3]]) == 0


def test_the_parts_of_a_mixture_are_screened_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "b.txt", made_up_documents(60, seed=5))
    mixture = ["corpus=mixture", "corpus.parts=[a.txt,b.txt]", "tokenizer.vocab_size=60", "num_workers=0"]
    assert main(["prepare", *mixture, *OVERLAP]) == 0
    out = capsys.readouterr().out
    together = [line.split()[1] for line in out.splitlines() if line.strip().startswith("together")]
    assert together == ["1", "0"]


class FakeTask(Task):
    """A task with an unreadable split."""

    name, splits = "fake", ("train", "dev", "test")

    def __init__(self, *, data_root: str | None = None, readable: bool = True) -> None:
        self.readable = readable

    def examples(self, split: str) -> list[Any]:
        if split == "test" or not self.readable:
            raise DataError(f"no file {split}.tsv")
        assert split == "dev"
        return ["one", "two"]

    def texts(self, example: Any) -> tuple[str, ...]:
        return (example, f"{example} more")

    head = encode = answers = score = None  # type: ignore[assignment]


def test_the_texts_of_a_task_are_those_of_its_dev_and_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LMTRANSFER_ALLOW", __name__.partition(".")[0])
    node = {"_target_": f"{__name__}.FakeTask"}
    screening = {"_target_": "lmtransfer.data.screening.Screening", "action": "drop", "min_jaccard": None}
    corpus: Any = Node({"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "path": str(tmp_path / "a.txt")})

    def build(task: dict[str, Any]) -> Any:
        own: Any = Node({**screening, "overlap_with": {"mine": task}})
        return build_corpus(corpus, own, data_root=None, cache_dir=tmp_path)

    built = build(node)
    assert built.screening.texts == {"mine dev": ["one", "one more", "two", "two more"]}
    assert "mine test" in capsys.readouterr().err
    with refuses(DataError, "screening.overlap_with", "mine", "dev.tsv"):
        build({**node, "readable": False})


def test_the_words_of_a_tagged_sentence_are_one_text_and_a_pair_is_two() -> None:
    tagging, pairs = object.__new__(Tagging), object.__new__(TextClassification)
    assert tagging.texts(TaggedExample(id="x", words=("one", "two"))) == ("one two",)
    assert pairs.texts(TextExample(id="x", text="one two", text_pair="three")) == ("one two", "three")


def test_a_package_that_is_not_there_is_told_before_the_texts_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmtransfer.system.optional.find_spec", lambda _: None)
    monkeypatch.setattr("lmtransfer.pretraining.text._lines", lambda _: pytest.fail("texts were read"))
    assert main(["prepare", *TEXT, "screening=report", "screening.overlap_with=[held_out.txt]"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("datasketch", "lmtransfer[duplicates]")), said


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["screening=drop", "screening.min_jaccard=0"], ("screening.min_jaccard", "greater than 0")),
        (["screening=drop", "screening.min_jaccard=1.2"], ("screening.min_jaccard", "1.2")),
        (["screening=drop", "screening.shingle_words=0"], ("screening.shingle_words", "0")),
        (["screening=drop", "screening.min_overlap=-1"], ("screening.min_overlap", "-1")),
        (["screening=drop", "screening.ngram_words=two"], ("screening.ngram_words", "two")),
        (["screening=report", "screening.action=remove"], ("screening.action", "report", "drop")),
        (["screening=report", "screening.min_jaccard=null"], ("screening.min_jaccard=null",)),
        (["screening=report", "screening.overlap_with=[sst22]"], ("sst22", "'sst2'")),
        ([*OVERLAP[:2], "screening.overlap_with=[sst2]", "data_root=."], ("sst2", "screening.overlap_with")),
        (["screening=all"], ("screening=all", "drop")),
    ],
    ids=str,
)
def test_mistakes_are_one_clear_message(
    words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *TEXT, *words]) == 2
    output = capsys.readouterr()
    assert all(name in output.err for name in names), output.err
    assert "Traceback" not in output.err
    assert output.out == ""

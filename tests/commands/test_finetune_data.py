"""What the files of a task may hold: labels like settings, texts in both splits, files that change, pipes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from fakes.transfer_files import check_refused, lmtransfer, make_world

from lmtransfer import api
from lmtransfer.runs.predictions import read_predictions

#: Labels that a config would read as interpolations, in the order of a run.
LABELS = ["${", "${name}", "${oc.env:A_SECRET}", "a\\${b}"]
QUICK = ["hardware=exact", "baseline=null", "init=runs/pretrain/base", "task=text_classification", "task.train=t.tsv"]
QUICK += ["task.dev=d.tsv", "train.epochs=1", "optimizer.learning_rate=0.01", "task.dev_from_train=null"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("A_SECRET", "not-for-others")
    make_world(tmp_path)
    write("t.tsv", 24)
    write("d.tsv", 8, first=100)
    return tmp_path


def write(name: str, count: int, *, first: int = 0, labels: list[str] = LABELS) -> None:
    """Write rows with texts of their own and each label in turn."""
    rows = [f"film number {first + place}\t{labels[place % len(labels)]}" for place in range(count)]
    Path(name).write_text("\n".join(["text\tlabel", *rows]) + "\n")


def assert_no_secret(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"not-for-others" not in path.read_bytes(), path


def test_labels_are_never_interpolated(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK, "name=x") == 0
    config = yaml.safe_load(Path("runs/finetune/x/config.yaml").read_text())
    assert config["task"]["labels"] == LABELS
    (predictions,) = Path("runs/finetune/x/predictions").glob("*.parquet")
    assert read_predictions(predictions).examples.labels == tuple(LABELS)
    assert set(json.loads(Path("runs/finetune/x/result.json").read_text())["classes"]) == set(LABELS)
    assert lmtransfer("evaluate", "run=runs/finetune/x", "split=dev", "hardware=exact", "name=e") == 0
    assert yaml.safe_load(Path("runs/evaluate/e/config.yaml").read_text())["task"]["labels"] == LABELS
    (answer,) = api.predict(run="runs/finetune/x", text="film ${oc.env:A_SECRET} a\\${b}")
    assert list(answer["probabilities"]) == LABELS
    assert "not-for-others" not in "".join(capsys.readouterr())
    assert_no_secret(world)


@pytest.mark.slow
def test_exported_labels_are_never_interpolated(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK, "name=x") == 0
    assert lmtransfer("export", "run=runs/finetune/x", "to=e") == 0
    assert list(json.loads(Path("e/config.json").read_text())["id2label"].values()) == LABELS
    assert "not-for-others" not in "".join(capsys.readouterr())
    assert_no_secret(world)


@pytest.mark.slow
def test_names_and_paths_are_never_interpolated(world: Path) -> None:
    shutil.copytree("runs/pretrain/base", "runs/pretrain/${oc.env:A_SECRET}")
    shutil.copy("t.tsv", "${x}.tsv")
    run = api.finetune(
        *[word for word in QUICK if not word.startswith(("init=", "task.train="))],
        init="runs/pretrain/${oc.env:A_SECRET}",
        name="${oc.env:A_SECRET}",
        task={"train": "${x}.tsv", "label_column": ["${oc.env:A_SECRET}", "label"], "hidden_values": ["${name}?"]},
    )
    assert run.path.name == run.config["name"] == "${oc.env:A_SECRET}"
    assert Path(run.config["init"]).name == "${oc.env:A_SECRET}"
    assert run.config["task"]["train"] == "${x}.tsv"
    assert run.config["task"]["label_column"] == ["${oc.env:A_SECRET}", "label"]
    evaluated = api.evaluate(run=run, split="dev", name="e")
    assert evaluated.config["run"] == str(run.path)
    api.probe(*[word for word in QUICK if not word.startswith("init=")], init=run, name="p")
    assert_no_secret(world)


@pytest.mark.parametrize(("repeated", "said"), [(8, "all 8 examples"), (3, "3 of the 8 examples"), (0, "")])
def test_texts_that_are_also_in_the_training_split_are_counted(
    repeated: int, said: str, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("d.tsv", 8, first=24 - repeated)
    assert lmtransfer("probe", *QUICK, "transfer.fit=trainer", "name=x") == 0
    assert lmtransfer("evaluate", "run=runs/probe/x", "split=dev", "hardware=exact") == 0
    out = capsys.readouterr().out
    assert out.count("are also in the training split") == 2 * bool(said)
    assert out.count(f"note: {said} of split dev") == 2 * bool(said)
    shutil.copy("t.tsv", "other.tsv")
    words = [
        "task=text_classification",
        "task.test=other.tsv",
        f"task.labels={api.format_value(LABELS, 'task.labels')}",
    ]
    assert lmtransfer("evaluate", "run=runs/probe/x", *words, "hardware=exact", "name=e") == 0
    assert "note: all 24 examples of split test" in capsys.readouterr().out


@pytest.mark.slow
def test_a_split_that_has_changed_since_training_is_said(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK, "name=x") == 0
    evaluate = ["evaluate", "run=runs/finetune/x", "split=dev", "hardware=exact", "overwrite=true"]
    assert lmtransfer(*evaluate) == 0
    assert "has changed" not in capsys.readouterr().out
    write("d.tsv", 8, first=100, labels=LABELS[::-1])
    assert lmtransfer(*evaluate) == 0
    assert "note: split dev of text_classification has changed since" in capsys.readouterr().out
    write("d.tsv", 9, first=100)
    assert lmtransfer(*evaluate) == 0
    assert "has changed since" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["task.train", "task.dev", "corpus.path", "task.file", "task.folder"])
def test_a_pipe_is_called_a_pipe(setting: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    words = {
        "corpus.path": ["prepare", "corpus=text", "corpus.path=pipe", "tokenizer.vocab_size=60"],
        "task.file": ["evaluate", "run=runs/pretrain/base", "task=reading", "task.file=pipe"],
        "task.folder": ["evaluate", "run=runs/pretrain/base", "task=multiple_choice", "task.folder=pipe"],
    }.get(setting, ["finetune", *(word for word in QUICK if not word.startswith(f"{setting}=")), f"{setting}=pipe"])
    check_refused(capsys, words, setting, f"{world}/pipe: this is a pipe", "save its content to a file")


@pytest.mark.parametrize("name", ["a\ud800", "b\udcff/c"])
def test_a_name_is_text(name: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, ["finetune", *QUICK, f"name={name}"], "name:", "not UTF-8")


def test_labels_of_half_characters_are_read(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["a\ud800", "b\udfff"]
    for name, first in (("t.jsonl", 0), ("d.jsonl", 100)):
        rows = [{"text": f"film {first + place}", "label": labels[place % 2], "id": place} for place in range(8)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [word.replace(".tsv", ".jsonl") for word in QUICK]
    assert lmtransfer("finetune", *words, "task.id_column=id", "name=x") == 0
    config = yaml.safe_load(Path("runs/finetune/x/config.yaml").read_text())
    assert config["task"]["labels"] == ["a\ufffd", "b\ufffd"]
    assert "lone surrogates replaced: 8" in capsys.readouterr().out

"""Folders of others whose links lead elsewhere, what killed starts leave, and runs that lose files as they train."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.bad_input import FINETUNE, PRETRAIN, SECRET, Answer, Case, change, check

from lmtransfer.system.durable import remove
from lmtransfer.training.checkpoint_saver import CheckpointSaver


@pytest.fixture
def outside(world: Path) -> Path:
    """A folder that no run may lead to."""
    folder = world.parent / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{SECRET} and more")
    (folder / "t.tsv").write_text("label\ttext\n" + f"good\t{SECRET} bal\nbad\tkit kis\n" * 20)
    return folder


@pytest.mark.parametrize("name", ["notes.txt", "config.yaml", "tokenizer/spm.model", "checkpoints/best/state.json"])
@pytest.mark.parametrize(
    "words",
    [
        ("import", "source=r", "name=c"),
        ("predict", "run=r", "text=the [MASK] of"),
        ("export", "run=r", "to=e"),
        (*(word for word in FINETUNE if not word.startswith("init=")), "init=r"),
    ],
    ids=lambda words: words[0],
)
def test_no_command_follows_a_link_out_of_a_run(
    words: tuple[str, ...], name: str, world: Path, outside: Path, answer: Answer
) -> None:
    shutil.copytree("runs/pretrain/base", "r")
    remove(world / "r" / name)
    (world / "r" / name).symlink_to(outside / "secret.txt")
    check(Case(words, (f"r/{name}", "link")), world, answer)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "root"])
def test_a_report_leaves_out_a_run_with_a_link_out_of_it(name: str, world: Path, outside: Path, answer: Answer) -> None:
    shutil.copytree("runs/pretrain/base", "runs/pretrain/r")
    remove(world / "runs/pretrain/r" / name)
    (world / "runs/pretrain/r" / name).symlink_to("/" if name == "root" else outside / "secret.txt")
    status, said = answer("report", "runs", "figures=false")
    assert status == 0, said
    page = (world / "runs/report/report.html").read_text()
    assert f"{name} is a link" in page
    assert "base" in page
    assert SECRET not in page + said


@pytest.mark.parametrize(("link", "words"), [("report", ()), ("o/figures", ("to=o",))])
def test_a_report_is_not_written_through_a_link(
    link: str, words: tuple[str, ...], world: Path, outside: Path, answer: Answer
) -> None:
    before = sorted(outside.rglob("*"))
    place = world / (link if words else f"runs/{link}")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    status, said = answer("report", "runs", *words)
    assert (status, "is a link" in said) == (2, True), said
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("name", ["data/x.tsv", "data", "x.tsv"])
def test_a_task_of_others_reads_no_file_through_a_link(name: str, world: Path, outside: Path, answer: Answer) -> None:
    status, said = answer(*FINETUNE[:-1], "task.dev_from_train=null", "name=t")
    assert status == 0, said
    run = (world / "runs/finetune/t").rename(world / "t")
    (world / name).parent.mkdir(exist_ok=True)
    if name == "data":
        (outside / "x.tsv").write_bytes((outside / "t.tsv").read_bytes())
    (world / name).symlink_to(outside if name == "data" else outside / "t.tsv")
    file = "data/x.tsv" if name == "data" else name
    for config in run.rglob("config.yaml"):
        change(config, {"task.train": file, "task.dev": file})
    check(Case(("evaluate", "run=t", "split=dev"), ("task.dev", file, "trust=true")), world, answer)


@pytest.mark.parametrize("gone", ["tokenizer/spm.model", "checkpoints", "."])
@pytest.mark.parametrize("words", [PRETRAIN, (*FINETUNE, "task.dev_from_train=null")], ids=lambda words: words[0])
def test_a_run_that_loses_a_file_while_it_trains_does_not_end_well(
    words: tuple[str, ...], gone: str, world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = CheckpointSaver.save
    run = world / "runs" / words[0] / "x"

    def lose(self: CheckpointSaver, name: str) -> None:
        if name == "last":
            remove(run / gone)
        save(self, name)

    monkeypatch.setattr(CheckpointSaver, "save", lose)
    status, said = answer(*words)
    assert status != 0, said
    assert str(run / gone) in said
    assert "deleted" in said
    assert "Traceback" not in said
    assert not (run / "result.json").exists()
    assert gone != "." or not os.path.lexists(run)


@pytest.mark.parametrize("words", [PRETRAIN, (*FINETUNE, "task.dev_from_train=null")], ids=lambda words: words[0])
def test_a_run_of_seeds_that_loses_its_config_does_not_end_well(
    words: tuple[str, ...], world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = CheckpointSaver.save
    run = world / "runs" / words[0] / "x"

    def lose(self: CheckpointSaver, name: str) -> None:
        remove(run / "config.yaml")
        save(self, name)

    monkeypatch.setattr(CheckpointSaver, "save", lose)
    status, said = answer(*words, "seeds=2")
    assert (status != 0, str(run / "config.yaml") in said, "deleted" in said) == (True, True, True), said
    assert not (run / "result.json").exists()


@pytest.mark.slow
def test_what_a_killed_start_has_left_is_begun_anew(world: Path, answer: Answer) -> None:
    """Between its directory and its config.yaml, alone and as a point of a sweep."""
    for left in ("runs/pretrain/x", "runs/pretrain/s/seed=1"):
        (world / left / "tokenizer").mkdir(parents=True)
        (world / left / "versions.json").write_text("{}")
        (world / left / "checkpoints").mkdir()
    status, said = answer(*PRETRAIN)
    assert status == 0, said
    status, said = answer(*PRETRAIN[:-1], "name=s", "-m", "seed=1,2")
    assert status == 0, said
    assert sorted(path.name for path in (world / "runs/pretrain/s").iterdir()) == ["seed=1", "seed=2"]


def test_a_folder_of_somebody_else_is_no_killed_start(world: Path, answer: Answer) -> None:
    local = world / "runs/pretrain/x/thesis.txt"
    local.parent.mkdir(parents=True)
    local.write_text("mine")
    status, said = answer(*PRETRAIN)
    assert (status, "runs/pretrain/x" in said, "resume=true" in said) == (2, True, True)
    assert local.read_text() == "mine"


def test_what_a_killed_prepare_has_staged_goes_with_the_next(world: Path, answer: Answer) -> None:
    tokenizers = world / "cache" / "tokenizers"
    known = next(path for path in tokenizers.iterdir() if not path.name.startswith("."))
    staged = tokenizers / f".{known.name}.elsewhere-4194305.tmp"
    staged.mkdir()
    (staged / "half").write_text("half")
    shutil.rmtree(known)
    assert answer(*PRETRAIN)[0] == 0
    assert known.is_dir()
    assert not staged.exists()


def test_checkpoints_that_are_a_link_lead_nowhere(base: Path, world: Path, answer: Answer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(world / "runs/pretrain/base/checkpoints", outside)
    (outside / ".last.old").mkdir()
    (outside / ".last.old" / "precious").write_text("mine")
    (world / "runs/pretrain/base/checkpoints").symlink_to(outside)
    (world / "runs/pretrain/base/result.json").unlink()
    before = sorted(str(path) for path in outside.rglob("*"))
    status, said = answer(*PRETRAIN[:-1], "name=base", "resume=true", f"corpus.path={base}/texts")
    assert status == 2
    assert "runs/pretrain/base/checkpoints" in said
    assert str(outside) in said
    assert sorted(str(path) for path in outside.rglob("*")) == before


def test_what_a_prepare_has_staged_that_was_killed_at_its_end_goes_too(world: Path, answer: Answer) -> None:
    corpora = world / "cache" / "corpora"
    known = [path for path in corpora.iterdir() if path.is_dir()]  # other tests may have left other corpora
    for corpus in known:
        (corpus / "manifest.json").rename(corpus / ".manifest.json.elsewhere-4194305.tmp")
    assert answer(*PRETRAIN)[0] == 0
    (used,) = [corpus for corpus in known if (corpus / "manifest.json").is_file()]
    assert sorted(path.name for path in used.iterdir()) == ["blocks", "manifest.json", "train", "validation"]

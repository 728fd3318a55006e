"""A path that does not exist, or a misspelled key, ends a command before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support.refusals import refuses

from lmtransfer.commands._named_files import check_named_files
from lmtransfer.errors import DataError, RunDirectoryError

LINES = {
    "pretrain init=nowhere": "init: there is no run directory",
    "pretrain train.stepz=3": "train.stepz=3: ",
    "pretrain corpus=text corpus.path=nowhere.txt": "corpus.path=nowhere.txt: ",
    "finetune init=runs/nothing task=python_docs": "init: there is no run directory",
    "finetune init=hf:x task=text_classification task.train=nowhere.tsv": "split train: no file ",
    "predict run=nowhere input=x.csv": "run: there is no run directory",
    "embed run=a_run input=x.csv output=x.npy": "input=x.csv: ",
    "evaluate run=nowhere": "run: there is no run directory",
    "export run=nowhere to=out": "run: there is no run directory",
    "serve rum=nowhere": "rum=nowhere: ",
}


def test_a_wrong_path_or_key_ends_without_torch(tmp_path: Path) -> None:
    (tmp_path / "a_run").mkdir()
    (tmp_path / "a_run" / "config.yaml").touch()
    code = f"""
        import sys
        from lmtransfer.cli import main
        for line in {list(LINES)}:
            print(main(line.split()), "torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["2 False"] * len(LINES), done.stderr
    said = done.stderr.splitlines()
    assert [line for line, names in zip(said, LINES.values(), strict=True) if names not in line] == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"tokenizer_from": "gone"}, ["tokenizer_from: ", "gone"]),
        ({"run": "there@1M"}, ["run: ", "there is not a run directory", "config.yaml"]),
        ({"init": "there@1x"}, ["init=there@1x: ", "'1x'", "revision"]),
    ],
)
def test_a_run_is_a_folder_with_a_config(
    values: dict[str, str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    with refuses(RunDirectoryError, *names):
        check_named_files(values)


def test_only_what_cannot_be_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("s3://bucket/texts", "texts/*.txt", str(tmp_path), None, ["gone"]):
        check_named_files({"corpus": {"path": path}, "init": "hf:owner/name", "run": None, "input": "-"})
    task = {"train": "gone.tsv", "name": "mine"}
    for more in ({}, {"transfer": {}, "resume": True}):
        check_named_files({"task": task, **more})  # only a new training reads the file
    check_named_files({"task": task | {"hub": {"name": "owner/name"}}, "transfer": {}})
    with refuses(DataError, "split train", "gone.tsv"):
        check_named_files({"task": task, "transfer": {}})
    Path("gone.tsv.gz").touch()
    check_named_files({"task": task, "transfer": {}})

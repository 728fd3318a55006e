from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.launch.completion import complete, script

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
TRUE_OR_FALSE = ["tokenizer.lowercase=true", "tokenizer.lowercase=false"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lmtransfer ", ["toy", "other", "--help", "--version", "--shell-completion"]),
        ("lmtransfer t", ["toy"]),
        (
            "lmtransfer toy ",
            ["experiment=", "init=", "model.", "model=", "name=", "seed=", "text=", "train."],
        ),  # none of Hydra's
        ("lmtransfer toy mod", ["model.", "model="]),
        ("lmtransfer toy model=", ["model=large", "model=small"]),
        ("lmtransfer toy train.s", ["train.seconds=", "train.steps="]),
        ("lmtransfer toy seed=1 model.", ["model._target_=", "model.dim="]),
        ("lmtransfer toy model=large model.dim=", ["model.dim=64"]),
        ("lmtransfer toy --mul", ["--multirun"]),
        ("lmtransfer tyo mod", []),
        ("lmtransfer toy hydra.", []),  # a user sets nothing there
        ("lmtransfer toy model=lareg model.", []),
        ("lmtransfer toy train.steps=", ["train.steps=null"]),
        ("lmtransfer pretrain hardware.precision=", [f"hardware.precision={name}" for name in PRECISIONS]),
        ("lmtransfer pretrain hardware.compile=f", ["hardware.compile=false"]),
        ("lmtransfer pretrain model=bert_tiny model.norm=", ["model.norm=post", "model.norm=pre"]),
        ("lmtransfer pretrain tokenizer=bpe tokenizer.lowercase=", TRUE_OR_FALSE),
        ("lmtransfer finetune checkpoint=", ["checkpoint=best", "checkpoint=last"]),
        ("lmtransfer finetune baseline=n", ["baseline=null"]),
        ("lmtransfer finetune task=rte task.file_format=q", ["task.file_format=quoted_tsv"]),
    ],
)
def test_commands_then_groups_keys_and_values(line: str, expected: list[str], request: pytest.FixtureRequest) -> None:
    if "toy" in line or line.endswith(("t", " ")) or "tyo" in line:
        request.getfixturevalue("toy")
    assert complete(line) == expected
    assert complete(f"{line} seed=3", str(len(line))) == expected  # what is behind the cursor does not count


def test_choices_of_a_folder_of_the_user_are_completed_too(toy: Any) -> None:
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/larch.yaml").write_text("dim: 3\n")
    assert complete("lmtransfer toy -cd mine model=lar") == ["model=larch", "model=large"]
    assert complete("lmtransfer toy -cd mine model=larch model.d") == ["model.dim="]


def test_paths_are_completed_for_keys_that_take_them(toy: Any) -> None:
    Path("runs/pretrain/imdb").mkdir(parents=True)
    Path("runs/notes.txt").touch()
    Path("runs/.hidden").touch()
    assert complete("lmtransfer toy init=ru") == ["init=runs/"]
    assert complete("lmtransfer toy init=runs/") == ["init=runs/notes.txt", "init=runs/pretrain/"]
    assert complete("lmtransfer toy init=nowhere/x") == []


def test_scripts_exist_for_three_shells_and_no_other() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "lmtransfer --complete" in script(shell)
    with refuses(ConfigError, "bash, zsh, fish"):
        script("tcsh")


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "lmtransfer").write_text(f'#!/bin/sh\nexec {sys.executable} -m lmtransfer "$@"\n')
    (tmp_path / "lmtransfer").chmod(0o755)
    code = f"""
        {script("bash")}
        try() {{ COMP_LINE="$1"; COMP_POINT=${{#1}}; COMP_TYPE=9; COMPREPLY=()
                _lmtransfer_complete 2>/dev/null; echo "${{COMPREPLY[*]}}"; }}
        try "lmtransfer lis"
        try "lmtransfer list wh"
        try "lmtransfer list what="
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert result.stdout.splitlines() == ["list", "what=", "all"], result.stderr

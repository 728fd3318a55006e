"""Runs, studies and folders of others, which may hold anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_input import FINETUNE, Answer, Case, altered, check

CASES: dict[str, Case] = {
    # 20: nothing in a run is looked up on this machine
    **{
        f"run.{'-'.join(words[:1])}.{key}": Case(words, ("config.yaml", key), alter={key: "${oc.env:SECRET}"})
        for key in ("model.dim", "corpus.name", "name", "model._target_", "objective.losses.mlm.weight")
        for words in (
            ("predict", "run=r", "text=the [MASK] of"),
            ("evaluate", "run=r"),
            ("export", "run=r", "to=e"),
            ("finetune", *(word for word in FINETUNE[1:] if not word.startswith("init=")), "init=r"),
        )
    },
    "run.decode": Case(("evaluate", "run=r"), ("config.yaml", "seed"), alter={"seed": "${oc.decode:${oc.env:SECRET}}"}),
    "run.in_a_list": Case(
        ("evaluate", "run=r"), ("config.yaml", "corpus.path[0]"), alter={"corpus.path": ["${oc.env:SECRET}"]}
    ),  # fmt: skip
    "run.of_other_keys": Case(("evaluate", "run=r"), ("config.yaml", "model.dim"), alter={"model.dim": "${seed}"}),
    **{
        f"study.{key}": Case(
            ("study", "study=own", "-cd", "mine"),
            (key, "looked up"),
            {"mine/study/own.yaml": b"# @package _global_\n# Mine\nname: s\n" + content},
        )  # fmt: skip
        for key, content in {
            "recipes.a": b"recipes: {a: 'model=bert_tiny name=${oc.env:SECRET}'}\n",
            "pretrain.words[0]": b"recipes: {a: model=gpt_mini}\npretrain: {words: ['name=${oc.env:SECRET}']}\n",
            "recipes.b": b"recipes: {b: 'model=bert_tiny name=\\${oc.env:SECRET}'}\n",
        }.items()
    },
    # 19: nothing is deleted that was not written
    "export.others_files": Case(
        ("export", "run=runs/pretrain/base", "to=e", "overwrite=true"),
        ("to=",),
        {"e/model.safetensors": b"theirs", "e/config.json": b"{}"},
    ),  # fmt: skip
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_file_of_others_does_no_harm(name: str, world: Path, answer: Answer) -> None:
    check(CASES[name], world, answer)


def test_an_export_replaces_what_exports_have_written_and_nothing_else(world: Path, answer: Answer) -> None:
    export = ("export", "run=runs/pretrain/base", "to=e", "format=tensors")
    assert answer(*export)[0] == 0
    assert answer(*export, "overwrite=true")[0] == 0
    (world / "e" / "notes.txt").write_text("mine")
    status, said = answer(*export, "overwrite=true")
    assert (status, "notes.txt" in said) == (2, True)
    assert (world / "e" / "notes.txt").read_text() == "mine"


def test_names_of_others_move_no_cursor(world: Path, answer: Answer) -> None:
    altered(world, {"name": "a\x1b[2Jb", "corpus.name": "c\x1b]0;owned\x07", "seed": 3}).rename(
        world / "runs" / "e\x1b[31mf"
    )
    status, said = answer("report", "runs", "to=o")
    assert status == 0, said
    for page in (
        "",
        *(path.read_text() for path in (world / "o").rglob("*.*") if path.suffix in (".html", ".md", ".csv")),
    ):
        assert "\x1b[2J" not in said + page
        assert "\x1b]0;" not in said + page
        assert "\x1b[31mf" not in said + page

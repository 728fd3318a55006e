"""One bad input, and what every answer to one must be: a few lines that name the fault, and nothing half-made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SMALL = (
    *(
        "experiment=null",
        "train.seconds=null",
        "train.steps=2",
        "model=bert_tiny",
        "model.dim=16",
        "model.hidden_dim=16",
    ),
    *("objective=mlm", "objective.max_length=32", "corpus=text", "corpus.path=texts", "tokenizer.vocab_size=60"),
    *("tokenizer.allow_fewer=true", "train.batch_tokens=128", "hardware.threads=1"),
)
PRETRAIN = ("pretrain", *SMALL, "name=x")
UNREAD = (
    "pretrain",
    *(word for word in SMALL if not word.startswith("corpus.path")),
    "corpus.path=/dev/null",
    "name=x",
)
PREPARE = ("prepare", "corpus=text", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true")
FINETUNE = (
    *("finetune", "init=runs/pretrain/base", "task=text_classification", "task.train=t.tsv", "task.dev=t.tsv"),
    *("train.epochs=null", "train.steps=2", "name=x"),
)
#: What goes on with ``runs/finetune/ft``; all but the last word begins it.
FT = (
    *(*FINETUNE[:-1], "name=ft", "seeds=2", "learning_rates=[1e-3,1e-2]", "task.dev_from_train=null"),
    *("hardware.threads=1", "resume=true"),
)
SECRET = "a-secret-of-this-machine"


Answer = Callable[..., tuple[int, str]]


@dataclass(frozen=True)
class Case:
    """One bad input.

    Attributes:
        words: the command line.
        names: what the message must name.
        files: content of files that are there; None for a folder.
        alter: keys of the base run's config.yaml that a run ``r`` has otherwise.
        status: the exit status.
    """

    words: tuple[str, ...]
    names: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    alter: dict[str, object] = field(default_factory=dict)
    status: int = 2


def bounded(key: str, value: str, *more: str) -> Case:
    """A value out of its bounds, which is refused before the corpus, which is not there, is looked for."""
    return Case((*UNREAD, *more, f"{key}={value}"), (f"{key}:",))


def half_made(world: Path) -> set[str]:
    """What is in the folder of runs, and staged files anywhere."""
    found = {str(path.relative_to(world)) for path in world.rglob(".*.tmp")}
    return found | {str(path.relative_to(world)) for path in (world / "runs").rglob("*")}


def change(file: Path, changes: dict[str, Any], *, separator: str = ".") -> None:
    """Give fields of a YAML or JSON file, named by all keys on their way, other values."""
    write, content = (
        (json.dumps, json.loads(file.read_text()))
        if file.suffix == ".json"
        else (yaml.safe_dump, yaml.safe_load(file.read_text()))
    )
    for place, value in changes.items():
        node, (*parents, last) = content, place.split(separator)
        for parent in parents:
            node = node[int(parent)] if isinstance(node, list) else node[parent]
        node[last] = value
    file.write_text(write(content))


def altered(world: Path, changes: dict[str, Any]) -> Path:
    """A copy ``r`` of the base run, with other values in its config.yaml."""
    run = world / "r"
    shutil.copytree(world / "runs/pretrain/base", run)
    change(run / "config.yaml", changes)
    return run


def check(case: Case, world: Path, answer: Answer) -> str:
    """Give a bad input in ``world``, hold the answer against what is promised, and return what was said."""
    for file, content in case.files.items():
        (world / file).parent.mkdir(parents=True, exist_ok=True)
        (world / file).write_bytes(content)
    if case.alter:
        altered(world, case.alter)
    before = half_made(world)
    status, said = answer(*case.words)
    message = said[said.find("lmtransfer: ") :]
    assert status == case.status, said
    assert message.startswith("lmtransfer: "), said
    assert "Traceback" not in said
    assert "is a bug" not in said
    assert len(message.splitlines()) <= 8, message
    for part in case.names:
        assert part in message, message
    assert SECRET not in said
    assert half_made(world) == before
    for file, content in case.files.items():
        assert (world / file).read_bytes() == content
    return said

"""Bad input and faults, a row each: the exit status, what the message names, and that nothing half-made is left.

Rows are kinds, not single cases. Interruptions, which need processes, are in ``test_interruptions.py``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from lmtransfer import cli

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
NOWHERE = ("pretrain", *(word for word in SMALL if not word.startswith("corpus.path")), "corpus.path=nowhere", "name=x")
PREPARE = ("prepare", "corpus=text", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true")
FINETUNE = (
    *("finetune", "init=runs/pretrain/base", "task=text_classification", "task.train=t.tsv", "task.dev=t.tsv"),
    *("train.epochs=null", "train.steps=2", "name=x"),
)
SECRET = "a-secret-of-this-machine"


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
    return Case((*NOWHERE, *more, f"{key}={value}"), (f"{key}:",))


CASES: dict[str, Case] = {
    # 22: values out of bounds
    **{
        f"bounds.{key}={value}": bounded(key, value)
        for key, values in {
            "model.dim": ("-8", "0", "1e12", "nan"),
            "model.hidden_dim": ("0",),
            "model.num_layers": ("-1", "0", "1e9"),
            "model.num_heads": ("0", "-1"),
            "model.dropout": ("1.5", "-0.1", "nan", "1"),
            "model.attention_dropout": ("2",),
            "model.max_length": ("-1", "0"),
            "objective.max_length": ("0", "-5"),
            "objective.mask_prob": ("0", "1.5", "nan"),
            "tokenizer.vocab_size": ("-3", "0"),
            "optimizer.learning_rate": ("0", "-1", "nan", "inf", "1e400"),
            "optimizer.weight_decay": ("-1", "nan"),
            "schedule.warmup_fraction": ("1.5", "-1"),
            "train.eval_tokens": ("-1", "0"),
            "train.batch_tokens": ("0", "-1"),
            "train.max_grad_norm": ("nan", "inf", "-1"),
            "seed": ("-1", "99999999999999999999", "18446744073709551616"),
            "corpus.validation_fraction": ("2", "nan"),
        }.items()
        for value in values
    },
    **{
        f"bounds.adamw.{key}={value}": bounded(f"optimizer.{key}", value, "optimizer=adamw")
        for key, value in (("betas", "[0.9,1.0]"), ("betas", "[-1,0.9]"), ("eps", "0"), ("weight_decay", "-1"))
    },
    "bounds.seconds=inf": Case((*NOWHERE, "train.steps=null", "train.seconds=inf"), ("train.seconds",)),
    "bounds.seconds=nan": Case((*NOWHERE, "train.steps=null", "train.seconds=nan"), ("train.seconds",)),
    "bounds.seconds=-1": Case((*NOWHERE, "train.steps=null", "train.seconds=-1"), ("train.seconds",)),
    "bounds.epochs=0": Case((*NOWHERE, "train.steps=null", "train.epochs=0"), ("train.epochs",)),
    "bounds.finetune_seed": Case((*FINETUNE, "seed=99999999999999999999"), ("seed:",)),
    "bounds.finetune_rate": Case((*FINETUNE, "optimizer.learning_rate=nan", "learning_rates=null"), ("learning_rate",)),
    "bounds.rows_longer_than_model": Case((*NOWHERE, "objective.max_length=9999"), ("objective.max_length=9999",)),
    # 22: settings that exclude each other
    "both.warmups": Case(
        (*NOWHERE, "schedule.warmup_steps=5", "schedule.warmup_fraction=0.5"),
        ("schedule.warmup_steps=5", "schedule.warmup_fraction=0.5"),
    ),
    "both.models": Case((*NOWHERE, "model=gpt_mini"), ("model=bert_tiny", "model=gpt_mini")),
    "both.objectives": Case((*NOWHERE, "objective=lm"), ("objective=mlm", "objective=lm")),
    # 24: a start that fails leaves nothing
    **{
        f"start.batch_tokens={value}": Case((*PRETRAIN, f"train.batch_tokens={value}"), ("train.batch_tokens",))
        for value in (1, 31)
    },
    "start.rows_too_long": Case(
        (*PRETRAIN, "objective.max_length=64", "train.batch_tokens=32"), ("train.batch_tokens",)
    ),
    "start.not_finite": Case(
        (*PRETRAIN, "train.steps=50", "optimizer.learning_rate=1e38"), ("optimizer.learning_rate",)
    ),
    "start.long_name": Case((*PRETRAIN, f"name={'n' * 300}"), ("name:", "300 bytes")),
    # 24: no text
    "text.empty": Case((*PREPARE, "corpus.path=a.txt"), ("a.txt", "empty"), {"a.txt": b""}),
    "text.blank": Case((*PREPARE, "corpus.path=a.txt"), ("a.txt", "blank"), {"a.txt": b" \n\n \t\n" * 9}),
    "text.empty_jsonl": Case((*PREPARE, "corpus.path=a.jsonl"), ("a.jsonl", "empty"), {"a.jsonl": b""}),
    **{
        f"text.binary{name}": Case((*PREPARE, f"corpus.path=a{name}"), (f"a{name}", what), {f"a{name}": content})
        for name, content, what in (
            (".docx", b"PK\x03\x04\x14\x00\x06\x00word/document.xml", "ZIP"),
            (".doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64), "Office"),
            (".pdf", b"%PDF-1.7\nstream\nhello there\n", "PDF"),
            (".rtf", b"{\\rtf1\\ansi hello there}\n", "RTF"),
            (".bin", bytes(range(7)) * 3 + bytes(500), "binary"),
            (".txt", "hello there".encode("utf-16-le") + b"\n\0", "UTF-16"),
            (".gzip", b"\x1f\x8b\x08\x00" + bytes(20), "gzip"),
            (".png", b"\x89PNG\r\n\x1a\n" + bytes(20), "image"),
        )
    },
    "text.binary_replaced": Case(
        (*PREPARE, "corpus.path=a.odt", "corpus.encoding_errors=replace"),
        ("a.odt",),
        {"a.odt": b"PK\x03\x04\x14\x00\xff\xfe"},
    ),  # fmt: skip
    "task.binary": Case((*FINETUNE, "task.train=t.docx"), ("t.docx",), {"t.docx": b"PK\x03\x04\x14\x00"}),
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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a task and a small run."""
    world = tmp_path_factory.mktemp("base")
    words = [f"{start}{middle}{end}" for start in "bdfgk" for middle in "aeiou" for end in "lmnrst"]
    (world / "texts").mkdir()
    lines = (" ".join(words[(7 * row + 11 * place * place) % len(words)] for place in range(12)) for row in range(300))
    (world / "texts" / "a.txt").write_text("\n".join(f"{line}.{'' if row % 6 else chr(10)}"
                                                     for row, line in enumerate(lines)))  # fmt: skip
    (world / "t.tsv").write_text("label\ttext\n" + "good\tbal bam\nbad\tkit kis\n" * 20)
    before = Path.cwd()
    os.chdir(world)
    os.environ["LMTRANSFER_CACHE"], kept = str(world / "cache"), os.environ.get("LMTRANSFER_CACHE")
    try:
        assert cli.main([*PRETRAIN[:-1], "name=base"]) == 0
    finally:
        os.chdir(before)
        if kept is None:
            del os.environ["LMTRANSFER_CACHE"]
        else:
            os.environ["LMTRANSFER_CACHE"] = kept
    return world


@pytest.fixture
def world(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to do harm to, which is the current folder."""
    shutil.copytree(base, tmp_path / "w")
    monkeypatch.chdir(tmp_path / "w")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "w" / "cache"))
    monkeypatch.setenv("SECRET", SECRET)
    return tmp_path / "w"


Answer = Callable[..., tuple[int, str]]


@pytest.fixture
def answer(world: Path, capfd: pytest.CaptureFixture[str]) -> Answer:
    """Run a command line in this process; its status, and all that it said."""

    def run(*words: str) -> tuple[int, str]:
        try:
            status = cli.main(list(words))
        except SystemExit as leave:
            status = int(leave.code or 0)
        out, err = capfd.readouterr()
        return status, out + err

    return run


def half_made(world: Path) -> set[str]:
    """What is in the folder of runs, and staged files anywhere."""
    found = {str(path.relative_to(world)) for path in world.rglob(".*.tmp")}
    return found | {str(path.relative_to(world)) for path in (world / "runs").rglob("*")}


@pytest.mark.parametrize("name", list(CASES))
def test_bad_input_is_answered_in_a_few_lines_and_leaves_nothing(name: str, world: Path, answer: Answer) -> None:
    case = CASES[name]
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


def altered(world: Path, changes: dict[str, object]) -> Path:
    """A copy ``r`` of the base run, with other values in its config.yaml."""
    run = world / "r"
    shutil.copytree(world / "runs/pretrain/base", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        node, (*parents, last) = config, key.split(".")
        for parent in parents:
            node = node[parent]
        node[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


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
    mine = world / "runs/pretrain/x/thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    status, said = answer(*PRETRAIN)
    assert (status, "exists already" in said) == (2, True)
    assert mine.read_text() == "mine"


def test_what_a_killed_prepare_has_staged_goes_with_the_next(world: Path, answer: Answer) -> None:
    tokenizers = world / "cache" / "tokenizers"
    known = next(path for path in tokenizers.iterdir() if not path.name.startswith("."))
    staged = tokenizers / f".{known.name}.elsewhere-4194305.tmp"
    staged.mkdir()
    (staged / "half").write_text("half")
    assert answer(*PRETRAIN)[0] == 0
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
    assert "checkpoints is a link" in said
    assert sorted(str(path) for path in outside.rglob("*")) == before


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

"""Runs, studies and folders of others, which may hold anything."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.bad_input import FINETUNE, FT, PREPARE, PRETRAIN, SECRET, Answer, Case, altered, change, check
from support.limits import no_privileges

from lmtransfer import cli
from lmtransfer.data import files

PREDICT = ("predict", "run=r", "text=the [MASK] of")
EVALUATE = ("evaluate", "run=r")
EXPORT = ("export", "run=r", "to=e")
INIT = (*(word for word in FINETUNE if not word.startswith("init=")), "init=r")
RESUME = (*PRETRAIN[:-1], "name=base", "resume=true", "train.steps=4")
ASK = ("predict", "run=t", "text=good bal")

CASES: dict[str, Case] = {
    # 20: nothing in a run is looked up on this machine
    **{
        f"run.{'-'.join(words[:1])}.{key}": Case(words, ("config.yaml", key), alter={key: "${oc.env:SECRET}"})
        for key in ("model.dim", "model._target_", "objective.losses.mlm.weight")
        for words in (
            ("predict", "run=r", "text=the [MASK] of"),
            ("evaluate", "run=r", "trust=true"),
            ("export", "run=r", "to=e"),
            ("finetune", *(word for word in FINETUNE[1:] if not word.startswith("init=")), "init=r"),
        )
        if key == "model.dim" or words[0] == "predict"
    },
    "run.decode": Case(("evaluate", "run=r"), ("config.yaml", "seed"), alter={"seed": "${oc.decode:${oc.env:SECRET}}"}),
    "run.in_a_list": Case(
        ("evaluate", "run=r"), ("config.yaml", "corpus.path"), alter={"corpus.path": ["${oc.env:SECRET}"]}
    ),  # fmt: skip
    "run.of_other_keys": Case(
        ("evaluate", "run=r", "trust=true"), ("config.yaml", "model.dim"), alter={"model.dim": "${seed}"}
    ),
    **{
        f"study.{key}": Case(
            ("study", "study=own", "-cd", "mine"),
            (key, "oc.env:SECRET"),
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


def test_a_text_in_a_run_is_only_a_text(world: Path, answer: Answer) -> None:
    looked_up = dict.fromkeys(("name", "corpus.name", "init", "data_root"), "${oc.env:SECRET}")
    altered(world, {**looked_up, "tokenizer.name": "${oc.decode:${oc.env:SECRET}}"})
    for words in (PREDICT, (*EXPORT, "format=tensors"), ("report", "r", "to=o"), (*INIT, "task.dev_from_train=null")):
        status, said = answer(*words)
        assert status == 0, said
        assert SECRET not in said
    for path in world.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ".json", ".md", ".html", ".csv"):
            assert SECRET not in path.read_text(encoding="utf-8"), path


def test_an_export_replaces_what_exports_have_written_and_nothing_else(world: Path, answer: Answer) -> None:
    export = ("export", "run=runs/pretrain/base", "to=e", "format=tensors")
    assert answer(*export)[0] == 0
    assert answer(*export, "overwrite=true")[0] == 0
    (world / "e" / "notes.txt").write_text("mine")
    status, said = answer(*export, "overwrite=true")
    assert (status, "notes.txt" in said) == (2, True)
    assert (world / "e" / "notes.txt").read_text() == "mine"


def test_names_of_others_move_no_cursor(world: Path, answer: Answer) -> None:
    altered(world, {"name": "a\x1b[2Jb$x_{\u4e2d\ue000", "corpus.name": "c\x1b]0;owned\x07", "seed": 3}).rename(
        world / "runs" / "e\x1b[31mf"
    )
    status, said = answer("report", "runs", "to=o")
    assert status == 0, said
    assert "Warning" not in said
    for page in (
        "",
        *(path.read_text() for path in (world / "o").rglob("*.*") if path.suffix in (".html", ".md", ".csv")),
    ):
        assert "\x1b[2J" not in said + page
        assert "\x1b]0;" not in said + page
        assert "\x1b[31mf" not in said + page


Alter = Callable[[Path], None]


def deep(depth: int = 100_000) -> bytes:
    """JSON, and YAML, without end."""
    return b"[" * depth + b"]" * depth


def put(file: str, content: bytes) -> Alter:
    """Give a file of the run another content."""

    def alter(run: Path) -> None:
        (run / file).write_bytes(content)
        _sealed_again(run / file)

    return alter


def field(file: str, place: str, value: Any) -> Alter:
    """Give a field of a JSON file of the run another value."""

    def alter(run: Path) -> None:
        change(run / file, {place: value}, separator="/")
        _sealed_again(run / file)

    return alter


def setting(key: str, value: Any) -> Alter:
    """Give a key of the run's config.yaml another value."""
    return lambda run: change(run / "config.yaml", {key: value})


def setting_of(seed: str, key: str, value: Any) -> Alter:
    """Give a key of a seed's config.yaml, and of the whole run's, another value."""

    def alter(run: Path) -> None:
        for folder in (run, run / seed):
            setting(key, value)(folder)

    return alter


def tries(place: str, value: Any) -> Alter:
    """Give a field of the first try of a learning rate another value, in a run that has not finished."""
    return _unfinished(field("tries/pretrained-seed-0-rate-0.001.json", place, value))


def _unfinished(alter: Alter) -> Alter:
    """Let the run be one that goes on."""

    def alter_both(run: Path) -> None:
        (run / "result.json").unlink()
        alter(run)

    return alter_both


def pipe(file: str) -> Alter:
    """Put a pipe, to which nobody writes, in the place of a file of the run."""

    def alter(run: Path) -> None:
        (run / file).unlink(missing_ok=True)
        os.mkfifo(run / file)

    return alter


def header(content: bytes, length: int | None = None) -> Alter:
    """Give the weights another header."""

    def alter(run: Path) -> None:
        for path in (*run.glob("model.safetensors"), *run.glob("checkpoints/*/model.safetensors")):
            path.write_bytes(struct.pack("<Q", len(content) if length is None else length) + content + bytes(64))
            _sealed_again(path)

    return alter


def tensors(change: Callable[[dict[str, torch.Tensor]], None], name: str = "model") -> Alter:
    """Give the run other tensors."""

    def alter(run: Path) -> None:
        for path in run.glob(f"checkpoints/*/{name}.safetensors"):
            content = load_file(path)
            change(content)
            save_file(content, path)
            _sealed_again(path)

    return alter


def both(file: str, alter: Callable[[str], Alter]) -> Alter:
    """Alter a file of both checkpoints."""

    def alter_both(run: Path) -> None:
        for folder in sorted((run / "checkpoints").iterdir()):
            alter(f"checkpoints/{folder.name}/{file}")(run)

    return alter_both


def state(place: str, value: Any) -> Alter:
    """Give a field of each checkpoint's state another value."""
    return both("state.json", lambda file: field(file, place, value))


def manifest(place: str, value: Any) -> Alter:
    """Give a field of each checkpoint's manifest another value."""
    return both("manifest.json", lambda file: field(file, place, value))


def _of_others(alter: Alter) -> Alter:
    """Let the run be one that was not made here, too."""

    def alter_both(run: Path) -> None:
        (run / "made_here").unlink()
        alter(run)

    return alter_both


def _sealed_again(path: Path) -> None:
    """Let a checkpoint's manifest, or a tokenizer's description, know of what was put into a file beside it."""
    noted = path.parent / "manifest.json"
    if noted.is_file() and path != noted:
        content = json.loads(noted.read_text())
        raw = path.read_bytes()
        content["files"][path.name] = {"bytes": len(raw), "sha256": sha256(raw).hexdigest()}
        noted.write_text(json.dumps(content))


STATES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "deep": (both("state.json", lambda file: put(file, b'{"step": ' + deep() + b"}")), ("state.json", "nested")),
    "negative": (state("step", -1), ("state.json", "step")),
    "aliases_lost": (state("aliases", {"a": "b"}), ("state.json", "aliases")),
    "world": (state("world_size", 0), ("state.json", "world_size")),
}
MANIFESTS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "null": (manifest("files", None), ("manifest.json", "files", "null")),
    "above": (both("manifest.json", lambda file: _named(file, "../../config.yaml")), ("manifest.json", "config.yaml")),
    "pipe": (both("manifest.json", pipe), ("manifest.json", "pipe")),
}
HEADERS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "huge": (header(b"{}", 2**62), ("model.safetensors", "header")),
    "overflow": (
        header(b'{"a": {"dtype": "F32", "shape": [4611686018427387904, 8], "data_offsets": [0, 64]}}'),
        ("model.safetensors", "overflow"),
    ),
    "other_names": (
        tensors(lambda found: [found.update({f"x.{name}": found.pop(name)}) for name in list(found)] and None),
        ("config.yaml", "missing"),
    ),
}
SIZES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "dim": (setting("model.dim", 1 << 24), ("config.yaml", "model", "shape")),
    "layers": (setting("model.num_layers", 3), ("config.yaml", "model", "missing")),
    "dim_text": (setting("model.dim", "big"), ("config.yaml", "model.dim")),
    "elmo": (
        setting(
            "model",
            {
                **{"_target_": "lmtransfer.models.elmo.ElmoEncoder", "dim": 1 << 20, "num_layers": 2},
                **{"cell_dim": 1 << 23, "char_dim": 1 << 20, "filters": [[1, 1 << 30]], "num_highway": 1},
            },
        ),
        ("config.yaml", "model"),
    ),
    "endless": (
        setting(
            "model",
            {
                **{"_target_": "lmtransfer.models.elmo.ElmoEncoder", "dim": 16, "num_layers": 2, "cell_dim": 32},
                **{"char_dim": 4, "filters": [[1, 8]], "num_highway": 10**12},
            },
        ),
        ("config.yaml", "num_highway"),
    ),
    "class": (setting("model._target_", "lmtransfer.objectives.masked_lm.MaskedLm"), ("config.yaml", "model")),
    "null": (setting("model._target_", None), ("config.yaml", "model._target_")),
}
OBJECTIVES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "text": (setting("objective", "mlm"), ("config.yaml", "objective", "'mlm'")),
    "losses_null": (setting("objective.losses", None), ("config.yaml", "objective.losses")),
    "rows_argument": (setting("objective.rows.max_length", "long"), ("config.yaml", "objective.rows.max_length")),
}
CONFIGS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "deep": (put("config.yaml", b"model: " + deep(5000)), ("config.yaml", "nested")),
    "bomb": (
        put("config.yaml", b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nmodel: [*c, *c]\n"),
        ("config.yaml", "alias"),
    ),
    "python": (put("config.yaml", b"model: !!python/object/apply:os.system [id]\n"), ("config.yaml",)),
}
EVALUATED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "corpus_text": (setting("corpus", "text"), ("config.yaml", "corpus", "'text'")),
    "versions_data": (
        _of_others(put("versions.json", b'{"data": {"corpus": 3}}')),
        ("config.yaml", "corpus.path"),  # its text is not even looked for
    ),
    "versions_pipe": (_of_others(pipe("versions.json")), ("versions.json", "pipe")),
}
TOKENIZERS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "deep": (put("tokenizer/tokenizer.json", deep()), ("tokenizer.json", "nested")),
    "other": (put("tokenizer/spm.model", b"x"), ("spm.model", "sha256")),
}
RESUMED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "state.negative": STATES["negative"],
    "state.world": STATES["world"],
    "manifest.above": MANIFESTS["above"],
    "metrics.deep": (put("metrics.jsonl", deep() + b"\n"), ("metrics.jsonl:1", "nested")),
    "metrics.pipe": (pipe("metrics.jsonl"), ("metrics.jsonl", "pipe")),
    "optimizer.shape": (
        tensors(
            lambda found: found.update({key: value.new_zeros(3) for key, value in found.items() if value.ndim}),
            "optimizer",
        ),
        ("optimizer", "shape"),
    ),  # fmt: skip
    "watcher": (
        state("watchers", {"non_finite_guard": {"in_a_row": "x"}}),
        ("state.json", "watchers.non_finite_guard"),
    ),
}
RUNS: dict[str, tuple[tuple[str, ...], Alter, tuple[str, ...]]] = {
    **{f"state.{name}": (PREDICT, *case) for name, case in STATES.items()},
    **{f"manifest.{name}": (PREDICT, *case) for name, case in MANIFESTS.items()},
    **{f"header.{name}": (PREDICT, *case) for name, case in HEADERS.items()},
    **{
        f"{words[0]}.size.{name}": (words, *case)
        for name, case in SIZES.items()
        for words in (PREDICT, INIT, EXPORT)
        if name == "dim" or words is PREDICT
    },
    **{
        f"{words[0]}.objective.{name}": (words, *case)
        for name, case in OBJECTIVES.items()
        for words in (PREDICT, (*EVALUATE, "corpus=text", "corpus.path=texts"))
        if name == "losses_null" or words is PREDICT
    },
    **{
        f"{words[0]}.config.{name}": (words, *case)
        for name, case in CONFIGS.items()
        for words in (PREDICT, EVALUATE, EXPORT, INIT)
        if name == "bomb" or words is PREDICT
    },
    **{f"evaluate.{name}": (EVALUATE, *case) for name, case in EVALUATED.items()},
    **{
        f"{words[0]}.tokenizer.{name}": (words, *case)
        for name, case in TOKENIZERS.items()
        for words in (PREDICT, EXPORT, INIT)
        if name == "deep" or words is PREDICT
    },
    "export.language_list": ((*EXPORT, "language=[{a:1}]"), lambda run: None, ("language",)),
}


def _named(file: str, name: str) -> Alter:
    def alter(run: Path) -> None:
        content = json.loads((run / file).read_text())
        content["files"][name] = {"bytes": 1, "sha256": ""}
        (run / file).write_text(json.dumps(content))

    return alter


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_of_others_is_held_against_its_schema(name: str, world: Path, answer: Answer) -> None:
    words, alter, names = RUNS[name]
    shutil.copytree("runs/pretrain/base", "r")
    alter(world / "r")
    check(Case(words, names), world, answer)


@pytest.mark.parametrize("name", list(RESUMED))
def test_what_is_gone_on_with_is_held_against_its_schema(name: str, world: Path, base: Path, answer: Answer) -> None:
    alter, names = RESUMED[name]
    run = world / "runs/pretrain/base"
    (run / "result.json").unlink()
    setting("corpus.path", [str(world / "texts")])(run)
    setting("output_root", str(world / "runs"))(run)
    setting("train.steps", 4)(run)
    alter(run)
    check(Case(RESUME, names), world, answer)


TASKS: dict[str, tuple[tuple[str, ...], Alter, tuple[str, ...]]] = {
    "task.argument": (ASK, setting_of("seed-0", "task.nonesuch", 3), ("config.yaml", "task.nonesuch")),
    "head.huge": (
        ASK,
        setting_of("seed-0", "transfer.head_hidden_dim", 1 << 24),
        ("config.yaml", "model", "transfer", "task"),
    ),
    "labels.more": (ASK, setting_of("seed-0", "task.labels", ["a", "b", "c"]), ("config.yaml", "shape")),
    "result.mean": (FT, field("result.json", "mean", "x"), ("result.json", "mean", "'x'")),
    "tries.nan": (FT, tries("score", float("nan")), ("tries/", "score")),
    "seed_result": (FT, _unfinished(field("seed-0/result.json", "metrics", 3)), ("result.json", "metrics")),
}


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_run_of_others_is_held_against_its_schema(name: str, task_world: Path, answer: Answer) -> None:
    words, alter, names = TASKS[name]
    run = task_world / "runs/finetune/ft"
    if words is not FT:
        run = run.rename(task_world / "t")
    alter(run)
    check(Case(words, names), task_world, answer)


APART = {"_target_": "lmtransfer.launch.processes.LocalProcess", "words": ["list"], "log": "canary"}
#: Where a hostile run puts a class that starts a program, or another one.
HOSTILE: dict[str, tuple[str, Any]] = {
    "argument": ("task.columns", APART),
    "supplied": ("task.data_root", APART),
    "of_the_method": ("transfer.lora_matrices", [APART]),
    "of_the_model": ("model.activation", APART),
    "whole_task": ("task", APART),
    "other_base": ("model", {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "path": "texts"}),
    "through_a_module": ("task.columns", {"_target_": "lmtransfer.launch.processes.subprocess.Popen", "args": "x"}),
    "program": ("task.columns", {"_target_": "lmtransfer.__main__.main"}),
}
OPENING = (ASK, ("export", "run=t", "to=e"), ("evaluate", "run=t", "split=dev", "name=x"),
           ("predict", "run=hf:t", "text=good bal"))  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_run_of_others_constructs_components_only(
    name: str, task_world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, value = HOSTILE[name]
    run = (task_world / "runs/finetune/ft").rename(task_world / "t")
    setting_of("seed-0", key, value)(run)
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *args, **kwargs: pytest.fail(f"started {args} {kwargs}"))
    for words in OPENING if name == "whole_task" else OPENING[:1]:  # one place opens all runs
        said = check(Case(words, ("config.yaml: ", key)), task_world, answer)
        assert len(said[said.find("lmtransfer: ") :].splitlines()) == 1, said
        assert not (task_world / "canary").exists()
    _, said = answer("embed", "run=t/seed-0", "input=t.tsv", "output=v.npy")  # needs neither the task nor the method
    assert not (task_world / "canary").exists()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "word",
    [
        "+hydra.job.env_set.LMTRANSFER_ALLOW=subprocess",
        "+hydra.callbacks.x._target_=subprocess.Popen",
        "+hydra.launcher.x={_target_:subprocess.Popen,args:touch}",
        "hydra.launcher._target_=subprocess.Popen",
        "hydra/job_logging=default",
        "hydra.searchpath=[file://mine]",
        "+experiment@hydra.job.env_set=own",
    ],
)
def test_settings_of_hydra_that_run_programs_are_refused(word: str, world: Path, answer: Answer) -> None:
    for words in (("list", "what=models", word), ("list", "what=models,tasks", "-m", word)):
        check(Case(words, (word,)), world, answer)
    study = f"# @package _global_\n# Mine\nname: s\nrecipes: {{a: ['model=bert_tiny', '{word}']}}\n".encode()
    check(Case(("study", "study=own", "-cd", "mine"), (word,), {"mine/study/own.yaml": study}), world, answer)


def test_a_seed_without_a_number_is_none(task_world: Path, answer: Answer) -> None:
    (task_world / "runs/finetune/ft").rename(task_world / "t")
    shutil.copytree("t/seed-0", "t/seed-x")
    assert answer(*ASK)[0] == 0


#: What is done to a run, and what the page says of it in one sentence, in this order.
REPORTED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "metrics.pipe": (pipe("metrics.jsonl"), ("metrics.jsonl: ", "pipe")),
    "metrics.huge": (put("metrics.jsonl", b'{"step": 1, "loss": 1e999, "tokens": %d}\n' % 10**400), ()),
    "config.deep": (put("config.yaml", b"model: " + deep(5000)), ("config.yaml: ", "nested")),
    "config.base_60": (put("config.yaml", b"a: 1" + b":1" * 300_000), ("config.yaml: ", "line 1", "1:1:1")),
    "result.nan": (put("result.json", b'{"format": 1, "seconds": NaN}'), ("result.json: ", "seconds", "nan")),
    "result.large": (field("result.json", "metrics", {"loss": 1e308}), ("result.json: ", "metrics.loss", "1e+308")),
    "result.kinds": (
        put("result.json", b'{"format": 1, "metrics": [1], "main_metric": {}, "seconds": "x", "task": []}'),
        (),
    ),
    "versions.deep": (put("versions.json", deep()), ("versions.json: ", "nested")),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REPORTED))
def test_a_report_passes_over_what_cannot_be_read(name: str, world: Path, answer: Answer) -> None:
    alter, names = REPORTED[name]
    shutil.copytree("runs/pretrain/base", "runs/pretrain/r")
    alter(world / "runs/pretrain/r")
    status, said = answer("report", "runs", "to=o", "figures=false")
    assert status == 0, said
    assert "base" in said
    page = (world / "o/report.html").read_text()
    assert re.search(r"[^<\n]*".join(map(re.escape, names)), page)


@pytest.mark.parametrize("link", ["", "locked", "locked/checkpoints"])
def test_a_report_tells_of_what_is_locked_and_goes_on(link: str, world: Path, answer: Answer) -> None:
    """A folder among the runs that may not be read, and links to one and into one."""
    locked = world / ("locked" if link else "runs/pretrain/locked")
    shutil.copytree("runs/pretrain/base", locked)
    if link:
        (world / "runs/pretrain/link").symlink_to(world / link)
    locked.chmod(0)
    try:
        with no_privileges():
            status, said = answer("report", "runs", "to=o", "figures=false")
    finally:
        locked.chmod(0o755)
    assert status == 0, said
    assert "base" in said
    assert "Traceback" not in said
    told = "permission denied" in (world / "o/report.html").read_text().lower()
    assert told == (link != "locked/checkpoints")  # of which nobody may say whether it is a folder


@pytest.mark.parametrize("content", [b"[1", b'{"pretrain of a": [3]}', deep()])
def test_a_study_ledger_is_held_against_its_schema(content: bytes, world: Path, answer: Answer) -> None:
    study = b"# @package _global_\n# Mine\nname: s\nrecipes: {a: 'model=bert_tiny'}\npretrain: {steps: 1}\n"
    files = {"mine/study/own.yaml": study, "runs/study/s/study.json": content}
    check(Case(("study", "study=own", "-cd", "mine"), ("study.json",), files), world, answer)


@pytest.fixture(scope="session")
def exported(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder, made of the base run."""
    folder = tmp_path_factory.mktemp("exported") / "p"
    assert cli.main(["export", f"run={base}/runs/pretrain/base", f"to={folder}", "format=transformers"]) == 0
    return folder


@pytest.fixture
def published(world: Path, exported: Path) -> Path:
    """A copy of it, ``p``, to do harm to."""
    shutil.copytree(exported, world / "p")
    return world / "p"


def instead_of_weights(file: str, content: bytes) -> Alter:
    """Put another file in the place of the weights."""

    def alter(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / file).write_bytes(content)

    return alter


IMPORTED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "hidden.huge": (field("config.json", "hidden_size", 2**31), ("config.json",)),
    "layers.more": (field("config.json", "num_hidden_layers", 9), ("p: ", "encoder.layer.2.")),
    "weights.huge": (header(b"{}", 2**62), ("model.safetensors", "header")),
    "index": (
        instead_of_weights("model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}'),
        ("index.json", "../x"),
    ),
    "pickle": (
        instead_of_weights("pytorch_model.bin", b"cos\nsystem\n(S'touch PWNED'\ntR."),
        ("pytorch_model.bin",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(IMPORTED))
def test_a_published_folder_of_others_is_held_against_its_files(
    name: str, world: Path, published: Path, answer: Answer
) -> None:
    alter, names = IMPORTED[name]
    alter(published)
    said = check(Case(("import", "source=p", "name=i"), names), world, answer)
    assert "Warning" not in said
    assert not (world / "PWNED").exists()


@pytest.mark.slow
def test_a_gz_of_zeros_is_refused_at_once(world: Path, answer: Answer) -> None:
    for name, piece in (("zeros", bytes(1 << 20)), ("words", b"la " * (1 << 18))):
        with gzip.open(f"{name}.txt.gz", "wb", compresslevel=9) as file:
            for _ in range(512 if name == "words" else 4):
                file.write(piece)
    check(Case((*PREPARE, "corpus.path=zeros.txt.gz"), ("zeros.txt.gz", "binary")), world, answer)
    check(Case((*PREPARE, "corpus.path=words.txt.gz"), ("words.txt.gz", "unpack")), world, answer)


def test_a_line_has_a_longest_length(world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE_BYTES", 10_000)
    for name, end in (("a.txt", b""), ("b.txt", b"\n"), ("c.jsonl", b"\n")):
        content = b"one line\n" + b"la " * 5000 + end
        case = Case((*PREPARE, f"corpus.path={name}"), (f"{name}:2", "10,000", "fold"), {name: content})
        check(case if name != "c.jsonl" else Case(case.words, ("c.jsonl:1",), {name: content}), world, answer)


CORPORA: dict[str, tuple[Callable[[Path], None], tuple[str, ...], tuple[str, ...]]] = {
    "loop": (lambda folder: (folder / "a.txt").symlink_to("a.txt"), ("corpus.path=d",), ("d/a.txt",)),
    "pipe": (lambda folder: os.mkfifo(folder / "a.txt"), ("corpus.path=d",), ("d/a.txt", "pipe")),
    "footer": (lambda folder: _broken_parquet(folder / "a.parquet", -12), ("corpus.path=d",), ("a.parquet",)),
    "script": (
        lambda folder: (folder / "d.py").write_text("raise SystemExit\n") and None,
        ("corpus=hub", "corpus.dataset=d", "corpus.name=z"),
        ("corpus=z", "d"),
    ),
}


def _broken_parquet(path: Path, place: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [f"bal bam {number}" * 9 for number in range(999)]}), path, compression="zstd")
    raw = bytearray(path.read_bytes())
    raw[place if place > 0 else len(raw) + place - 200 : (place if place > 0 else len(raw) + place)] = os.urandom(200)
    path.write_bytes(raw)


@pytest.mark.parametrize("name", list(CORPORA))
def test_a_corpus_that_cannot_be_read_is_named(name: str, world: Path, answer: Answer) -> None:
    make, words, names = CORPORA[name]
    (world / "d").mkdir()
    make(world / "d")
    check(Case((*(PREPARE if len(words) == 1 else ("prepare",)), *words), names), world, answer)


class TestWhatOthersName:
    """What a run of others names in its config.yaml is not read; what the user's own runs name is."""

    def test_an_own_run_is_evaluated_where_it_is_and_as_a_copy(self, world: Path, answer: Answer) -> None:
        assert answer("evaluate", "run=runs/pretrain/base")[0] == 0
        shutil.copytree("runs/pretrain/base", "r")
        status, said = answer(*EVALUATE)
        assert status == 0, said

    @pytest.mark.slow
    def test_a_run_of_others_reads_no_text_that_they_name(self, world: Path, answer: Answer) -> None:
        (world / "private.txt").write_text("".join(f"{SECRET} bal bam {row}.\n\n" for row in range(400)))
        altered(world, {"corpus.path": [str(world / "private.txt")]})
        check(Case(EVALUATE, ("config.yaml", "corpus.path", "trust=true")), world, answer)
        versions = json.loads((world / "r/versions.json").read_text())
        del versions["data"]
        (world / "r/versions.json").write_text(json.dumps(versions))
        check(Case(EVALUATE, ("config.yaml", "corpus.path", "trust=true")), world, answer)
        assert answer(*EVALUATE, "corpus=text", "corpus.path=texts")[0] == 0
        assert answer(*EVALUATE, "trust=true", "name=trusted")[0] == 0

    def test_a_run_of_others_asks_nothing_of_the_hub(
        self, world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked(*words: Any, **settings: Any) -> None:
            raise AssertionError("the hub was asked")

        import datasets

        monkeypatch.setattr(datasets, "load_dataset", asked)
        node = {"_target_": "lmtransfer.data.corpora.hub.HubCorpus", "dataset": "somebody/tracks", "name": "x"}
        altered(world, {"corpus": node})
        check(Case(EVALUATE, ("config.yaml", "corpus.dataset", "somebody/tracks")), world, answer)
        shutil.rmtree(world / "r")
        node = {
            "_target_": "lmtransfer.data.corpora.data_folder.DataFolderCorpus",
            "files": ["gone/gone.txt"],
            "name": "x",
        }
        altered(world, {"corpus": {**node, "hub_dataset": "somebody/tracks"}})
        check(Case(EVALUATE, ("config.yaml", "corpus.files")), world, answer)
        shutil.rmtree(world / "r")
        node = {
            "_target_": "lmtransfer.data.corpora.mixture.MixtureCorpus",
            "name": "x",
            "alpha": 0.7,
            "parts": {"a": node},
        }
        altered(world, {"corpus": node})
        check(Case(EVALUATE, ("config.yaml", "corpus.parts.a.files")), world, answer)

    @pytest.mark.slow
    def test_a_task_of_others_reads_no_file_that_they_name(self, task_world: Path, answer: Answer) -> None:
        run = (task_world / "runs/finetune/ft").rename(task_world / "t")
        assert answer("evaluate", "run=t", "split=dev", "name=here")[0] == 0
        for key in ("train", "dev"):
            setting_of("seed-0", f"task.{key}", str(task_world / "t.tsv"))(run)
        for words in (("evaluate", "run=t", "split=dev"), ("predict", "run=t", "split=dev")):
            check(Case(words, ("config.yaml", "task.dev", "t.tsv", "trust=true")), task_world, answer)
            assert answer(*words, "trust=true")[0] == 0
        own = ("task=text_classification", "task.dev=t.tsv", "task.labels=[bad,good]")
        assert answer("evaluate", "run=t", "split=dev", "name=own", *own)[0] == 0
        assert answer(*ASK)[0] == 0
        assert answer("export", "run=t", "to=e")[0] == 0

    def test_labels_are_not_looked_up_in_files_of_others(self, task_world: Path, answer: Answer) -> None:
        (task_world / "runs/finetune/ft").rename(task_world / "t")
        setting_of("seed-0", "task.labels", None)(task_world / "t")
        check(Case(ASK, ("t.tsv", "data_root", "trust=true")), task_world, answer)

    def test_an_own_task_run_is_evaluated(self, trained: Path, world: Path, answer: Answer) -> None:
        shutil.copytree(trained / "runs/finetune", world / "runs/finetune")
        shutil.copy(trained / "cache/made_here.key", world / "cache/made_here.key")
        status, said = answer("evaluate", "run=runs/finetune/ft", "split=dev")
        assert status == 0, said

    def test_text_that_has_changed_is_not_gone_on_with(self, world: Path, answer: Answer) -> None:
        begin = (*PRETRAIN[:-1], "name=next", "init=runs/pretrain/base", "train.save_every=1")
        begin = tuple(word for word in begin if not word.startswith(("model", "tokenizer")))
        status, said = answer(*begin)
        assert status == 0, said
        (world / "runs/pretrain/next/result.json").unlink()
        (world / "texts/a.txt").write_text("bal bam " * 999)
        check(Case((*begin, "resume=true"), ("corpus", "runs/pretrain/next")), world, answer)


def test_labels_of_others_move_no_cursor(world: Path, answer: Answer) -> None:
    """Names of labels and of tasks, on every table, markup too."""
    wild = "go\x1b[2Jod[/bold]\u202e"
    (world / "t.tsv").write_text("label\ttext\n" + f"{wild}\tbal bam\nbad\tkit kis\n" * 20)
    tagged = (*FINETUNE[1:-1], "task.dev_from_train=null", "task.name=x[/red]")
    shown = [answer("finetune", *tagged, "name=w", "control=true")]
    shown.append(answer("evaluate", "run=runs/finetune/w", "split=dev"))
    shown.append(answer("inspect", "init=runs/pretrain/base", *tagged[1:4], "task.dev_from_train=null"))
    for status, said in shown:
        assert status == 0, said
        assert not {"\x1b", "\x07", "\u202e"} & set(said.replace("\x1b[0m", "")), said

"""Runs, studies and folders of others, which may hold anything."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bad_input import FINETUNE, PRETRAIN, Answer, Case, altered, check
from safetensors.torch import load_file, save_file

PREDICT = ("predict", "run=r", "text=the [MASK] of")
EVALUATE = ("evaluate", "run=r")
EXPORT = ("export", "run=r", "to=e")
INIT = (*(word for word in FINETUNE if not word.startswith("init=")), "init=r")
RESUME = (*PRETRAIN[:-1], "name=base", "resume=true", "train.steps=4")
ASK = ("predict", "run=t", "text=good bal")
ON = (*FINETUNE[:-1], "name=ft", "resume=true")

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
        content = json.loads((run / file).read_text())
        *parents, last = place.split("/")
        node = content
        for parent in parents:
            node = node[int(parent)] if isinstance(node, list) else node[parent]
        node[last] = value
        (run / file).write_text(json.dumps(content))
        _sealed_again(run / file)

    return alter


def setting(key: str, value: Any) -> Alter:
    """Give a key of the run's config.yaml another value."""

    def alter(run: Path) -> None:
        config = yaml.safe_load((run / "config.yaml").read_text())
        node, (*parents, last) = config, key.split(".")
        for parent in parents:
            node = node[parent]
        node[last] = value
        (run / "config.yaml").write_text(yaml.safe_dump(config))

    return alter


def pipe(file: str) -> Alter:
    """Put a pipe, to which nobody writes, in the place of a file of the run."""

    def alter(run: Path) -> None:
        (run / file).unlink(missing_ok=True)
        os.mkfifo(run / file)

    return alter


def device(file: str) -> Alter:
    """Put a link to a device without end in the place of a file of the run."""

    def alter(run: Path) -> None:
        (run / file).unlink(missing_ok=True)
        (run / file).symlink_to("/dev/zero")

    return alter


def header(content: bytes, length: int | None = None) -> Alter:
    """Give the weights another header."""

    def alter(run: Path) -> None:
        for path in run.glob("checkpoints/*/model.safetensors"):
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


def lost(file: str) -> Alter:
    """Take a file out of the checkpoints, and out of their manifests."""

    def alter(run: Path) -> None:
        for path in run.glob(f"checkpoints/*/{file}"):
            path.unlink()
            manifest = json.loads((path.parent / "manifest.json").read_text())
            manifest["files"].pop(file, None)
            (path.parent / "manifest.json").write_text(json.dumps(manifest))

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


def _drop_one(found: dict[str, torch.Tensor]) -> None:
    """Take away one moment of a parameter that has more than one entry, or of one among several."""
    entries = [key.rpartition("/")[2] for key in found]
    found.pop(next(key for key, entry in zip(list(found), entries, strict=True) if entries.count(entry) > 1))


HUGE = 2**80
STATES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "empty": (both("state.json", lambda file: put(file, b"")), ("state.json",)),
    "list": (both("state.json", lambda file: put(file, b"[1]")), ("state.json", "mapping")),
    "deep": (both("state.json", lambda file: put(file, b'{"step": ' + deep() + b"}")), ("state.json", "nested")),
    "nan": (state("step", float("nan")), ("state.json", "step")),
    "negative": (state("step", -1), ("state.json", "step")),
    "huge": (state("step", HUGE), ("state.json", "step")),
    "text": (state("step", "3"), ("state.json", "step")),
    "tokens_text": (state("tokens", "x"), ("state.json", "tokens")),
    "seconds_nan": (state("seconds", float("nan")), ("state.json", "seconds")),
    "best_list": (state("best", [1]), ("state.json", "best")),
    "metrics_text": (state("metrics", {"loss": "low"}), ("state.json", "metrics.loss")),
    "watchers_list": (state("watchers", []), ("state.json", "watchers")),
    "aliases_number": (state("aliases", {"a": 3}), ("state.json", "aliases.a")),
    "aliases_lost": (state("aliases", {"a": "b"}), ("state.json", "aliases")),
    "world": (state("world_size", 0), ("state.json", "world_size")),
}
MANIFESTS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "null": (manifest("files", None), ("manifest.json", "files is null")),
    "number": (manifest("files/model.safetensors", 3), ("manifest.json", "files.model.safetensors")),
    "bytes_text": (manifest("files/model.safetensors/bytes", "9"), ("manifest.json", "bytes")),
    "bytes_nan": (manifest("files/model.safetensors/bytes", float("nan")), ("manifest.json", "bytes")),
    "above": (both("manifest.json", lambda file: _named(file, "../../config.yaml")), ("manifest.json", "config.yaml")),
    "deep": (both("manifest.json", lambda file: put(file, deep())), ("manifest.json", "nested")),
    "pipe": (both("manifest.json", pipe), ("manifest.json", "pipe")),
    "device": (both("manifest.json", device), ("manifest.json", "device")),
}
HEADERS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "huge": (header(b"{}", 2**62), ("model.safetensors", "header")),
    "huger": (header(b"{}", 10**6), ("model.safetensors", "header")),
    "deep": (header(b'{"a": ' + deep() + b"}"), ("model.safetensors", "nested")),
    "no_json": (header(b"{{{{{{"), ("model.safetensors", "header")),
    "list": (header(b"[1, 2, 3]"), ("model.safetensors", "header")),
    "overflow": (
        header(b'{"a": {"dtype": "F32", "shape": [4611686018427387904, 8], "data_offsets": [0, 64]}}'),
        ("model.safetensors", "a of shape"),
    ),
    "negative": (
        header(b'{"a": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}}'),
        ("model.safetensors", "a.shape[0]"),
    ),
    "type": (
        header(b'{"a": {"dtype": "F7", "shape": [4], "data_offsets": [0, 64]}}'),
        ("model.safetensors", "a.dtype"),
    ),
    "beyond": (
        header(b'{"a": {"dtype": "F32", "shape": [400], "data_offsets": [0, 1600]}}'),
        ("model.safetensors", "a of shape"),
    ),
    "no_rows": (
        tensors(lambda found: found.update({name: tensor[:0].clone() for name, tensor in found.items()})),
        ("config.yaml", "has shape"),
    ),
    "other_names": (
        tensors(lambda found: [found.update({f"x.{name}": found.pop(name)}) for name in list(found)] and None),
        ("config.yaml", "is missing"),
    ),
}
SIZES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "dim": (setting("model.dim", 1 << 24), ("config.yaml", "model", "has shape")),
    "hidden": (setting("model.hidden_dim", 1 << 24), ("config.yaml", "model", "has shape")),
    "length": (setting("model.max_length", 1 << 24), ("config.yaml", "model", "has shape")),
    "dim_1e12": (setting("model.dim", 10**12), ("config.yaml", "model.dim")),
    "layers": (setting("model.num_layers", 3), ("config.yaml", "model", "is missing")),
    "heads": (setting("model.num_heads", 3), ("config.yaml", "model")),
    "dim_text": (setting("model.dim", "big"), ("config.yaml", "model.dim")),
    "dim_list": (setting("model.dim", [16]), ("config.yaml", "model.dim")),
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
    "text": (setting("objective", "mlm"), ("config.yaml", "objective is 'mlm'")),
    "null": (setting("objective", None), ("config.yaml", "objective is null")),
    "losses_null": (setting("objective.losses", None), ("config.yaml", "objective.losses")),
    "losses_empty": (setting("objective.losses", {}), ("config.yaml", "objective.losses")),
    "loss_text": (setting("objective.losses.mlm", "mlm"), ("config.yaml", "objective.losses.mlm")),
    "loss_argument": (setting("objective.losses.mlm.nonesuch", 3), ("config.yaml", "objective.losses.mlm.nonesuch")),
    "rows_text": (setting("objective.rows", "x"), ("config.yaml", "objective.rows")),
    "rows_argument": (setting("objective.rows.max_length", "long"), ("config.yaml", "objective.rows.max_length")),
    "corruption_null": (setting("objective.corruption", None), ("config.yaml", "objective.corruption")),
}
CONFIGS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "deep": (put("config.yaml", b"model: " + deep(5000)), ("config.yaml", "nested")),
    "bomb": (
        put("config.yaml", b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nmodel: [*c, *c]\n"),
        ("config.yaml", "alias"),
    ),
    "python": (put("config.yaml", b"model: !!python/object/apply:os.system [id]\n"), ("config.yaml",)),
    "date": (put("config.yaml", b"model: {_target_: x, dim: 2020-01-01}\n"), ("config.yaml", "model.dim")),
    "nan": (setting("optimizer.learning_rate", float("nan")), ("config.yaml", "optimizer.learning_rate")),
    "list": (put("config.yaml", b"- 1\n"), ("config.yaml", "mapping")),
    "binary": (put("config.yaml", bytes(range(256))), ("config.yaml",)),
    "empty": (put("config.yaml", b""), ("config.yaml",)),
    "device": (device("config.yaml"), ("not a run directory",)),
    "model_text": (setting("model", "bert"), ("config.yaml", "model is 'bert'")),
}
EVALUATED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "corpus_text": (setting("corpus", "text"), ("config.yaml", "corpus is 'text'")),
    "train_text": (setting("train", "fast"), ("config.yaml", "train is 'fast'")),
    "seed_text": (setting("seed", "x"), ("config.yaml", "seed is 'x'")),
    "init_list": (setting("init", []), ("config.yaml", "init")),
    "versions": (_of_others(put("versions.json", b"[]")), ("versions.json",)),
    "versions_data": (
        _of_others(put("versions.json", b'{"data": {"corpus": 3}}')),
        ("versions.json", "data.corpus"),
    ),
    "versions_pipe": (_of_others(pipe("versions.json")), ("versions.json", "pipe")),
}
TOKENIZERS: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "deep": (put("tokenizer/tokenizer.json", deep()), ("tokenizer.json", "nested")),
    "training": (field("tokenizer/tokenizer.json", "training", "x"), ("tokenizer.json", "training is 'x'")),
    "kind": (field("tokenizer/tokenizer.json", "kind", 3), ("tokenizer.json", "kind")),
    "kind_other": (field("tokenizer/tokenizer.json", "kind", "x"), ("tokenizer.json", "kind")),
    "list": (put("tokenizer/tokenizer.json", b"[]"), ("tokenizer.json",)),
    "sha": (field("tokenizer/tokenizer.json", "sha256", None), ("tokenizer.json", "sha256")),
    "pipe": (pipe("tokenizer/spm.model"), ("spm.model", "pipe")),
    "other": (put("tokenizer/spm.model", b"x"), ("spm.model", "sha256")),
}
RESUMED: dict[str, tuple[Alter, tuple[str, ...]]] = {
    **{f"state.{name}": case for name, case in STATES.items() if name != "aliases_lost"},
    **{f"manifest.{name}": case for name, case in MANIFESTS.items()},
    "metrics.no_step": (put("metrics.jsonl", b'{"loss": 1}\n'), ("metrics.jsonl:1", "step is missing")),
    "metrics.bad_step": (put("metrics.jsonl", b'{"step": "x"}\n'), ("metrics.jsonl:1", "step is 'x'")),
    "metrics.list": (put("metrics.jsonl", b"[1]\n"), ("metrics.jsonl:1", "mapping")),
    "metrics.deep": (put("metrics.jsonl", deep() + b"\n"), ("metrics.jsonl:1", "nested")),
    "metrics.pipe": (pipe("metrics.jsonl"), ("metrics.jsonl", "pipe")),
    "metrics.device": (device("metrics.jsonl"), ("metrics.jsonl", "device")),
    "optimizer.gone": (lost("optimizer.safetensors"), ("optimizer.safetensors",)),
    "optimizer.shape": (
        tensors(
            lambda found: found.update({key: value.new_zeros(3) for key, value in found.items() if value.ndim}),
            "optimizer",
        ),
        ("optimiser", "has shape"),
    ),  # fmt: skip
    "optimizer.part": (tensors(_drop_one, "optimizer"), ("optimiser", "is missing")),
    "watcher": (
        state("watchers", {"non_finite_guard": {"in_a_row": "x"}}),
        ("state.json", "watchers.non_finite_guard"),
    ),
    "carry": (state("carry", {"list": 3}), ("was not saved by a training run",)),
}
RUNS: dict[str, tuple[tuple[str, ...], Alter, tuple[str, ...]]] = {
    **{f"state.{name}": (PREDICT, *case) for name, case in STATES.items()},
    **{f"manifest.{name}": (PREDICT, *case) for name, case in MANIFESTS.items()},
    **{f"header.{name}": (PREDICT, *case) for name, case in HEADERS.items()},
    **{
        f"{words[0]}.size.{name}": (words, *case)
        for name, case in SIZES.items()
        for words in (PREDICT, INIT, EXPORT)
        if name in ("dim", "elmo", "dim_text") or words is PREDICT
    },
    **{
        f"{words[0]}.objective.{name}": (words, *case)
        for name, case in OBJECTIVES.items()
        for words in (PREDICT, (*EVALUATE, "corpus=text", "corpus.path=texts"))
    },
    **{
        f"{words[0]}.config.{name}": (words, *case)
        for name, case in CONFIGS.items()
        for words in (PREDICT, EVALUATE, EXPORT, INIT)
        if name in ("deep", "bomb") or words is PREDICT
    },
    **{f"evaluate.{name}": (EVALUATE, *case) for name, case in EVALUATED.items()},
    **{
        f"{words[0]}.tokenizer.{name}": (words, *case)
        for name, case in TOKENIZERS.items()
        for words in (PREDICT, EXPORT, INIT)
        if name in ("deep", "training") or words is PREDICT
    },
    "export.language": ((*EXPORT, "language={a:1}"), lambda run: None, ("language",)),
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

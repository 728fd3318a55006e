"""``lmtransfer embed``: each vector depends only on its own text, in every format and at any size."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fakes.transfer_files import QUICK, lmtransfer, make_world, sentence
from sklearn.preprocessing import StandardScaler
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.data.documents import Notes
from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tasks.input_files import InputFile
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.checkpoints import open_checkpoint
from lmtransfer.training.hardware import setup
from lmtransfer.transfer.experiment.data import encode_examples
from lmtransfer.transfer.experiment.part_run import open_task_learner, task_of

BASE = "run=runs/pretrain/base"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder, and texts with ids: short, long and empty ones, and other scripts."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    rng = random.Random(0)
    texts = [sentence(i % 2, rng) for i in range(40)]
    texts += ["", "good " * 90, "Na\u00efve \u65e5\u672c", 'say "hello", you', "  the film  ", "x"]
    rng.shuffle(texts)
    rows = [{"id": f"r{number}", "text": text, "score": number / 4} for number, text in enumerate(texts)]
    (folder / "in.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (folder / "in.tsv").write_text(
        "id\ttext\tscore\n" + "".join(f"{row['id']}\t{row['text']}\t{row['score']}\n" for row in rows), encoding="utf-8"
    )
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    return folder


@pytest.fixture(autouse=True)
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def texts() -> list[str]:
    return Path("in.txt").read_text(encoding="utf-8").split("\n")[:-1]


def embed(*words: str, output: str = "out.npy") -> Any:
    """Return the vectors that a command writes."""
    assert lmtransfer("embed", "hardware=exact", f"output={output}", "overwrite=true", *words) == 0
    if output.endswith(".npy"):
        return np.load(output)
    table = pq.read_table(output)
    return np.stack(table.column(table.num_columns - 1).to_pylist()).astype(np.float32)


def by_hand(run: str, layers: list[int], pooling: str, found: list[str] | None = None) -> np.ndarray:
    """Compute the vectors one text at a time."""
    encoder, tokenizer, _ = load_encoder(run)
    encoder.eval()
    vectors = []
    for text in texts() if found is None else found:
        ids = tokenizer.encode(text).ids[: encoder.max_length - 2]
        with torch.no_grad():
            every = encoder(pack([np.array([tokenizer.cls_id, *ids, tokenizer.sep_id])])).layers
        hidden = torch.cat([every[layer] for layer in layers], dim=1)
        pools = {"cls": hidden[0], "last_token": hidden[-1], "mean": hidden.mean(0), "max": hidden.amax(0)}
        vectors.append(pools[pooling].numpy())
    return np.stack(vectors)


@pytest.mark.parametrize(
    ("words", "layers", "pooling"),
    [
        ([], [2], "mean"),
        (["pooling=cls"], [2], "cls"),
        (["pooling=last_token", "layers=1"], [1], "last_token"),
        (["pooling=max", "layers=[0,last]"], [0, 2], "max"),
        (["pooling=mean", "layers=-2", "group=3"], [1], "mean"),
    ],
)
def test_each_vector_is_that_of_its_text_alone(words: list[str], layers: list[int], pooling: str) -> None:
    np.testing.assert_allclose(
        embed(BASE, "input=in.txt", *words), by_hand("runs/pretrain/base", layers, pooling), atol=1e-5
    )


@pytest.mark.parametrize("name", ["in.tsv", "in.jsonl", "in.parquet"])
def test_every_format_has_the_same_vectors_and_parquet_keeps_the_columns(name: str) -> None:
    wanted = embed(BASE, "input=in.txt")
    np.testing.assert_allclose(embed(BASE, f"input={name}", "group=7"), wanted, atol=1e-5)
    np.testing.assert_allclose(embed(BASE, f"input={name}", "group=7", output="out.parquet"), wanted, atol=1e-5)
    table = pq.read_table("out.parquet")
    assert table.column_names == ["id", "text", "score", "vector"]
    assert table.column("id").to_pylist() == [f"r{number}" for number in range(len(wanted))]
    assert table.column("text").to_pylist() == texts()
    scores = [number / 4 for number in range(len(wanted))]
    assert table.column("score").to_pylist() == (scores if name == "in.parquet" else list(map(str, scores)))
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 16)


def test_standard_input_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = embed(BASE, "input=in.txt")
    given = types.SimpleNamespace(buffer=BytesIO(Path("in.txt").read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", given)
    np.testing.assert_array_equal(embed(BASE, "input=-"), wanted)


@pytest.mark.parametrize("output", ["out.npy", "out.parquet"])
def test_vectors_are_standardised_over_the_input_and_then_normalised(output: str) -> None:
    plain = embed(BASE, "input=in.tsv")
    scaled = StandardScaler().fit_transform(plain.astype(np.float64))
    found = embed(BASE, "input=in.tsv", "group=9", "standardise=true", output=output)
    np.testing.assert_allclose(found, scaled, atol=1e-4)
    found = embed(BASE, "input=in.tsv", "group=9", "standardise=true", "normalise=true", output=output)
    np.testing.assert_allclose(found, scaled / np.linalg.norm(scaled, axis=1, keepdims=True), atol=1e-4)
    found = embed(BASE, "input=in.tsv", "normalise=true", output=output)
    np.testing.assert_allclose(found, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.slow
def test_a_run_of_a_task_gives_what_its_head_reads(capsys: pytest.CaptureFixture[str]) -> None:
    ways = {
        "attended": ["transfer.pooling=attention", "transfer.layers=mix"],
        "scaled": ["transfer.pooling=mean", "transfer.standardise=true"],
        "lora": ["transfer=lora", "transfer.pooling=max"],
    }
    for name, words in ways.items():
        assert lmtransfer("finetune", *QUICK, *words, "task.num_train=20", f"name={name}") == 0
        run = f"runs/finetune/{name}"
        saved = open_saved(run, key="run")
        learner = open_task_learner(saved, task_of(saved), setup(device="cpu", precision="fp32"))
        task = task_of(saved)
        examples = task.reader().read(_input_file("in.txt"))
        encoded = encode_examples(
            task, [row.example for row in examples.rows if row.example is not None], saved.tokenizer, learner.encoder
        )
        source = TaskSource(encoded)
        with torch.no_grad():
            wanted = learner.head_input(source.build(0, source.plan(0), range(len(encoded))))
        full = [place for place, text in enumerate(texts()) if text.strip()]
        np.testing.assert_allclose(embed(f"run={run}", "input=in.txt")[full], wanted.numpy(), atol=1e-5)
        if learner.standardising is not None:
            found = embed(f"run={run}", "input=in.txt", "standardise=true")[full]
            np.testing.assert_allclose(found, learner.standardising(wanted).numpy(), atol=1e-4)
        if name != "lora":
            found = embed(f"run={run}", "input=in.txt", "pooling=cls", "layers=1")
            np.testing.assert_allclose(found, by_hand(run, [1], "cls"), atol=1e-5)
    capsys.readouterr()
    for words, names in {
        ("run=runs/finetune/scaled", "pooling=attention"): ("pooling=attention", "mean, max, cls"),
        ("run=runs/finetune/scaled", "layers=mix"): ("layers=mix", "last"),
        ("run=runs/finetune/attended", "layers=1"): ("pooling=attention", "layers=1"),
    }.items():
        assert lmtransfer("embed", *words, "input=in.txt", "output=new.npy", "hardware=exact") == 2
        said = capsys.readouterr().err
        assert all(part in said for part in names), said


def _input_file(path: str) -> Any:
    numbered = ((number, text) for number, text in enumerate(texts(), start=1))
    return InputFile(path, numbered, None, "text", {}, None, "strict", False, lambda problem: None, Notes())


def test_a_text_of_ten_megabytes_is_cut_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    words = texts()[0].split()
    long = " ".join(random.Random(0).choices(words, k=2_000_000))
    assert len(long) > 8_000_000
    Path("long.txt").write_text(f"{words[0]}\n{long}\n{words[1]}\n")
    before = psutil.Process().memory_info().rss
    capsys.readouterr()
    began = time.monotonic()
    found = embed(BASE, "input=long.txt")
    assert time.monotonic() - began < 20
    assert psutil.Process().memory_info().rss - before < 400e6
    np.testing.assert_allclose(
        found, by_hand("runs/pretrain/base", [2], "mean", [words[0], long[:2000], words[1]]), atol=1e-5
    )
    assert "1 texts truncated to 24 tokens" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_command_leaves_the_old_output(world: Path) -> None:
    embed(BASE, "input=in.txt")
    before = Path("out.npy").read_bytes()
    there = set(os.listdir())
    command = [sys.executable, "-m", "lmtransfer", "embed", BASE, "input=-", "output=out.npy", "overwrite=true"]
    running = subprocess.Popen(
        [*command, "group=50", "hardware=exact"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert running.stdin is not None
    running.stdin.write(b"the film\nthe plot\n" * 500)
    running.stdin.flush()
    for _ in range(600):
        if any(Path(name).stat().st_size > 300 for name in set(os.listdir()) - there):
            break
        time.sleep(0.1)
    else:
        pytest.fail("nothing was written")
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 128 + signal.SIGTERM
    running.stdin.close()
    assert Path("out.npy").read_bytes() == before
    assert set(os.listdir()) == there


MISTAKES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a missing file": (["input=none.txt"], ("input=none.txt",)),
    "an unknown format": (["input=in.docx"], ("in.docx", "format=", "jsonl")),
    "no such column": (["input=in.tsv", "text_column=body"], ("in.tsv:1", "'body'", "id, text, score", "text_column")),
    "a column of numbers": (["input=in.parquet", "text_column=score"], ("score", "double", "text_column")),
    "columns of lines": (["input=in.txt", "text_column=body"], ("text_column=body", "format=text")),
    "a broken line": (["input=broken.jsonl"], ("broken.jsonl:2",)),
    "a row too short": (["input=short.tsv"], ("short.tsv:3", "1 columns")),
    "an unknown ending": (["input=in.txt", "output=v.csv"], ("output=v.csv", ".npy", ".parquet")),
    "an output that exists": (["input=in.txt", "output=there.npy"], ("output=there.npy", "overwrite=true")),
    "the input as output": (
        ["input=copy.parquet", "output=copy.parquet", "overwrite=true"],
        ("output=copy.parquet", "input"),
    ),
    "an untrained pooler": (["input=in.txt", "pooling=family"], ("pooling=family", "mean, max, cls")),
    "an unknown pooling": (["input=in.txt", "pooling=sum"], ("pooling=sum", "mean, max, cls")),
    "an unknown layer": (["input=in.txt", "layers=7"], ("layers=7", "0 (embeddings) to 2")),
    "too long": (["input=in.txt", "max_length=25"], ("max_length=25", "24")),
    "a taken name": (["input=in.tsv", "output=v.parquet", "vector_column=score"], ("vector_column=score",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_message(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, names = MISTAKES[mistake]
    Path("in.docx").write_bytes(b"PK\x03\x04")
    Path("broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    Path("short.tsv").write_text("id\ttext\n1\ta\nb\n")
    Path("there.npy").write_bytes(b"old")
    Path("copy.parquet").write_bytes(Path("in.parquet").read_bytes())
    there = set(os.listdir())
    given = [word for word in (BASE, "output=v.npy") if not any(w.split("=")[0] == word.split("=")[0] for w in words)]
    assert lmtransfer("embed", "hardware=exact", *given, *words) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert "Traceback" not in said
    assert said.count("\n") == 1
    assert set(os.listdir()) == there
    assert Path("there.npy").read_bytes() == b"old"


def spoil(folder: Path, value: float) -> None:
    """Put a value into the weights of a copy of the run."""
    shutil.copytree("runs/pretrain/base", folder)
    run = RunDirectory.open(folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        opened = open_checkpoint(checkpoint)
        tensors = opened.tensors("model")
        next(tensor for name, tensor in tensors.items() if "norm" in name and name.endswith("weight")).fill_(value)
        run.checkpoints.save(checkpoint.name, tensors={"model": tensors}, state=opened.state)


@pytest.mark.parametrize(
    ("value", "names"), [(math.nan, ("norm", "bad")), (-math.inf, ("norm", "bad")), (3e38, ("vectors", "inputs"))]
)
def test_no_vector_is_nan(value: float, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    spoil(Path("bad"), value)
    assert lmtransfer("embed", "hardware=exact", "run=bad", "input=in.txt", "output=v.npy") == 2
    message = capsys.readouterr().err
    assert all(name in message for name in ("NaN", *names)), message
    assert not Path("v.npy").exists()

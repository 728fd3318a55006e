"""Runs and published folders of others that ask for more memory or time than a machine has."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fakes.runs import pretraining, transfer
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, RunDirectoryError
from lmtransfer.interop.families.elmo import read_hdf5
from lmtransfer.interop.reading import read_weight_files
from lmtransfer.models.base import shapes_only
from lmtransfer.models.bert import BertEncoder
from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.runs.predictions import read_predictions
from lmtransfer.system.safe_files import read_json_lines

MEGABYTE = 1 << 20


def _lines(line: bytes, num_bytes: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            for _ in range(num_bytes // MEGABYTE):
                file.write(line * (MEGABYTE // len(line)))

    return write


#: Metrics that are many times as large in memory, and what the answer names.
METRICS: dict[str, tuple[Callable[[Path], None], str]] = {
    "numbers": (_lines(b"1\n", 200 * MEGABYTE), "more than 1,000 lines are not JSON objects"),
    "blank objects": (_lines(b"{}\n", 200 * MEGABYTE), "more than 500,000 lines"),
    "one line": (_lines(b"[1,", 200 * MEGABYTE), "the line has more than"),
    "one object of many keys": (_lines(b'{"step": 1, ' + b'"a": {}, ' * 9, 200 * MEGABYTE), "the line has more than"),
    "more than a file may have": (lambda path: path.touch() or os.truncate(path, 1 << 40), "bytes"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in METRICS])
def test_metrics_that_ask_for_too_much_are_named(name: str, tmp_path: Path) -> None:
    write, named = METRICS[name]
    run = pretraining(tmp_path / "run")
    write(run / "metrics.jsonl")
    found = read_run(run)
    assert found.state == "torn"
    assert not found.metrics
    (problem,) = found.problems
    assert problem.startswith("metrics.jsonl")
    assert named in problem


def test_a_few_bad_lines_do_not_cost_the_rest(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "run")
    whole = read_run(run).metrics
    path = run / "metrics.jsonl"
    path.write_bytes(b"1\n" * 1000 + path.read_bytes())
    assert read_run(run).metrics == whole
    path.write_bytes(b"1\n" + path.read_bytes())
    assert read_run(run).metrics == ()


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\r\n\n[2]\n' + b"9" * ((1 << 24) + 5))
    lines = read_json_lines(path, object, error=RunDirectoryError)  # type: ignore[type-abstract]
    assert next(lines)[:3] == (1, b'{"a": 1}\r\n', {"a": 1})
    assert next(lines)[:3] == (3, b"[2]\n", [2])
    with refuses(RunDirectoryError, f"{path}:4: ", "16,777,216 bytes"):
        next(lines)


def _predictions(run: Path, **columns: Any) -> None:
    """Write predictions of classification with other columns, all of the same length."""
    about = {"format": 2, "task": "sst2", "split": "dev", "main_metric": "accuracy", "seed": 0, "pretraining_seed": 0}
    about |= {"is_control": False, "baseline": "", "kind": "classification", "labels": ["a"], "class_names": []}
    about |= {"positive": 0, "metrics": [], **columns.pop("about", {})}
    size = len(next(iter(columns.values())))
    numbers = pa.array(np.arange(size))
    plain = {"id": pa.array(["a"] * size), "class": pa.array([None] * size, pa.string()), "key": numbers.cast("uint64")}
    plain |= {"group": numbers, "length": numbers, "gold": pa.array(["a"] * size), "answer": pa.array(["a"] * size)}
    table = pa.table(plain | columns)
    (run / "predictions").mkdir(exist_ok=True)
    path = run / "predictions/dev.parquet"
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"lmtransfer": json.dumps(about)})


def _repeated(count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["a" * MEGABYTE]))


def _ask_in_texts(run: Path) -> None:
    _predictions(run, answer=_repeated(80_000))


def _ask_in_lists(run: Path) -> None:
    tags = pa.ListArray.from_arrays(pa.array([0, 40_000, 80_000], pa.int32()), _repeated(80_000))
    _predictions(run, about={"kind": "tagging"}, gold=tags, answer=tags)


@pytest.mark.parametrize("ask", [pytest.param(_ask_in_texts, marks=pytest.mark.slow), _ask_in_lists])
def test_predictions_that_ask_for_80_gigabytes_are_refused(ask: Callable[[Path], None], tmp_path: Path) -> None:
    ask(tmp_path)
    path = tmp_path / "predictions/dev.parquet"
    assert path.stat().st_size < 2 * MEGABYTE
    with refuses(RunDirectoryError, str(path), "unpacks to more than"):
        read_predictions(path)


_REPORT = """
import sys
from lmtransfer.cli import main
code = main(["report", "runs", "figures=false"])
# The peak; ru_maxrss would have that of the parent, too.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", int(peak.split()[1]) >> 10)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_report_leaves_out_the_runs_that_ask_for_too_much(tmp_path: Path) -> None:
    transfer(tmp_path / "runs/finetune/ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    pretraining(tmp_path / "runs/pretrain/good")
    for number, (write, _) in enumerate(METRICS.values()):
        write(pretraining(tmp_path / f"runs/pretrain/bad-{number}") / "metrics.jsonl")
    for number, ask in enumerate((_ask_in_texts, _ask_in_lists)):
        ask(transfer(tmp_path / f"runs/finetune/asking-{number}", [0.5, 0.51]) / "seed-0")
    done = subprocess.run(
        [sys.executable, "-c", _REPORT], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout + done.stderr
    assert int(done.stdout.rpartition("peak ")[2]) < 1400  # megabytes
    assert "71.0 \u00b1 1.0" in out
    report = (tmp_path / "runs/report/report.md").read_text()
    for number in range(len(METRICS)):
        assert f"bad-{number}" in report
    for number in range(2):
        assert f"asking-{number}" in report


def _pickled(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_that_repeats_its_content_is_refused(tmp_path: Path) -> None:
    numbers = torch.zeros(1000)
    with refuses(CheckpointError, "pytorch_model.bin", "share their content"):
        read_weight_files(_pickled(tmp_path, {"a": torch.zeros(1).expand(1 << 18, 1 << 18)}))
    with refuses(CheckpointError, "pytorch_model.bin", "share their content"):
        read_weight_files(_pickled(tmp_path, {f"layer.{number}": numbers for number in range(5000)}))
    tied = {"embedding": torch.zeros(5000), "output": torch.zeros(5000)}
    tied["decoder"] = tied["embedding"]
    assert set(read_weight_files(_pickled(tmp_path, tied))) == set(tied)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    _pickled(tmp_path, {"a": torch.zeros(1 << 24)})
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in content.items():
            archive.writestr(name, raw)
    with refuses(CheckpointError, "pytorch_model.bin", "expands to"):
        read_weight_files(tmp_path)


@pytest.mark.parametrize("num_layers", [1000, 4096])
def test_a_model_of_more_parts_than_tensors_is_not_built(num_layers: int) -> None:
    sizes = {"vocab_size": 2**30, "dim": 16, "num_heads": 2, "hidden_dim": 16, "num_layers": num_layers}
    with pytest.raises(ValueError, match="more than 2,\\d+ parts"), shapes_only(num_saved=1):
        BertEncoder(**sizes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with shapes_only(num_saved=200):
        encoder = BertEncoder(**{**sizes, "num_layers": 12})
    assert encoder.embeddings.token.weight.shape == (2**30, 16)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("where", ["many", "outside", "virtual"])
def test_weights_of_elmo_hold_their_own_content(where: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, secret = tmp_path / "weights.hdf5", tmp_path / "secret"
    secret.write_bytes(b"a secret of 24 bytes, yes")
    with h5py.File(path, "w") as file:
        if where == "many":  # without content, each takes some hundred bytes
            for number in range(200):
                file.create_dataset(f"a{number}", shape=(1 << 20,), dtype="f4", chunks=(1 << 20,))
        elif where == "outside":
            file.create_dataset("a", shape=(6,), dtype="f4", external=[(str(secret), 0, 24)])
        else:
            layout = h5py.VirtualLayout(shape=(6,), dtype="f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "a", shape=(6,))
            file.create_virtual_dataset("a", layout)
    with refuses(CheckpointError, str(path), "has only" if where == "many" else "another file"):
        read_hdf5(path)

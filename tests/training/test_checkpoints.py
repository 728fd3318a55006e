"""Checkpoints are complete or absent, whatever happens while one is written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.training import Crash, crash_at, files_below
from safetensors.torch import save_file
from support.refusals import refuses
from torch import nn

from lmtransfer.errors import CheckpointError
from lmtransfer.training import checkpoints as module
from lmtransfer.training.checkpoints import Checkpoints, find_damage, open_checkpoint, preflight
from lmtransfer.training.weights import aliases, check_not_nan, load_weights, read_weights, weights


def _save(folder: Path, step: int, name: str = "last") -> None:
    tensors = {"model": {"weight": torch.full((3,), float(step))}, "optimizer": {}}
    Checkpoints(folder).save(name, tensors=tensors, state={"step": step})


def _newest_step(folder: Path) -> int:
    found, _ = Checkpoints(folder).find_newest()
    assert found is not None
    assert found.tensors("model")["weight"][0] == found.step, "tensors and state are of the same checkpoint"
    return found.step


def test_a_checkpoint_holds_safetensors_and_json_only(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    assert files_below(tmp_path) == {"last/model.safetensors", "last/state.json", "last/manifest.json"}
    manifest = json.loads((tmp_path / "last" / "manifest.json").read_text())["files"]
    assert set(manifest) == {"model.safetensors", "state.json"}
    assert all(set(entry) == {"bytes", "sha256"} for entry in manifest.values())


def test_a_later_save_replaces_an_earlier_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _save(tmp_path, step)
    assert _newest_step(tmp_path) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def _operations_of_a_save(tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        _save(tmp_path / "count", 1)
        made = crash_at(patch, -1, inside=tmp_path)
        _save(tmp_path / "count", 2)
        return made()


def test_a_crash_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    operations = _operations_of_a_save(tmp_path)
    assert operations > 10
    seen = set()
    for call in range(1, operations + 1):
        folder = tmp_path / str(call)
        _save(folder, 1)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, call, inside=tmp_path)
            with pytest.raises(Crash):
                _save(folder, 2)
        seen.add(_newest_step(folder))
        _save(folder, 3)  # and the next save cleans up
        assert _newest_step(folder) == 3
        assert [path.name for path in folder.iterdir()] == ["last"]
    assert seen == {1, 2}, "crashes came both before and after the new checkpoint was complete"


def test_crash_upon_crash_loses_nothing(tmp_path: Path) -> None:
    operations = _operations_of_a_save(tmp_path)
    for first in range(1, operations + 1):
        for second in range(1, operations + 1, 3):
            folder = tmp_path / f"{first}.{second}"
            _save(folder, 1)
            newest = 1
            for step, call in ((2, first), (3, second)):
                with pytest.MonkeyPatch.context() as patch:
                    crash_at(patch, call, inside=tmp_path)
                    with contextlib.suppress(Crash):
                        _save(folder, step)
                assert _newest_step(folder) >= newest
                newest = _newest_step(folder)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path, 1)

    def full(*arguments, **named) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "save_file", full)
    with refuses(CheckpointError, str(tmp_path / "last"), "No space left", "resume=true"):
        _save(tmp_path, 2)
    assert _newest_step(tmp_path) == 1


DAMAGE = {
    "truncated": lambda folder: os.truncate(folder / "model.safetensors", 20),
    "flipped byte": lambda folder: _flip(folder / "model.safetensors"),
    "no tensors": lambda folder: (folder / "model.safetensors").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "torn manifest": lambda folder: os.truncate(folder / "manifest.json", 10),
    "manifest of nothing": lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
    "manifest of the state": lambda folder: _forget(folder / "manifest.json", "model.safetensors"),
    "manifest of the model": lambda folder: _forget(folder / "manifest.json", "state.json"),
    "edited state": lambda folder: (folder / "state.json").write_text('{"step": 9999}'),
}


def _forget(manifest: Path, name: str) -> None:
    files = json.loads(manifest.read_text())["files"]
    del files[name]
    manifest.write_text(json.dumps({"files": files}))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found_and_the_newest_complete_one_is_taken(damage: Callable, tmp_path: Path) -> None:
    _save(tmp_path, 1, "best")
    _save(tmp_path, 2)
    damage(tmp_path / "last")
    found, problems = Checkpoints(tmp_path).find_newest()
    assert found is not None
    assert found.step == 1
    assert len(problems) == 1
    assert str(tmp_path / "last") in problems[0]
    with refuses(CheckpointError, str(tmp_path / "last")):
        open_checkpoint(tmp_path / "last")


def test_only_damaged_checkpoints_are_one_clear_error(tmp_path: Path) -> None:
    _save(tmp_path, 1, "best")
    _save(tmp_path, 2)
    for name in ("best", "last"):
        os.truncate(tmp_path / name / "model.safetensors", 20)
    with refuses(CheckpointError, str(tmp_path / "last"), str(tmp_path / "best")):
        Checkpoints(tmp_path).find_newest()


def test_a_run_that_never_saved_has_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").find_newest() == (None, [])
    assert not Checkpoints(tmp_path / "none").exists()
    (tmp_path / ".last.new").mkdir()
    assert Checkpoints(tmp_path).find_newest() == (None, [])


def test_checkpoints_can_be_moved(tmp_path: Path) -> None:
    _save(tmp_path / "here", 5)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert find_damage(tmp_path / "there" / "last") is None


def test_preflight_asks_for_room_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preflight(tmp_path / "new", num_bytes=1000)
    usage = shutil.disk_usage(tmp_path)
    with refuses(CheckpointError, str(tmp_path), "output_root="):
        preflight(tmp_path, num_bytes=usage.total)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with refuses(CheckpointError, str(blocked), "output_root="):
        preflight(blocked, num_bytes=1)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5, bias=False)
        self.encoder = nn.Module()
        self.encoder.token = nn.Embedding(5, 3)
        self.head.weight = self.encoder.token.weight
        self.encoder.register_buffer("scale", torch.ones(2))


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved, loaded = _Tied(), _Tied()
    assert set(weights(saved)) == {"head.weight", "encoder.scale"}
    folder = Checkpoints(tmp_path).save(
        "last", tensors={"model": weights(saved)}, state={"step": 1, "aliases": aliases(saved)}
    )
    load_weights(loaded, open_checkpoint(folder).tensors("model"))
    assert torch.equal(loaded.head.weight, saved.head.weight)
    assert loaded.head.weight is loaded.encoder.token.weight
    assert set(read_weights(folder, prefix="encoder.")) == {"token.weight", "scale"}, "also under its other name"
    load_weights(loaded.encoder, read_weights(folder, prefix="encoder."))


def test_weights_that_do_not_fit_are_all_named() -> None:
    saved = {"head.weight": torch.zeros(5, 4), "left.over": torch.zeros(1)}
    with refuses(CheckpointError, "the run x", "head.weight", "[5, 4]", "[5, 3]", "encoder.scale", "left.over"):
        load_weights(_Tied(), saved, source="the run x")


def test_read_weights_without_any_is_an_error(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    with refuses(CheckpointError, "'encoder.'"):
        read_weights(tmp_path / "last", prefix="encoder.")


def test_saving_costs_a_few_times_what_writing_the_tensors_does(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.zeros(1_000_000) for i in range(5)}
    content = {
        "model": tensors,
        "optimizer": {f"{n}/{m}": t.clone() for n, t in tensors.items() for m in ("first", "second")},
    }

    def plainly() -> None:
        for name, group in content.items():
            save_file(group, tmp_path / f"{name}.safetensors")

    def fastest(call: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            start_time = time.process_time()
            call()
            times.append(time.process_time() - start_time)
        return min(times)

    saved = fastest(lambda: Checkpoints(tmp_path).save("last", tensors=content, state={"step": 0}))
    assert saved < 15 * fastest(plainly)  # measured: 4 times, on an idle and on a busy machine


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_loaded(value: float) -> None:
    model = nn.Linear(3, 2)
    saved = {name: tensor.clone() for name, tensor in weights(model).items()}
    saved["bias"][1] = value
    with refuses(CheckpointError, "the run x", "bias"):
        load_weights(nn.Linear(3, 2), saved, source="the run x")
    loaded = nn.BatchNorm1d(2)  # whose counter of batches is an integer
    load_weights(loaded, weights(nn.BatchNorm1d(2)))


def test_outputs_that_are_nan_are_counted() -> None:
    outputs = torch.zeros(4, 3)
    check_not_nan(outputs.masked_fill(torch.eye(4, 3).bool(), float("-inf")), what="the scores")
    outputs[1, 2] = outputs[3] = float("nan")
    for values in (outputs, outputs.numpy(), outputs.bfloat16()):
        with refuses(CheckpointError, "the scores are NaN for 2 of 4 inputs", "fp32"):
            check_not_nan(values, what="the scores")

"""Masked and left to right rows in one run, from the command line: learned, gone on with, read either way, exported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.phases import TINY, assert_same, made, records, saved, stop_after  # noqa: F401  (made is a fixture)

MIXED = ["objective=mlm_lm" if word == "objective=mlm" else word for word in TINY]
NEXT = [*MIXED, "objective.predict=next", "objective.causal_share=0.4"]


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


def test_a_mixed_run_goes_on_exactly_and_whatever_its_micro_batches() -> None:
    still = [*NEXT, "model.dropout=0.0"]
    assert lmtransfer(*still, "name=whole") == 0
    assert {"loss/mlm", "loss/lm"} <= set().union(*records("whole"))  # four rows of a step may all be of one kind
    assert {"mlm", "lm", "loss"} <= set(result("runs/pretrain/whole")["metrics"])
    with pytest.MonkeyPatch.context() as patch:
        stop_after(5, patch)
        assert lmtransfer(*still, "name=cut") != 0
    assert lmtransfer(*still, "name=cut", "resume=true") == 0
    assert_same("whole", "cut")
    assert lmtransfer(*still, "name=halved", "train.micro_batch_tokens=32") == 0
    one, other = saved("whole"), saved("halved")
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=2e-4, rtol=1e-3)
    heads = {name for name in one if name.startswith("objectives.")}
    assert heads == {
        f"objectives.mlm.{part}" for part in ("bias", "dense.weight", "dense.bias", "norm.weight", "norm.bias")
    }


def test_a_mixed_run_is_read_either_way_and_fills_masks(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*NEXT, "name=run") == 0
    told = result("runs/pretrain/run")
    assert (told["attention"], told["causal_share"]) == ("bidirectional", 0.4)
    losses = []
    for attention in ("bidirectional", "causal"):
        words = ["finetune", *TASK, "init=runs/pretrain/run", "hardware=exact", "train.epochs=1"]
        assert lmtransfer(*words, f"transfer.attention={attention}", f"name={attention}") == 0
        losses.append(result(f"runs/finetune/{attention}")["metrics"]["loss"])
    assert losses[0] != losses[1]
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/pretrain/run", "text=the [MASK] was good", "hardware=exact") == 0
    assert json.loads(capsys.readouterr().out)["masks"][0]["candidates"]
    assert lmtransfer("export", "run=runs/finetune/causal", "to=no") == 2
    assert "transfer.attention=causal" in capsys.readouterr().err
    assert not Path("no").exists()


@pytest.mark.slow  # transformers is asked
def test_a_mixed_run_is_exported_as_a_bert() -> None:
    assert lmtransfer(*NEXT, "name=run") == 0
    assert lmtransfer("export", "run=runs/pretrain/run", "to=out") == 0
    assert json.loads(Path("out/config.json").read_text())["architectures"] == ["BertModel"]
    card = Path("out/README.md").read_text()
    for name in ("(mlm)", "(lm)", "0.4 of the rows", "predict=next"):
        assert name in card


@pytest.mark.parametrize("model", ["albert_lite", "electra_laptop", "modern_laptop"])
def test_left_to_right_first_suits_every_family_that_reads_both_ways(model: str) -> None:
    small = ["model.dim=16", "model.num_heads=2", "model.num_layers=1", "model.hidden_dim=16", "model.max_length=32"]
    words = [word for word in TINY if not word.startswith(("model", "objective="))]
    own = {"electra_laptop": "rtd"}.get(model, "mlm")
    dims = [] if model == "modern_laptop" else ["model.embedding_dim=8"]
    phases = ["phases=left_to_right_then_masked", f"objective={own}"]
    assert lmtransfer(*words, f"model={model}", *small, *dims, *phases, "name=run") == 0
    assert result("runs/pretrain/run")["attention"] == "bidirectional"
    assert yaml.safe_load(Path("runs/pretrain/run/config.yaml").read_text())["phases"]["left_to_right"]["share"] == 0.4

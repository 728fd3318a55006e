"""``transfer=lora`` and ``transfer=bitfit``: fixed base weights; resumed, scored, exported and reported runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import (
    QUICK,
    check_refused,
    killed_at_save,
    lmtransfer,
    log_of,
    make_world,
    result,
    train_from_base,
    weights_of,
)
from safetensors.torch import load_file

from lmtransfer.models.layers.lora import merge_saved_updates
from lmtransfer.training.checkpoints import Checkpoints

LORA = ["finetune", *QUICK, "transfer=lora", "transfer.lora_rank=4", "checkpoint=last"]
BITFIT = ["finetune", *QUICK, "transfer=bitfit", "checkpoint=last"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    train_from_base(folder, *LORA, "control=true", name="lora")
    train_from_base(folder, *BITFIT, name="bitfit")
    return folder


@pytest.mark.slow
def test_the_base_stays_as_it_was_bit_for_bit_and_so_does_that_of_the_control(world: Path) -> None:
    assert lmtransfer("finetune", *QUICK, "train.steps=1", "train.epochs=null", "name=full") == 0
    base = {name: tensor for name, tensor in weights_of("runs/pretrain/base").items() if name.startswith("encoder.")}
    head = {name for name in base if ".pooler." in name}
    lora, bitfit = weights_of("runs/finetune/lora"), weights_of("runs/finetune/bitfit")
    assert {name for name in base if not torch.equal(base[name], lora[name])} == head
    assert {name for name in base if not torch.equal(base[name], bitfit[name])} == head | {
        name for name in base if name.endswith("bias")
    }
    control = weights_of("runs/finetune/lora/control")
    table = "encoder.embeddings.token.weight"
    assert not torch.allclose(control[table], base[table])  # random, fixed, with separate updates
    assert control.keys() == lora.keys()
    written = result("runs/finetune/lora")
    updates = sum(tensor.numel() for name, tensor in lora.items() if name.endswith(("a.weight", "b.weight")))
    trained = updates + sum(lora[name].numel() for name in lora if name in head or name.startswith("head."))
    assert updates == 2 * 2 * 4 * (16 + 16)
    assert written["num_trained_parameters"] == trained
    assert written["num_trained_parameters"] < result("runs/finetune/full")["num_trained_parameters"]
    assert written["peak_memory"] > 10_000_000
    assert written["control"]["n"] == 1


@pytest.mark.slow
def test_every_command_takes_the_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*LORA, "transfer.lora_matrices=all", "name=all") == 0
    assert lmtransfer("evaluate", "run=runs/finetune/all", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == result("runs/finetune/all")["metrics"]
    assert lmtransfer("predict", "run=runs/finetune/all", "split=test", "output=said.jsonl") == 0
    assert lmtransfer("export", "run=runs/finetune/all", "format=tensors", "to=tensors") == 0  # read back, compared
    written = load_file("tensors/model.safetensors")
    merged = merge_saved_updates(weights_of("runs/finetune/all"))
    assert written.keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(written[name], tensor, atol=1e-6, rtol=1e-6)
    capsys.readouterr()
    assert lmtransfer("report", "runs") == 0
    said = capsys.readouterr().out
    share = result("runs/finetune/all")["num_trained_parameters"] / result("runs/finetune/all")["num_parameters"]
    assert f"{100 * share:.2g} %" in said
    table = Path("runs/report/report.md").read_text()
    assert "| trained parameters |" in table
    assert f"({100 * share:.2g} %) |" in table, table


def test_the_next_task_starts_from_the_merged_encoder(world: Path) -> None:
    words = ["init=runs/finetune/lora", "transfer.embedding_rate=0", "train.epochs=null", "train.steps=1"]
    words += ["optimizer.learning_rate=1e-12", "optimizer.weight_decay=0", "checkpoint=last"]
    assert lmtransfer("finetune", *[word for word in QUICK if not word.startswith(("init", "train", "opt"))], *words,
                      "name=next") == 0  # fmt: skip
    merged, found = merge_saved_updates(weights_of("runs/finetune/lora")), weights_of("runs/finetune/next")
    name = "encoder.stack.layers.0.attention.query_key_value.weight"
    assert not any(".updates." in name for name in found)
    torch.testing.assert_close(found[name], merged[name], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(found[name], weights_of("runs/pretrain/base")[name], atol=1e-4)


def test_a_torn_run_goes_on_to_the_same_weights(world: Path) -> None:
    words = [*LORA, "train.save_every=1", "train.min_steps=8", "train.log_every=1", "transfer.lora_dropout=0.2"]
    assert lmtransfer(*words, "name=whole") == 0
    with killed_at_save(4):
        assert lmtransfer(*words, "name=torn") != 0
    assert lmtransfer(*words, "name=torn", "resume=true") == 0
    whole, torn = weights_of("runs/finetune/whole"), weights_of("runs/finetune/torn")
    assert whole.keys() == torn.keys()
    assert all(torch.equal(tensor, torn[name]) for name, tensor in whole.items())
    assert log_of("runs/finetune/torn") == log_of("runs/finetune/whole")


def test_the_optimiser_keeps_the_state_of_what_it_trains_only(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, Any]] = []
    save = Checkpoints.save

    def note(self: Checkpoints, name: str, **content: Any) -> Path:
        kept.append(content["tensors"])
        return save(self, name, **content)

    monkeypatch.setattr(Checkpoints, "save", note)
    assert lmtransfer(*LORA, "name=again") == 0
    states = {key.rpartition("/")[0] for key in kept[0]["optimizer"]}
    assert states == {
        name
        for name in kept[0]["model"]
        if name.endswith(("a.weight", "b.weight")) or name.startswith(("encoder.pooler.", "head."))
    }


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["transfer=lora", "+transfer.layer_decay=0.9"], ("transfer.layer_decay=0.9", "transfer.freeze=lora")),
        (["transfer=lora", "transfer.lora_dropout=1"], ("transfer.lora_dropout", "1")),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    world: Path, capsys: pytest.CaptureFixture[str], words: list[str], names: tuple[str, ...]
) -> None:
    check_refused(capsys, ["finetune", *QUICK, *words, "name=x"], *names)
    assert not Path("runs/finetune/x").exists()


def test_an_adapter_needs_a_run_with_updates(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, names in (
        (["run=runs/finetune/bitfit", "format=adapter"], ("format=adapter", "transfer=lora")),
        (["run=runs/pretrain/base", "format=adapter"], ("format=adapter", "transfer=lora")),
        (["run=runs/finetune/bitfit", "base=runs"], ("base=runs", "format=adapter")),
        (["run=runs/finetune/bitfit", "format=adapter", "base=nowhere"], ("base=nowhere",)),
    ):
        check_refused(capsys, ["export", *words, "to=x"], *names)
        assert not Path("x").exists()

"""A user's own objective, one class and one YAML file, works with every command like a built-in objective."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import TASK, lmtransfer, result, write_split

#: Predicts masked tokens with a single matrix, and declares everything that commands ask for.
CLASS = '''
"""An objective from elsewhere."""

import torch
from torch import nn

from lmtransfer.models.layers.cross_entropy import cross_entropy_sum
from lmtransfer.objectives.base import Objective, output_positions_at
from lmtransfer.objectives.base import Softmax


class PlainMasked(Objective):
    """Hidden tokens, by the token embedding and nothing else."""

    name = "plain"
    title = "masked tokens by one matrix"
    directions = ("bidirectional",)
    output_positions = "masked"
    ties_embedding = True
    masked_loss = "plain"
    predicts = "masked"
    vocabulary_tensors = ("bias",)

    def bind(self, encoder):
        super().bind(encoder)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))

    def count(self, batch):
        return batch.num_targets

    def losses(self, batch, encode):
        states = batch.read("masked", encode(batch.inputs, batch.output_positions))
        table = self.tied_embedding.weight
        total, hits = cross_entropy_sum(states, table, self.bias, batch.targets_M, batch.weights_M)
        return self.loss_and_accuracy(total, (hits * batch.weights_M).sum(), batch.num_targets)

    def token_logits(self, hidden):
        return nn.functional.linear(hidden, self.tied_embedding.weight, self.bias)

    def predict(self, packed, positions, *, mask_id):
        states = self.encoder(packed, output_positions=output_positions_at(packed, positions)).last
        return [Softmax(states, self.tied_embedding.weight, self.bias)]
'''
YAML = """# Hidden tokens by one matrix
defaults:
  - rows: stream
  - corruption: tokens
  - _self_

max_length: 16
mask_prob: 0.2
losses:
  plain:
    _target_: own_objectives.PlainMasked
    weight: 1.0
"""
QUICK = ["hardware=exact", "train.seconds=null", "train.steps=3", "experiment=null"]


@pytest.mark.slow
def test_one_class_and_one_yaml_are_all_that_an_objective_takes(
    text_world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_objectives.py").write_text(CLASS)
    Path("mine/objective").mkdir(parents=True)
    Path("mine/objective/plain.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(str(text_world))
    monkeypatch.setenv("LMTRANSFER_ALLOW", "own_objectives")
    further = ["-cd", "mine", "objective=plain", *TEXT, *QUICK, "train.batch_tokens=64"]
    own = [*further, *TINY, *SHORT]

    assert lmtransfer("inspect", *own) == 0
    assert lmtransfer("pretrain", *own, "name=own") == 0
    found = result("runs/pretrain/own")
    assert {"plain", "plain_accuracy"} <= set(found["metrics"])
    assert found["unigram_entropy"] > 0  # because it predicts masked tokens
    assert lmtransfer("pretrain", *further, "name=further", "init=runs/pretrain/own") == 0

    assert lmtransfer("evaluate", "run=runs/pretrain/own", "hardware=exact", "name=own") == 0
    assert result("runs/evaluate/own")["metrics"]["loss"] == pytest.approx(found["metrics"]["loss"], rel=1e-5)
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/pretrain/own", "text='the [MASK] lay'", "hardware=exact") == 0
    (mask,) = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["masks"]
    assert len(mask["candidates"]) == 5

    Path("data").mkdir()
    for seed, split in enumerate(("train", "dev", "test")):
        write_split(Path("data", f"{split}.tsv"), 30, seed=seed)
    for command in ("probe", "finetune"):
        words = ["init=runs/pretrain/own", *TASK, "task.max_length=32", "train.epochs=1", "hardware=exact"]
        assert lmtransfer(command, *words, f"name={command}") == 0

    assert lmtransfer("export", "run=runs/pretrain/own", "to=out/folder", "results=runs") == 0
    assert re.search(r"\bhead of plain\b.*\bBertModel\b", capsys.readouterr().out)
    assert "masked tokens by one matrix (plain)" in Path("out/folder/README.md").read_text()
    assert lmtransfer("export", "run=runs/pretrain/own", "to=out/graph", "format=onnx") == 0
    assert "outputs logits" in capsys.readouterr().out
    assert lmtransfer("export", "run=runs/pretrain/own", "to=out/tensors", "format=tensors") == 0
    assert "(hidden, plain, pooled)" in capsys.readouterr().out
    assert lmtransfer("report", "runs") == 0

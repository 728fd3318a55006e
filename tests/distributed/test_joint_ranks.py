"""Joint training on labels and text with two ranks (gloo, on the CPU) gives the same result as one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import QUICK, make_world
from safetensors.torch import load_file
from support.start_ranks import start_command

TEXT = ["corpus=text", "corpus.path=text.txt", "objective=mlm", "objective.max_length=16"]
JOINT = ["transfer=joint", "transfer.text_tokens=64", "transfer.dropout=0", "train.log_every=1", "checkpoint=last"]


def _lines(world: Path, run: str) -> list[dict[str, Any]]:
    path = world / "runs" / "finetune" / run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_two_ranks_learn_from_labels_and_text_as_one(tmp_path: Path) -> None:
    make_world(tmp_path)
    documents = [f"the film of number {number} was a dull story with a superb actor" for number in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    for ranks in (1, 2):
        words = ["finetune", *QUICK, *TEXT, *JOINT, f"name=ranks-{ranks}"]
        start_command(*words, ranks=ranks, folder=tmp_path)
    one, two = (_lines(tmp_path, f"ranks-{ranks}") for ranks in (1, 2))
    for key in ("loss", "tokens", "loss/mlm"):
        expected = [line[key] for line in one if key in line]
        assert [line[key] for line in two if key in line] == pytest.approx(expected, rel=1e-4)
        assert len(expected) > 6
    models = [
        load_file(tmp_path / f"runs/finetune/ranks-{ranks}/checkpoints/last/model.safetensors") for ranks in (1, 2)
    ]
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-2, atol=1e-3, msg=name)

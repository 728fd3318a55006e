"""Training and scoring a task on two ranks (gloo, on the CPU) gives the same result as one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.task_files import FILES, make_task_world
from safetensors.torch import load_file
from support.start_ranks import start_command

QUICK = ["hardware=exact", "init=runs/pretrain/base", "train.epochs=4", "optimizer.learning_rate=0.02"]
#: Several micro-batches per rank; without dropout, whose masks depend on the micro-batch.
SMALL = ["train.micro_batch_tokens=64", "transfer.dropout=0"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_task_world(folder)
    return folder


def _result(world: Path, path: str) -> dict[str, Any]:
    return json.loads((world / "runs" / path / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["span_qa"])
def test_two_ranks_train_and_score_as_one(kind: str, world: Path) -> None:
    for ranks in (1, 2):
        start_command("finetune", *FILES[kind], *QUICK, *SMALL, f"name={kind}-{ranks}", ranks=ranks, folder=world)
    one, two = (_result(world, f"finetune/{kind}-{ranks}") for ranks in (1, 2))
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-4)
    assert two["num_scored"] == one["num_scored"] == 40
    assert two["tokens"] == one["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text_pair"])
def test_ranks_score_each_example_once(kind: str, world: Path) -> None:
    """From the same run; all examples fit into one batch, which is cut evenly."""
    start_command("finetune", *FILES[kind], *QUICK[:2], "train.steps=3", f"name=base-{kind}", ranks=1, folder=world)
    for ranks in (1, 3):
        words = [f"run=runs/finetune/base-{kind}", "split=test", "hardware=exact", f"name={kind}-{ranks}"]
        start_command("evaluate", *words, ranks=ranks, folder=world)
    one, three = (_result(world, f"evaluate/{kind}-{ranks}") for ranks in (1, 3))
    assert three["metrics"] == pytest.approx(one["metrics"], abs=1e-9, rel=1e-6)
    assert three["num_scored"] == one["num_scored"] == 30


@pytest.mark.slow
def test_two_ranks_have_one_scale_and_the_same_frozen_embeddings(world: Path) -> None:
    words = ["transfer.standardise=true", "transfer.layers=[0,last]", "transfer.pooling=mean", "checkpoint=last"]
    words += ["transfer.embedding_rate=0", "transfer.head_rate=2", "train.epochs=1", "train.min_steps=8"]
    for ranks in (1, 2):
        start_command(
            "finetune", *FILES["text_pair"], *QUICK[:2], *SMALL, *words, f"name=s-{ranks}", ranks=ranks, folder=world
        )
    one, two = (load_file(world / f"runs/finetune/s-{ranks}/checkpoints/last/model.safetensors") for ranks in (1, 2))
    for name in one:
        exact = name.startswith(("standardising.", "encoder.embeddings."))
        assert torch.allclose(one[name], two[name], atol=0 if exact else 1e-5, rtol=0), name
    assert _result(world, "finetune/s-1")["steps"] == _result(world, "finetune/s-2")["steps"] == 8


@pytest.mark.slow
def test_two_ranks_start_from_the_same_counts(world: Path) -> None:
    documents = [" . ".join(f"w{i % 7} w{(i * j) % 11} w{j}" for j in range(6)) for i in range(60)]
    (world / "counted.txt").write_text("\n\n".join(documents) + "\n")
    words = [
        *("experiment=null", "model=bert_tiny", "model.dropout=0", "objective=mlm", "objective.max_length=16"),
        *("embeddings=counted", "corpus=text", "corpus.path=counted.txt", "corpus.validation_fraction=0.2"),
        *("tokenizer.vocab_size=60", "tokenizer.allow_fewer=true", "train.steps=3", "train.batch_tokens=128"),
        *("train.micro_batch_tokens=64", "hardware=exact", "optimizer=adamw"),
    ]
    for ranks in (1, 2):
        start_command("pretrain", *words, f"name=counted-{ranks}", ranks=ranks, folder=world)
    one, two = (load_file(world / f"runs/pretrain/counted-{n}/checkpoints/last/model.safetensors") for n in (1, 2))
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-5, rtol=0), name

"""Small models of the families, trained on this rank's share of rows; results as JSON in the current folder.

Settings are ``kind``, ``optimizer``, ``until`` and ``ahead``; a pair is ``<model>:<objective>``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes.objectives import NumberTokenizer, random_documents, store_of
from fakes.training import Recorder, trainer_of

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.system.ranks import end_process
from lmtransfer.training import process_group
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.data_parallel import own_part, shard
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.optim.optimizers import AdamW, Muon
from lmtransfer.training.optim.schedules import Linear
from support.objective_table import built

STEPS = 12
OPTIMIZERS: dict[str, Any] = {"adamw": AdamW, "muon": Muon}


def _trained(model: str, objective: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    rank, world_size = process_group.rank(), process_group.world_size()
    characters = np.tile(np.arange(50, dtype=np.int16) + 1, (NumberTokenizer.vocab_size, 1))
    characters[:, 0] += np.arange(NumberTokenizer.vocab_size) % 60
    with tempfile.TemporaryDirectory() as corpus:
        learner, source, _ = built(
            objective,
            store_of(Path(corpus), random_documents(60)),
            "objective.max_length=24",
            model=model,
            changes={"dropout": 0.0, "num_layers": 2},
            characters=characters if "elmo" in model else None,
        )
        if rank:
            torch.nn.init.normal_(next(learner.parameters()))  # must not matter: rank 0's weights are shared
        if settings["kind"] == "sharded":
            shard(learner, torch.device("cpu"))
        limits = {"batch_tokens": 200, "micro_batch_tokens": 48}  # passes of different sizes
        contiguous = objective in ("lm_contiguous", "bilm")
        stream = PlannedStream(source, seed=0, rank=rank, world_size=world_size, contiguous=contiguous, **limits)
        recorder = Recorder()
        held_out = next(PlannedStream(source, seed=1, **limits).steps()).micro_batches
        trainer = trainer_of(
            learner=learner,
            stream=stream,
            optimizer=OPTIMIZERS[settings["optimizer"]](learner=learner, learning_rate=0.01),
            budget=Budget(steps=STEPS),
            until=settings.get("until", 1.0),
            schedule=Linear(),
            seed=0,
            max_grad_norm=1.0,
            log_every=1,
            trackers=[recorder],
            checkpoints=Checkpoints(folder / f"{model}-{objective}"),
            evaluate=lambda: evaluate_losses(learner, held_out[rank::world_size]),
            eval_every=4,
        )
        if settings.get("ahead"):  # as on a GPU, whose decisions the host does not wait for
            trainer.updater.asynchronous = True
            assert not trainer.updater._waits()
        trainer.resume()
        trainer.train()
        state = trainer.optimizer.parts[0].state.values()
        held = sum(own_part(entry).numel() for entries in state for entry in entries.values())
    return {
        "records": recorder.records,
        "weights": sum(own_part(parameter).numel() for parameter in learner.parameters()),
        "state": held,
    }


def train(pairs: list[str], every: list[dict[str, Any]]) -> None:
    """Train with one setting after the other."""
    torch.set_num_threads(1)
    with process_group.join():
        results = [
            {pair: _trained(*pair.split(":"), settings, Path(str(place))) for pair in pairs}
            for place, settings in enumerate(every)
        ]
        Path(f"rank-{process_group.rank()}.json").write_text(json.dumps(results))
    end_process(0)

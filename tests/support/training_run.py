"""A small real training run, to be started as a process of its own, killed and resumed.

python -m support.training_run <folder> <workers> [resume] [slow]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from fakes.training import ToyBatch, ToyLearner, ToyStream, rows, toy_trainer
from torch.utils.data import DataLoader, Dataset

from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.evaluation import ModelSelection, evaluate_losses
from lmtransfer.training.learner import Step
from lmtransfer.training.optim.optimizers import Muon
from lmtransfer.training.optim.schedules import Cosine
from lmtransfer.training.trackers.base import Jsonl


class _MicroBatches(Dataset):
    def __getitem__(self, number: int) -> ToyBatch:
        return rows(number, 3 + number % 4, dtype=torch.float32)


class WorkerStream(ToyStream):
    """The toy stream with its micro-batches built by worker processes."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(dtype=torch.float32)
        self.num_workers = num_workers

    def steps(self, start: int = 0) -> Iterator[Step]:
        if not self.num_workers:
            yield from super().steps(start)
            return
        numbers = range(start * self.per_step, 10**6)
        loader = iter(
            DataLoader(
                _MicroBatches(),
                batch_size=None,
                sampler=numbers,
                num_workers=self.num_workers,
                collate_fn=_as_it_is,
                generator=torch.Generator(),
            )
        )
        for step in super().steps(start):
            batches = tuple(next(loader) for _ in step.micro_batches)
            yield Step(step.number, step.epoch, batches, step.first_micro_batch)


def _as_it_is(batch: ToyBatch) -> ToyBatch:
    return batch


class _Slow(Jsonl):
    """Takes its time, so that there is a moment at which to be killed."""

    def log(self, record) -> None:
        super().log(record)
        time.sleep(0.03)


def main() -> None:
    folder, workers, options = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    learner = ToyLearner(dropout=0.3, dtype=torch.float32)
    held_out = [rows(10**6 + n, 5, dtype=torch.float32) for n in range(3)]
    trainer = toy_trainer(
        learner,
        stream=WorkerStream(workers),
        optimizer=Muon(learner=learner),
        schedule=Cosine(warmup_fraction=0.1),
        budget=Budget(epochs=12, steps_per_epoch=5),
        max_grad_norm=1.0,
        evaluate=lambda: evaluate_losses(learner, held_out),
        eval_every=7,
        selection=ModelSelection(),
        checkpoints=Checkpoints(folder / "checkpoints"),
        save_every=5,
        trackers=[(_Slow if "slow" in options else Jsonl)(folder=folder)],
        log_every=1,
    )
    if "resume" in options:
        trainer.resume()
    trainer.train()
    np.savez(folder / "weights.npz", **{name: value.numpy() for name, value in learner.state_dict().items()})


if __name__ == "__main__":
    main()

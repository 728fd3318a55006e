"""What each rank of the distributed tests does; started by ``torchrun``, results as JSON.

ranks.py <case> <folder>
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.training import FindsLarge, ToyBatch, ToyStream, rows, toy_trainer

from lmtransfer.errors import Interrupted, RunDirectoryError
from lmtransfer.launch import end_process
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.training import distributed
from lmtransfer.training.averaging import Average, Exponential
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoint import Checkpoints
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.model_selection import ModelSelection
from lmtransfer.training.trackers.jsonl import Jsonl


class _Signalled(ToyStream):
    """Sends SIGTERM to the last rank only."""

    def micro_batch(self, number: int) -> ToyBatch:
        if number == 5 and self.rank == self.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().micro_batch(number)


def _train(
    folder: Path, *, steps: int = 12, stream: type[ToyStream] = ToyStream, resume: bool = False
) -> dict[str, Any]:
    """Three micro-batches a step over however many ranks there are, with dropout, ragged counts and an average."""
    rank, world_size = distributed.rank(), distributed.world_size()
    learner = FindsLarge(dropout=0.3)
    if rank:
        torch.nn.init.normal_(learner.out.weight)  # must not matter: rank 0's weights are shared
    average = Average(list(learner.parameters()), Exponential(0.5))
    held_out = [rows(10**6 + n, 3 + n) for n in range(5)]
    trainer = toy_trainer(
        learner,
        stream=stream(per_step=3, rank=rank, world_size=world_size),
        budget=Budget(steps=12),
        max_grad_norm=1.0,
        evaluate=lambda: evaluate_losses(learner, held_out[rank::world_size]),
        eval_every=5,
        selection=ModelSelection(),
        average=average,
        checkpoints=Checkpoints(folder / "checkpoints"),
        trackers=[Jsonl(folder=folder)],
    )
    notes: list[str] = []
    trainer.progress.note = notes.append  # type: ignore[method-assign]
    if resume:
        trainer.resume()
    interrupted = False
    try:
        trainer.train()
    except Interrupted:
        interrupted = True
    return {
        "step": trainer.state.step,
        "interrupted": interrupted,
        "notes": notes,
        "weights": {name: value.tolist() for name, value in learner.state_dict().items()},
        "average": [value.tolist() for value in average.tensors],
    }


def _refused(folder: Path) -> dict[str, Any]:
    RunDirectory.create(folder, "pretrain", "a")
    try:
        RunDirectory.create(folder, "pretrain", "a")
    except RunDirectoryError as error:
        return {"message": str(error)}
    return {}


CASES = {
    "train": _train,
    "resume": lambda folder: _train(folder, resume=True),
    "signal": lambda folder: _train(folder, stream=_Signalled),
    "refused": _refused,
}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[2])
    with distributed.process_group():
        result = CASES[sys.argv[1]](folder)
        (folder / f"{sys.argv[1]}-{distributed.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
    end_process(0)

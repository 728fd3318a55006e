"""What each rank of the distributed tests does; results as JSON in the current folder.

torchrun ... -m support.ranks <case>
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fakes.training import WIDTH, FindsLarge, ToyBatch, ToyLearner, ToyStream, rows, toy_trainer

from lmtransfer.errors import Interrupted, MachineError, RunDirectoryError, TrainingError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.ranks import end_process
from lmtransfer.training import process_group
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.data_parallel import Passes
from lmtransfer.training.evaluation import ModelSelection, evaluate_losses
from lmtransfer.training.learner import Loss
from lmtransfer.training.precision import Precision
from lmtransfer.training.trackers.base import Jsonl
from lmtransfer.training.update import accumulate


class _Signalled(ToyStream):
    """Sends SIGTERM to the last rank only."""

    def micro_batch(self, number: int) -> ToyBatch:
        if number == 5 and self.rank == self.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().micro_batch(number)


class _Killed(ToyStream):
    """Kills the last rank in step 6."""

    def micro_batch(self, number: int) -> ToyBatch:
        if number == 5 * self.per_step + 2 and self.rank == self.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().micro_batch(number)


class _Collectives(Callback):
    """Counts the collective operations before each step's end, by the function of ``torch.distributed``."""

    name = "collectives"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.until_step: list[Counter[str]] = []
        for name in ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list"):
            setattr(dist, name, self._counted(name, getattr(dist, name)))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.counts[name] += 1
            return function(*arguments, **named)

        return counted

    def on_step_end(self, outcome: Any, record: Any, *, fraction: float) -> Sequence[str]:
        self.until_step.append(self.counts.copy())
        return ()

    def of_steps(self) -> list[dict[str, int]]:
        """The collective operations from the end of each step to the end of the next one."""
        return [dict(after - before) for before, after in pairwise(self.until_step)]


def _train(folder: Path, *, stream: type[ToyStream] = ToyStream, resume: bool = False) -> dict[str, Any]:
    """Three micro-batches a step over however many ranks there are, with dropout, ragged counts and an average."""
    rank, world_size = process_group.rank(), process_group.world_size()
    learner = FindsLarge(dropout=0.3)
    if rank:
        torch.nn.init.normal_(learner.out.weight)  # must not matter: rank 0's weights are shared
    average = Average(list(learner.parameters()), ExponentialAverage(0.5))
    collectives = _Collectives()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
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
        save_every=4,
        trackers=[Jsonl(folder=folder)],
        callbacks=[collectives],
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
        "collectives": collectives.of_steps(),
        "weights": {name: value.tolist() for name, value in learner.state_dict().items()},
        "average": [value.tolist() for value in average.tensors],
    }


class _Uneven(ToyLearner):
    """With a parameter that only batches of more than five rows use, and with one that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        self.no_memory = False

    def counts(self, batch: ToyBatch) -> dict[str, int]:
        return {"square": len(batch.x)}

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        if self.no_memory:
            raise torch.OutOfMemoryError
        hidden = self.layers[0](batch.x * self.large if len(batch.x) > 5 else batch.x)
        error = (self.out(self.norm(hidden)).squeeze(-1) - batch.y) ** 2
        return {"square": Loss(error.sum(), len(batch.x))}, recurrent_state


def _gradients(folder: Path) -> dict[str, Any]:
    """The gradients of five steps; from the third on one parameter is frozen."""
    rank, world_size = process_group.rank(), process_group.world_size()
    learner = _Uneven()
    passes, steps = Passes(learner, Precision()), []
    for number, step in zip(range(5), ToyStream(per_step=3, rank=rank, world_size=world_size).steps(), strict=False):
        learner.zero_grad()
        learner.norm.weight.requires_grad_(number < 2)
        accumulate(passes, step, recurrent_states={}, seed=0, device="cpu")
        steps.append({name: None if p.grad is None else p.grad.tolist() for name, p in learner.named_parameters()})
    return {"steps": steps}


def _no_memory(folder: Path) -> dict[str, Any]:
    """The memory of the last rank does not suffice in the second step."""
    learner = _Uneven()
    rank, world_size = process_group.rank(), process_group.world_size()
    passes, messages = Passes(learner, Precision()), []
    for number, step in zip(range(2), ToyStream(per_step=4, rank=rank, world_size=world_size).steps(), strict=False):
        learner.no_memory = number == 1 and rank == world_size - 1
        try:
            accumulate(passes, step, recurrent_states={}, seed=0, device="cpu")
        except (TrainingError, MachineError) as error:
            messages.append(f"{type(error).__name__}: {error}")
            (folder / f"no_memory-{rank}.json").write_text(json.dumps({"messages": messages}))
            os._exit(0)
    return {"messages": messages}


def _refused(folder: Path) -> dict[str, Any]:
    RunDirectory.create(folder, "pretrain", "a")
    try:
        RunDirectory.create(folder, "pretrain", "a")
    except RunDirectoryError as error:
        return {"message": str(error)}
    return {}


def _left(folder: Path) -> dict[str, Any]:
    """The last rank ends without a word; the first one writes what it is told then."""
    if process_group.rank():
        os._exit(0)
    try:
        process_group.gather("here")
    except MachineError as error:
        (folder / "left-0.json").write_text(json.dumps({"message": str(error)}))
        os._exit(0)
    return {}


CASES = {
    "train": _train,
    "resume": lambda folder: _train(folder, resume=True),
    "signal": lambda folder: _train(folder, stream=_Signalled),
    "killed": lambda folder: _train(folder, stream=_Killed),
    "left": _left,
    "gradients": _gradients,
    "no_memory": _no_memory,
    "refused": _refused,
}


def run(case: str) -> None:
    """Run a case in the current folder."""
    torch.set_num_threads(1)
    with process_group.join():
        result = CASES[case](Path.cwd())
        Path(f"{case}-{process_group.rank()}.json").write_text(json.dumps(result))
    end_process(0)


if __name__ == "__main__":
    run(sys.argv[1])

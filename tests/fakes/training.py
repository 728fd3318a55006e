"""Small learners and streams that train in milliseconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lmtransfer.errors import TrainingError
from lmtransfer.training import checkpoints
from lmtransfer.training.budget import Budget
from lmtransfer.training.evaluation import Validation
from lmtransfer.training.learner import Learner, Loss, Step
from lmtransfer.training.loop import Trainer, TrainerConfig
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.optim.schedules import Linear

WIDTH = 4


@dataclass(frozen=True)
class ToyBatch:
    """Rows of numbers with a target each; ``mask`` says which of them the second loss counts."""

    x: Tensor
    y: Tensor
    mask: Tensor
    keys: Sequence[str]

    @property
    def num_tokens(self) -> int:
        return len(self.x)

    def to(self, device: Any) -> ToyBatch:
        return self

    def rows(self, indices: Sequence[int]) -> ToyBatch:
        keys = [self.keys[i] for i in indices]
        chosen = torch.tensor(indices)
        return ToyBatch(self.x[chosen], self.y[chosen], self.mask[chosen], keys)


def rows(seed: int, num_rows: int, *, dtype: torch.dtype = torch.float64) -> ToyBatch:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(num_rows, WIDTH))).to(dtype)
    mask = torch.from_numpy(rng.random(num_rows) < 0.4)
    return ToyBatch(x, (x[:, 0] * x[:, 1]).to(dtype), mask, [f"{seed}.{i}" for i in range(num_rows)])


class ToyLearner(Learner):
    """A two-layer regression with two losses of different, ragged counts."""

    def __init__(self, *, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 1)
        self.dropout = nn.Dropout(dropout)
        self.to(dtype)

    def counts(self, batch: ToyBatch) -> dict[str, int]:
        return {"square": len(batch.x), "masked": int(batch.mask.sum())}

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        hidden = self.dropout(torch.tanh(self.layers[0](batch.x)))
        error = (self.out(self.norm(hidden)).squeeze(-1) - batch.y) ** 2
        counts = self.counts(batch)
        return {
            "square": Loss(error.sum(), counts["square"]),
            "masked": Loss(error[batch.mask].abs().sum(), counts["masked"], weight=0.5),
        }, recurrent_state


class FindsLarge(ToyLearner):
    """Beside its losses a metric over what only the forward pass knows: the errors above a limit, and what they are."""

    limit = 1.0

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        losses, recurrent_state = super().losses(batch, recurrent_state)
        error = self.errors(batch)
        large = error > self.limit
        return losses | {"large": Loss(error[large].sum(), large.sum(), 0.0)}, recurrent_state

    def errors(self, batch: ToyBatch) -> torch.Tensor:
        with torch.no_grad():
            return (self.out(self.norm(torch.tanh(self.layers[0](batch.x)))).squeeze(-1) - batch.y) ** 2


class ToyStream:
    """``per_step`` micro-batches of a few rows a step, dealt to ranks in consecutive shares with fillers."""

    def __init__(
        self,
        *,
        per_step: int = 2,
        steps_per_epoch: int = 5,
        rank: int = 0,
        world_size: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.per_step, self.steps_per_epoch = per_step, steps_per_epoch
        self.rank, self.world_size, self.dtype = rank, world_size, dtype

    def micro_batch(self, number: int) -> ToyBatch:
        return rows(number, 3 + number % 4, dtype=self.dtype)

    def steps(self, start: int = 0) -> Iterator[Step]:
        number = start
        while True:
            first = number * self.per_step
            shares = np.array_split(np.arange(first, first + self.per_step), self.world_size)
            local, most = shares[self.rank], max(map(len, shares))
            yield Step(
                number=number,
                epoch=(number + 1) / self.steps_per_epoch,
                micro_batches=tuple(self.micro_batch(int(n)) for n in [*local, *[first] * (most - len(local))]),
                fillers=range(len(local), most),
                first_micro_batch=int(local[0]) if len(local) else first,
            )
            number += 1

    def set_micro_batch_tokens(self, tokens: int) -> None:
        raise TrainingError(f"{tokens} tokens are fewer than a row has")


class Recorder:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def rewind(self, step: int) -> None:
        self.records = [record for record in self.records if record["step"] <= step]

    def log(self, record: Any) -> None:
        self.records.append(dict(record))


class FakeClock:
    """Moves on by ``tick`` seconds whenever it is read."""

    def __init__(self, tick: float = 1.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def trainer_of(**settings: Any) -> Trainer:
    """A trainer by its settings, those of its configuration and of its validation among them."""
    measure, every, selection = (settings.pop(name, None) for name in ("evaluate", "eval_every", "selection"))
    validation = None if measure is None else Validation(measure=measure, every=every, selection=selection)
    config = TrainerConfig(
        **{one.name: settings.pop(one.name) for one in fields(TrainerConfig) if one.name in settings}
    )
    return Trainer(config=config, validation=validation, **settings)


def toy_trainer(learner: nn.Module | None = None, **settings: Any) -> Trainer:
    """A trainer over the toys; any of its settings may be given."""
    learner = learner or ToyLearner()
    defaults: dict[str, Any] = {
        "stream": ToyStream(dtype=next(learner.parameters()).dtype),
        "optimizer": AdamW(learner=learner, learning_rate=0.05),
        "schedule": Linear(),
        "budget": Budget(steps=10),
        "seed": 3,
        "log_every": 1,
    }
    return trainer_of(learner=learner, **(defaults | settings))


def weights_of(learner: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class Crash(BaseException):
    """Stands for a power cut: no handler sees it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, call: int, *, inside: Path) -> Callable[[], int]:
    """Let the ``call``-th operation of saves on files in a folder be the last; returns a count of those made."""
    made = 0

    def counted(function: Callable) -> Callable:
        def wrapper(*arguments, **named):
            nonlocal made
            if any(isinstance(given, str | Path) and inside in Path(given).parents for given in arguments):
                made += 1  # operations elsewhere, such as those of a finalizer, are none of a save
                if made == call:
                    raise Crash
            return function(*arguments, **named)

        return wrapper

    for owner, name in [
        (Path, "mkdir"),
        (Path, "write_text"),
        (Path, "rename"),
        (Path, "chmod"),
        (checkpoints, "save_file"),
        (checkpoints, "flush"),
        (checkpoints, "flush"),
        (checkpoints, "_size_and_hash"),
        (shutil, "rmtree"),
    ]:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return lambda: made

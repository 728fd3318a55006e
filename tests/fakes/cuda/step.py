"""Steps of training on the fake device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.cuda.watch import Watch
from lmtransfer.training.budget import Budget
from lmtransfer.training.learner import Learner, Step
from lmtransfer.training.loop import Trainer, TrainerConfig
from lmtransfer.training.optim.optimizers import AdamW, Muon
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.training.precision import Precision, PrecisionName
from lmtransfer.training.update import StepSource


class _Moved:
    """Steps of one micro-batch, which are on the device already."""

    steps_per_epoch = 100

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def steps(self, start: int = 0) -> Iterator[Step]:
        return (Step(number, 0.0, [self.batches[number % len(self.batches)]]) for number in count(start))

    def set_micro_batch_tokens(self, tokens: int) -> None: ...


def step_findings(
    learner: Learner,
    batches: Sequence[Any],
    number_format: PrecisionName,
    *,
    optimizer: type[AdamW | Muon] = AdamW,
    num_steps: int = 1,
) -> list[str]:
    """What ``Watch`` finds in steps of the training loop of which none is logged, from the batch on the device on.

    Args:
        learner: a learner on the host or on ``meta``; it is moved.
        batches: batches on the host, one for each step; after the last one they begin again.
        number_format: of the products. A step in float16 is made without its loss scale: with it, the host waits.
        optimizer: the optimiser.
        num_steps: number of steps.
    """
    precision = Precision(name=number_format, device="cuda")
    precision.scaler = None
    with fake_tensors():
        to_device(learner)
        learner.train()
        trainer = Trainer(
            learner=learner,
            stream=_Moved([batch.to("cuda") for batch in batches]),
            optimizer=optimizer(learner=learner),
            config=TrainerConfig(
                budget=Budget(steps=100),
                schedule=Linear(),
                seed=0,
                device="cuda",
                precision=precision,
                max_grad_norm=1.0,
                log_every=100,
            ),
        )
        source = StepSource(trainer.stream, start=0)
        with Watch() as watch:
            for _ in range(num_steps):
                trainer._step(source)
    assert trainer.state.step == num_steps
    return list(watch.findings)

"""One step of training on the fake device."""

from __future__ import annotations

from typing import Any

from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.cuda.watch import Watch
from lmtransfer.training.learner import Learner, Step
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.precision import Precision, PrecisionName
from lmtransfer.training.update import Updater


def step_findings(learner: Learner, batch: Any, number_format: PrecisionName) -> list[str]:
    """What ``Watch`` finds in a step of a learner, from its batch on the device to the update of its weights.

    Args:
        learner: a learner on the host or on ``meta``; it is moved.
        batch: a batch on the host.
        number_format: of the products. A step in float16 is made without its loss scale: with it, the host waits.
    """
    precision = Precision(name=number_format, device="cuda")
    precision.scaler = None
    with fake_tensors():
        to_device(learner)
        learner.train()
        updater = Updater(
            learner=learner,
            optimizer=AdamW(learner=learner),
            seed=0,
            device="cuda",
            precision=precision,
            max_grad_norm=1.0,
        )
        step = Step(number=0, epoch=0.0, micro_batches=[batch.to("cuda")])
        with Watch() as watch:
            updater.make(step, factor=lambda tokens: 1.0)
    return list(watch.findings)

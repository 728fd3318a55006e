"""Measures the phases of one step on our side: batch, copy, forward, backward and optimizer.

After every step this program waits for the device, so that the phases do not overlap; the trainer itself does not wait.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from .ours import training_of
from .setting import Setting

#: The phases on the device; before them, the host builds the batch.
_ON_DEVICE = ("copy", "forward", "backward", "optimizer")


class _Marks:
    """Times between marks, in milliseconds: by the events of a GPU, or by the clock of the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(1000 * time.perf_counter())

    def times(self) -> list[float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        between = zip(self.marks, self.marks[1:], strict=False)
        if self.device.type == "cuda":
            return [start.elapsed_time(end) for start, end in between]
        return [end - start for start, end in between]


def measure(setting: Setting) -> dict[str, Any]:
    """Perform the steps one after another.

    Returns:
        The median duration of each phase in milliseconds, and the mean number of tokens in a step.
    """
    training = training_of(setting)
    device, steps, learner = training.hardware.device, training.stream.steps(), training.learner.train()
    durations: dict[str, list[float]] = {name: [] for name in ("batch", *_ON_DEVICE)}
    tokens = []
    for number in range(setting.warmup + setting.steps):
        start_time = time.perf_counter()
        batch = next(steps).micro_batches[0]
        on_host = 1000 * (time.perf_counter() - start_time)
        marks = _Marks(device)
        marks.mark()
        batch_on_device = batch.to(device)
        marks.mark()
        with training.hardware.precision.autocast():
            losses, _ = learner.losses(batch_on_device)
        counts = learner.counts(batch)
        total = torch.stack([loss.sum * (loss.weight / counts[name]) for name, loss in losses.items()]).sum()
        marks.mark()
        (total * training.hardware.precision.scale).backward()
        marks.mark()
        nn.utils.clip_grad_norm_(training.optimizer.parameters, 1.0)
        training.optimizer.step()
        training.optimizer.zero_grad()
        marks.mark()
        times = marks.times()
        if number >= setting.warmup:
            tokens.append(batch.num_tokens)
            for name, milliseconds in zip(durations, [on_host, *times], strict=True):
                durations[name].append(milliseconds)
    return {
        "milliseconds": {name: statistics.median(values) for name, values in durations.items()},
        "tokens_per_step": statistics.mean(tokens),
    }

"""Measures real tokens per second after the first ``warmup`` steps, and the peak memory."""

from __future__ import annotations

import resource
import sys
import time

import torch


class Clock:
    """Times the steps of a training.

    Args:
        warmup: number of steps that are not timed.
        device: device of the training; a GPU is synchronized at both ends of the timed part.
    """

    def __init__(self, *, warmup: int, device: str) -> None:
        self.warmup, self.device = warmup, device
        self.steps = self.tokens = 0
        self.start_time = 0.0

    def step(self, tokens: int) -> None:
        """Record the end of a step with this number of real tokens."""
        self.steps += 1
        if self.steps > self.warmup:
            self.tokens += tokens
        elif self.steps == self.warmup:
            self._wait()
            self.start_time = time.perf_counter()

    def result(self) -> dict[str, float]:
        """Return the speed and memory of all steps after the warm-up."""
        self._wait()
        rate = self.tokens / (time.perf_counter() - self.start_time)
        if self.device == "cuda":
            memory = torch.cuda.max_memory_allocated()
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {
            "tokens_per_second": rate,
            "memory": memory,
            "tokens_per_step": self.tokens / (self.steps - self.warmup),
        }

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

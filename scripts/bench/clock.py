"""Real tokens a second from step ``warmup`` on, and the most memory that was in use."""

from __future__ import annotations

import resource
import sys
import time

import torch


class Clock:
    """Told of every step.

    Args:
        warmup: steps that are not timed.
        device: where training runs; a GPU is waited for at both ends of the timed stretch.
    """

    def __init__(self, *, warmup: int, device: str) -> None:
        self.warmup, self.device = warmup, device
        self.steps = self.tokens = 0
        self.began = 0.0

    def step(self, tokens: int) -> None:
        """A step of so many real tokens has ended."""
        self.steps += 1
        if self.steps > self.warmup:
            self.tokens += tokens
        elif self.steps == self.warmup:
            self._wait()
            self.began = time.perf_counter()

    def result(self) -> dict[str, float]:
        """Of all steps since the warm-up."""
        self._wait()
        rate = self.tokens / (time.perf_counter() - self.began)
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

"""The cost of training on a task: trained parameters, memory and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.scores import number
from lmtransfer.system.units import count, duration, memory


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one training run; None where unknown.

    Attributes:
        num_trained: number of trained parameters.
        share: the trained share of all parameters of encoder and head.
        peak_memory: peak memory in bytes, the maximum over all seeds.
        seconds: duration of training one seed.
    """

    num_trained: float | None = None
    share: float | None = None
    peak_memory: float | None = None
    seconds: float | None = None

    @property
    def share_text(self) -> str:
        """The share in percent: ``<0.01 %``, ``0.4 %``, ``100 %``."""
        if self.share is None:
            return ""
        if self.share >= 0.995:
            return "100 %"
        return f"{100 * self.share:.2g} %" if self.share >= 1e-4 else "<0.01 %"

    @property
    def memory_text(self) -> str:
        """The peak memory: ``612 MB``."""
        return "" if self.peak_memory is None else memory(self.peak_memory)

    @property
    def seconds_text(self) -> str:
        """The duration: ``45 s``."""
        return "" if self.seconds is None else duration(self.seconds)

    def values(self) -> dict[str, float]:
        """Return the known numbers, by name."""
        values = {
            "num_trained_parameters": self.num_trained,
            "peak_memory": self.peak_memory,
            "seconds_per_seed": self.seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def in_short(self) -> list[str]:
        """The known costs in short form: ``0.4 % trained``, ``612 MB``, ``45 s``."""
        trained = f"{self.share_text} trained" if self.share is not None else ""
        return [text for text in (trained, self.memory_text, self.seconds_text) if text]

    @property
    def in_full(self) -> list[str]:
        """The known costs with the number of trained parameters: ``13.1k (0.4 %) trained``, ``612 MB``, ``45 s``."""
        share = f" ({self.share_text})" if self.share is not None else ""
        trained = "" if self.num_trained is None else f"{count(self.num_trained)}{share} trained"
        return [text for text in (trained, self.memory_text, self.seconds_text) if text]


def cost_of(results: Sequence[Mapping[str, Any]]) -> RunCost:
    """Return the cost of a task's run.

    Args:
        results: the run's result, then those of its seeds.
    """

    def first(name: str) -> float | None:
        return next((value for result in results if (value := number(result.get(name))) is not None), None)

    trained, parameters, seconds = first("num_trained_parameters"), first("num_parameters"), first("seconds")
    seeds = next((result["n"] for result in results if number(result.get("n"))), 1)
    return RunCost(
        num_trained=trained,
        share=trained / parameters if trained is not None and parameters else None,
        peak_memory=first("peak_memory"),
        seconds=None if trained is None or seconds is None else seconds / seeds,
    )

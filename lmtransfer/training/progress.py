"""A single line of training progress, live on a terminal, or printed every few seconds if the output is a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from lmtransfer.training import process_group

_PLAIN_EVERY_SECONDS = 10.0


class ProgressLine:
    """A line on rank 0 with step, share of the budget, losses, learning rate, real tokens/s, memory and remaining time.

    Args:
        flops_per_token: training FLOP per token, used to show model FLOPs utilization (MFU); None hides it.
    """

    def __init__(
        self, *, quiet: bool = False, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        self.quiet = quiet or not process_group.is_main()
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.live: Any = None
        self.shown_at = -_PLAIN_EVERY_SECONDS

    def __enter__(self) -> Self:
        """Start the live line if the output is a terminal."""
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live("", console=Console(stderr=True), refresh_per_second=4, transient=False)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the live line, which stays on the screen."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def show(self, record: Mapping[str, Any], *, fraction: float, prepared: float = 0.0, last: bool = False) -> None:
        """Show the record of one step.

        Args:
            prepared: seconds before the first step, which the remaining time excludes.
            last: show the record in any case, because no step follows.
        """
        if self.quiet:
            return
        if self.live is not None:
            self.live.update(self.line(record, fraction=fraction, prepared=prepared))
        elif last or time.monotonic() - self.shown_at >= _PLAIN_EVERY_SECONDS:
            self.shown_at = time.monotonic()
            print(self.line(record, fraction=fraction, prepared=prepared), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print a separate line, above the live line."""
        if not process_group.is_main():
            return
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def line(self, record: Mapping[str, Any], *, fraction: float, prepared: float = 0.0) -> str:
        """Return the line that ``show`` prints for a record."""
        parts = [
            f"step {record['step']:,}",
            *([record["phase"]] if "phase" in record else []),
            f"{100 * fraction:.0f} %",
        ]
        parts.extend(_named(record, "loss/", total=record["loss"]))
        parts.extend(f"validation {part}" for part in _named(record, "validation/", total=None))
        parts.append(f"lr {record['learning_rate']:.2e}")
        rate = record["tokens_per_second"]
        parts.append(f"{rate:,.0f} tokens/s")
        if self.flops_per_token and self.peak_flops:
            parts.append(f"MFU {100 * rate * self.flops_per_token / self.peak_flops:.0f} %")
        parts.append(f"{_memory_in_use() / 1e9:.1f} GB")
        if 0 < fraction < 1:
            parts.append(f"{_duration((record['seconds'] - prepared) * (1 - fraction) / fraction)} left")
        return "  ".join(parts)


def _named(record: Mapping[str, Any], prefix: str, *, total: float | None) -> list[str]:
    """Format the numbers whose names have a prefix; their total comes first, unless it equals one of them."""
    numbers = {key.removeprefix(prefix): value for key, value in record.items() if key.startswith(prefix)}
    numbers = {name: value for name, value in numbers.items() if "/" not in name}  # losses on parts of the text
    total = numbers.pop("loss", total)
    if total is not None and total not in numbers.values():
        numbers = {"loss": total, **numbers}
    return [f"{name} {value:.3f}" for name, value in numbers.items()]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _memory_in_use() -> int:
    """Return the bytes of GPU memory reserved by this process, or the memory of the process if no GPU is in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, the only system without /proc here

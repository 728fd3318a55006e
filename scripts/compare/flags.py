"""The peer's flags, its runs in their own processes, and the choice of the fastest flags."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from environments import environment

from .outcome import Outcome

MARK = "measured: "


@dataclass(frozen=True)
class Flags:
    """The speed settings that are tried; bf16, if the hardware has it, and fused AdamW are always set.

    Attributes:
        attention: ``attn_implementation``.
        grouped: whether batches have rows of similar length; otherwise random, padded to the longest row of each batch.
        compiled: ``torch_compile``.
    """

    attention: str = "sdpa"
    grouped: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        batches = "batches of like length" if self.grouped else "random batches"
        return f"{self.attention}, {batches}" + (", torch_compile" if self.compiled else "")


def trained(words: Sequence[str], *, folder: Path, flags: Flags) -> Outcome:
    """Train and evaluate the peer.

    Raises:
        SystemExit: the run failed.
    """
    try:
        result = _measured(words, folder=folder, flags=flags)
    except RuntimeError as error:
        raise SystemExit(f"transformers.Trainer, {flags}: {error}") from error
    return Outcome(accuracy=result["accuracy"], tokens=result["tokens"], seconds=result["seconds"])


def best_flags(words: Sequence[str], *, folder: Path, num_steps: int, trial: int = 40) -> list[Flags]:
    """The flags with the shortest estimated time of a whole run, from the first steps of a run with each combination.

    One-time costs such as compilation fall into the first half of the trial and are counted once.

    Args:
        words: overrides of our command.
        folder: the published checkpoint.
        num_steps: steps of a whole run.
        trial: steps of a trial.

    Returns:
        The best flags with random batches, and the best flags with batches of similar length.

    Raises:
        SystemExit: no combination ran.
    """
    best = []
    for grouped in (False, True):
        whole: dict[Flags, float] = {}
        for attention in ("sdpa", "eager"):
            _attempt(Flags(attention=attention, grouped=grouped), whole, words, folder, num_steps, trial)
        if not whole:
            raise SystemExit("transformers.Trainer did not run at all; is the extra `bench` installed?")
        fastest = min(whole, key=lambda flags: whole[flags])
        _attempt(replace(fastest, compiled=True), whole, words, folder, num_steps, trial)
        best.append(min(whole, key=lambda flags: whole[flags]))
    return best


def _attempt(
    flags: Flags, whole: dict[Flags, float], words: Sequence[str], folder: Path, num_steps: int, trial: int
) -> None:
    """Store in ``whole`` the estimated seconds of a run with ``flags``, if it runs at all."""
    try:
        ended = _measured(words, folder=folder, flags=flags, max_steps=trial)["ended"]
    except RuntimeError as error:  # the installed version does not support this combination
        print(f"  Trainer, {flags}: {error}", flush=True)
        return
    half = len(ended) // 2
    step = (ended[-1] - ended[half - 1]) / (len(ended) - half)
    whole[flags] = ended[half - 1] + step * max(num_steps - half, 0)
    print(f"  Trainer, {flags}: {1000 * step:.0f} ms a step, about {whole[flags]:.0f} s a run", flush=True)


def _measured(words: Sequence[str], *, folder: Path, flags: Flags, max_steps: int | None = None) -> dict[str, Any]:
    """The peer's result, from its own process.

    Raises:
        RuntimeError: it failed; with the last line of its output.
    """
    asked = {"words": list(words), "folder": str(folder), "flags": asdict(flags), "max_steps": max_steps}
    done = subprocess.run(
        [sys.executable, "-m", "compare.peer", json.dumps(asked)],
        cwd=Path(__file__).resolve().parents[1],
        env=environment(ours=False),
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    result: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
    return result

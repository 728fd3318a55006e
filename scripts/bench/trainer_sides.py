"""Both sides of the comparison with transformers.Trainer: their runs, the peer's fastest flags, and the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmtransfer.data.files import find_file, open_binary
from lmtransfer.randomness import permutation
from lmtransfer.verdicts.conditions import condition
from lmtransfer.verdicts.spread import spread
from lmtransfer.verdicts.verdict import compare_conditions

from .machine import environment

MARK = "measured: "


@dataclass(frozen=True)
class Flags:
    """The speed settings of a trial; fused AdamW is always set, and bf16 if the hardware supports it.

    Attributes:
        attention: ``attn_implementation``.
        grouped: whether batches have rows of similar length; otherwise they are random. Rows are padded to the longest
            row in each batch.
        compiled: ``torch_compile``.
    """

    attention: str = "sdpa"
    grouped: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        batches = "batches of similar length" if self.grouped else "random batches"
        return f"{self.attention}, {batches}" + (", torch_compile" if self.compiled else "")


@dataclass(frozen=True)
class Outcome:
    """The result of one training run.

    Attributes:
        accuracy: accuracy on the dev sentences, a fraction.
        tokens: number of real tokens in training.
        seconds: duration of training, from the start of the first step to the end of the last.
    """

    accuracy: float
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Real tokens per second."""
        return self.tokens / self.seconds

    def __str__(self) -> str:
        return f"{100 * self.accuracy:6.2f} %  {self.rate:8,.0f} tokens/s  {self.seconds:7.1f} s"


def run_finetuning(words: Sequence[str], *, root: Path, name: str) -> Outcome:
    """Run ``lmtransfer finetune`` and read the result that it writes to ``root``.

    Raises:
        SystemExit: the command failed; the message is its output.
    """
    command = ["finetune", *words, f"name={name}", f"output_root={root}"]
    process = subprocess.run(
        [sys.executable, "-m", "lmtransfer", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"lmtransfer {' '.join(command)}\n{process.stdout}{process.stderr}")
    result = json.loads((root / "finetune" / name / "result.json").read_text(encoding="utf-8"))
    return Outcome(accuracy=result["metrics"]["accuracy"], tokens=result["tokens"], seconds=result["seconds"])


def run_peer(words: Sequence[str], *, folder: Path, flags: Flags) -> Outcome:
    """Train and evaluate the peer.

    Raises:
        SystemExit: the run failed.
    """
    try:
        result = _measure_peer(words, folder=folder, flags=flags)
    except RuntimeError as error:
        raise SystemExit(f"transformers.Trainer, {flags}: {error}") from error
    return Outcome(accuracy=result["accuracy"], tokens=result["tokens"], seconds=result["seconds"])


def best_flags(words: Sequence[str], *, folder: Path, num_steps: int, trial: int = 40) -> list[Flags]:
    """Find the flags with the shortest estimated time for a whole run, by a trial of each combination.

    One-time costs such as compilation occur in the first half of the trial and are counted once.

    Args:
        words: overrides of our command.
        folder: the published checkpoint.
        num_steps: number of steps in a whole run.
        trial: number of steps in a trial.

    Returns:
        The best flags with random batches, and the best flags with batches of similar length.

    Raises:
        SystemExit: no combination ran.
    """
    best = []
    for grouped in (False, True):
        estimates: dict[Flags, float] = {}
        for attention in ("sdpa", "eager"):
            _estimate(Flags(attention=attention, grouped=grouped), estimates, words, folder, num_steps, trial)
        if not estimates:
            raise SystemExit("transformers.Trainer did not run with any flags; install the extra `bench`")
        fastest = min(estimates, key=lambda flags: estimates[flags])
        _estimate(replace(fastest, compiled=True), estimates, words, folder, num_steps, trial)
        best.append(min(estimates, key=lambda flags: estimates[flags]))
    return best


def _estimate(
    flags: Flags, estimates: dict[Flags, float], words: Sequence[str], folder: Path, num_steps: int, trial: int
) -> None:
    """Store the estimated seconds of a run with ``flags`` in ``estimates``, if the Trainer runs with them."""
    try:
        ended = _measure_peer(words, folder=folder, flags=flags, max_steps=trial)["ended"]
    except RuntimeError as error:  # the installed version does not support this combination
        print(f"  Trainer, {flags}: {error}", flush=True)
        return
    half = len(ended) // 2
    step = (ended[-1] - ended[half - 1]) / (len(ended) - half)
    estimates[flags] = ended[half - 1] + step * max(num_steps - half, 0)
    print(f"  Trainer, {flags}: {1000 * step:.0f} ms per step, about {estimates[flags]:.0f} s per run", flush=True)


def _measure_peer(words: Sequence[str], *, folder: Path, flags: Flags, max_steps: int | None = None) -> dict[str, Any]:
    """Run the peer in its own process and return the result.

    Raises:
        RuntimeError: the process failed; the message is the last line of its output.
    """
    run = {"words": list(words), "folder": str(folder), "flags": asdict(flags), "max_steps": max_steps}
    process = subprocess.run(
        [sys.executable, "-m", "scripts.bench.trainer_peer", json.dumps(run)],
        cwd=Path(__file__).resolve().parents[2],
        env=environment(ours=False),
        capture_output=True,
        text=True,
        check=False,
    )
    results = [line for line in process.stdout.splitlines() if line.startswith(MARK)]
    if process.returncode or not results:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {process.returncode}")
    result: dict[str, Any] = json.loads(results[-1].removeprefix(MARK))
    return result


def table(sides: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Format the means over seeds, then the first side's lead over each other side, with its 95 % interval."""
    lines = [f"{'':40} {'accuracy':>9} {'deviation':>10} {'tokens/s':>9} {'seconds':>8}   seed by seed"]
    for name, outcomes in sides.items():
        accuracy, rate = spread([100 * o.accuracy for o in outcomes]), spread([o.rate for o in outcomes])
        seconds = spread([o.seconds for o in outcomes])
        deviation = "-" if accuracy.deviation is None else f"{accuracy.deviation:.2f}"
        values = ", ".join(f"{100 * o.accuracy:.2f}" for o in outcomes)
        lines.append(f"{name:40} {accuracy.mean:9.2f} {deviation:>10} {rate.mean:9,.0f} {seconds.mean:8.1f}   {values}")
    (_, ours), *others = sides.items()
    for name, theirs in others:
        difference = compare_conditions(
            *(condition([100 * outcome.accuracy for outcome in side]) for side in (ours, theirs))
        )
        if difference.interval is None:
            verdict = "one seed: no interval"
        else:
            low, high = difference.interval
            verdict = f"95 % interval {low:+.2f} to {high:+.2f}: {difference.verdict}"
        ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
        mean = sum(o.rate for o in ours) / sum(o.rate for o in theirs)
        lines.append(
            f"against {name}: {difference.delta:+.2f} points ({verdict}); "
            f"speed {mean:.2f} x (turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    return lines


def write_part(source: Path, target: Path, *, num_questions: int) -> int:
    """Write random whole paragraphs, the same in every run, until there are enough questions.

    Args:
        source: file in SQuAD's format; the file on disk may also have the ending .gz, .xz or .zst.
        target: file to write.
        num_questions: minimum number of questions, if the source has as many.

    Returns:
        The number of questions written.

    Raises:
        SystemExit: the source does not exist.
    """
    path = find_file(source)
    if path is None:
        raise SystemExit(f"the file {source} does not exist; set its folder with --data or LMTRANSFER_DATA")
    with open_binary(path) as file:
        articles = json.load(file)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    selection, count = [], 0
    for place in permutation(len(paragraphs), 0, "questions"):
        if count >= num_questions:
            break
        selection.append(paragraphs[place])
        count += len(selection[-1]["qas"])
    target.parent.mkdir(parents=True, exist_ok=True)
    data = [{"title": "part", "paragraphs": selection}]
    target.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return count

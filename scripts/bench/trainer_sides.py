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
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import condition
from lmtransfer.verdicts.spread import spread

from .machine import environment

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


@dataclass(frozen=True)
class Outcome:
    """The result of one training run.

    Attributes:
        accuracy: accuracy on the dev sentences, a fraction.
        tokens: real tokens trained on.
        seconds: duration of training, from before the first step to the end of the last.
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


def finetuned(words: Sequence[str], *, root: Path, name: str) -> Outcome:
    """Run ``lmtransfer finetune`` and read the result that it writes below ``root``.

    Raises:
        SystemExit: it failed; with its output.
    """
    whole = ["finetune", *words, f"name={name}", f"output_root={root}"]
    done = subprocess.run(
        [sys.executable, "-m", "lmtransfer", *whole],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"lmtransfer {' '.join(whole)}\n{done.stdout}{done.stderr}")
    result = json.loads((root / "finetune" / name / "result.json").read_text(encoding="utf-8"))
    return Outcome(accuracy=result["metrics"]["accuracy"], tokens=result["tokens"], seconds=result["seconds"])


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
        [sys.executable, "-m", "scripts.bench.trainer_peer", json.dumps(asked)],
        cwd=Path(__file__).resolve().parents[2],
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


def table(sides: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """The means over the seeds, then the lead of the first side over each other side, with its 95 % interval."""
    lines = [f"{'':40} {'accuracy':>9} {'deviation':>10} {'tokens/s':>9} {'seconds':>8}   seed by seed"]
    for name, outcomes in sides.items():
        accuracy, rate = spread([100 * o.accuracy for o in outcomes]), spread([o.rate for o in outcomes])
        seconds = spread([o.seconds for o in outcomes])
        shown = "-" if accuracy.deviation is None else f"{accuracy.deviation:.2f}"
        each = ", ".join(f"{100 * o.accuracy:.2f}" for o in outcomes)
        lines.append(f"{name:40} {accuracy.mean:9.2f} {shown:>10} {rate.mean:9,.0f} {seconds.mean:8.1f}   {each}")
    (_, ours), *others = sides.items()
    for name, theirs in others:
        found = compare_conditions(
            *(condition([100 * outcome.accuracy for outcome in side]) for side in (ours, theirs))
        )
        if found.interval is None:
            said = "one seed: no interval"
        else:
            low, high = found.interval
            said = f"95 % interval {low:+.2f} to {high:+.2f}: {found.verdict}"
        ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
        mean = sum(o.rate for o in ours) / sum(o.rate for o in theirs)
        lines.append(
            f"against {name}: {found.delta:+.2f} points ({said}); "
            f"speed {mean:.2f} x (turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    return lines


def write_part(source: Path, target: Path, *, num_questions: int) -> int:
    """Write whole paragraphs, drawn at random but always the same ones, until there are enough questions.

    Args:
        source: file in SQuAD's format; on disk its name may end in .gz, .xz or .zst.
        target: file to write.
        num_questions: the lowest number of questions, if the source has that many.

    Returns:
        The number of questions written.

    Raises:
        SystemExit: the source does not exist.
    """
    found = find_file(source)
    if found is None:
        raise SystemExit(f"no file {source}: give the folder that holds it by --data or LMTRANSFER_DATA")
    with open_binary(found) as file:
        articles = json.load(file)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    chosen, count = [], 0
    for place in permutation(len(paragraphs), 0, "questions"):
        if count >= num_questions:
            break
        chosen.append(paragraphs[place])
        count += len(chosen[-1]["qas"])
    target.parent.mkdir(parents=True, exist_ok=True)
    data = [{"title": "part", "paragraphs": chosen}]
    target.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return count

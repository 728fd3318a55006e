"""Measures the duration of a training step, alone and beside a busy process, by the spin count of waiting threads.

    python -m scripts.bench.waiting                          our setting, the runtime's default, and counts between them
    python -m scripts.bench.waiting --avx2 --counts 0,1000   use this CPU as if it had only AVX2

The step is that of the demonstration's pretraining (BERT 3 x 192, 2,048 tokens, Muon). Each measurement runs in its own
process; measurements alone and beside the busy process alternate, and medians are reported. Run nothing else at the
same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ..steps import run_script
from .machine import AVX2, busy_process, environment, processor

#: Number of steps that are not timed, in which kernels and buffers are allocated.
WARMUP = 8


def main() -> None:
    """Print each measurement, then a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--counts", default="default,0,100,300,1000,2000,3000,10000,one", help="values of GOMP_SPINCOUNT"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of alternations")
    parser.add_argument("--steps", type=int, default=30, help="steps per measurement; the first eight are not timed")
    parser.add_argument("--avx2", action="store_true", help="use this processor as if it had only AVX2")
    options = parser.parse_args()
    variables = dict(AVX2) if options.avx2 else {}
    durations: dict[str, list[tuple[float, float]]] = {count: [] for count in options.counts.split(",")}
    for _ in range(options.rounds):
        for count, times in durations.items():
            alone = step_milliseconds(count, options.steps, variables)
            with busy_process():
                beside = step_milliseconds(count, options.steps, variables)
            times.append((alone, beside))
            print(f"{count:>8}: {alone:6.0f} ms alone, {beside:6.0f} beside", flush=True)
    print(f"\n{processor('cpu')}{', used as AVX2' if options.avx2 else ''}, {os.cpu_count()} cores, medians over")
    print(f"{options.rounds} alternations\n{'spins':>8}{'alone, ms':>12}{'beside, ms':>12}{'beside / alone':>16}")
    for count, times in durations.items():
        alone, beside = (statistics.median(side) for side in zip(*times, strict=True))
        print(f"{count:>8}{alone:12.0f}{beside:12.0f}{beside / alone:16.2f}")


def step_milliseconds(count: str, steps: int, cpu_variables: dict[str, str]) -> float:
    """Return the mean duration of a step in a short run.

    Args:
        count: spin count of the waiting loop; ``default`` for the runtime's default, ``one`` to train with one thread.
        steps: number of steps, including the warm-up.
        cpu_variables: variables that hide features of the CPU.
    """
    variables = environment(ours=False, **cpu_variables)
    if count not in ("default", "one"):
        variables["GOMP_SPINCOUNT"] = count
    words = [
        "experiment=demo",
        "tokenizer.vocab_size=4096",
        "embeddings=counted",
        "train.tokens=null",
        f"train.steps={steps}",
        "train.eval_every=null",
        "train.eval_tokens=128",
        "train.log_every=1",
        f"hardware.threads={1 if count == 'one' else 'null'}",
    ]
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "lmtransfer", "pretrain", *words, "name=step", f"output_root={root}"]
        process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(process.stderr)
        lines = (Path(root) / "pretrain/step/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines[WARMUP:]]
    return 1000 * (seconds[-1] - seconds[0]) / (len(seconds) - 1)


if __name__ == "__main__":
    run_script(main)

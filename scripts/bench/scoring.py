"""Compares the speed of BLiMP's scoring in lmtransfer and in the BabyLM challenge's own pipeline.

    python -m scripts.bench.scoring --pipeline babylm-eval/strict --run runs/pretrain/<name> --data <folder of blimp>

``--pipeline`` is the folder ``strict`` of a copy of https://github.com/babylm-org/babylm-eval, ``--data`` a folder of
BLiMP's JSONL files. Both sides read the same first items of each file and the same weights (ours from the run, theirs
from its export), in float32, with the same number of threads. Whole commands are timed, start-up included, in turns.
The pipeline runs once for each batch size; the best one counts. The last lines say how often both sides choose the
same sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from lmtransfer.system.cores import usable_cores

from ..steps import run_script
from .machine import processor


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a command, and processor seconds of it and its children."""

    wall: float
    processor: float


def main() -> None:
    """Run both sides and print their times, the ratio and the number of equal choices."""
    options = _options()
    print(f"{processor('cpu')}, {options.threads} threads, torch {torch.__version__}, {options.items} items a file")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _first_items(options.data, folder / "blimp", options.items)
        ours = [sys.executable, "-P", "-m", "lmtransfer"]
        _timed([*ours, "export", f"run={options.run}", f"to={folder / 'model'}"], folder, options.threads)
        score = [*ours, "evaluate", f"run={options.run}", "task=blimp", f"data_root={folder}", "hardware=exact"]
        score += [f"hardware.threads={options.threads}", f"output_root={folder}/runs", "name=blimp", "overwrite=true"]
        theirs = [sys.executable, "-m", "evaluation_pipeline.sentence_zero_shot.run", "--task", "blimp"]
        theirs += ["--backend", options.backend, "--data_path", str(folder / "blimp"), "--save_predictions"]
        theirs += ["--model_path_or_name", str(folder / "model"), "--output_dir", str(folder / "theirs")]
        best: dict[str, Time] = {}
        for turn in range(options.turns):
            print(f"turn {turn + 1}")
            _keep_best(best, "lmtransfer", _timed(score, folder, options.threads))
            for size in options.batch_sizes:
                sizes = ["--batch_size", str(size), "--non_causal_batch_size", str(size)]
                time_of = _timed([*theirs, *sizes], options.pipeline, options.threads)
                _keep_best(best, f"pipeline, batches of {size}", time_of)
        mine = best.pop("lmtransfer")
        fastest = min(best.values(), key=lambda one: one.wall)
        print(
            f"ratio {fastest.wall / mine.wall:.1f} by time, {fastest.processor / mine.processor:.1f} by processor time"
        )
        print(_agreement(folder, options.backend, files))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pipeline", type=Path, required=True, help="folder strict of the challenge's pipeline")
    parser.add_argument("--run", type=lambda word: Path(word).absolute(), required=True, help="a pretraining run")
    parser.add_argument("--data", type=Path, required=True, help="folder of BLiMP's JSONL files")
    parser.add_argument("--backend", choices=["mlm", "causal"], default="mlm")
    parser.add_argument("--items", type=int, default=200, help="items of each file")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--turns", type=int, default=1)
    return parser.parse_args()


def _first_items(source: Path, folder: Path, num_items: int) -> list[str]:
    folder.mkdir()
    for path in source.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()[:num_items]
        (folder / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sorted(path.stem for path in folder.iterdir())


def _timed(command: list[str], folder: Path, threads: int) -> Time:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Time(time.monotonic() - start, used)


def _keep_best(best: dict[str, Time], name: str, new: Time) -> None:
    print(f"  {name:26} {new.wall:7.1f} s, {new.processor:7.1f} s of processor", flush=True)
    best[name] = min(best.get(name, new), new, key=lambda one: one.wall)


def _agreement(folder: Path, backend: str, files: list[str]) -> str:
    lines = (folder / "runs/evaluate/blimp/choices.jsonl").read_text(encoding="utf-8").splitlines()
    ours = [json.loads(line) for line in lines]
    [path] = (folder / "theirs").glob(f"*/main/zero_shot/{backend}/blimp/blimp/predictions.json")
    predictions = json.loads(path.read_text(encoding="utf-8"))
    theirs = [one["pred"].strip() for name in files for one in predictions[name]["predictions"]]
    chosen = [one["completions"][one["chosen"]].strip() for one in sorted(ours, key=lambda one: one["subset"])]
    same = sum(left == right for left, right in zip(theirs, chosen, strict=True))
    return f"the same sentence in {same} of {len(chosen)} items"


if __name__ == "__main__":
    run_script(main)

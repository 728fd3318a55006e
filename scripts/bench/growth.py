"""Measures how time, memory and disk grow with the size of the input: whole commands on made-up text and small models.

Each command runs with three sizes, in a fresh process each time. Time should grow at most linearly: ``growth`` is the
seconds for each further item between the second and the third size, divided by those between the first and the second.
Memory and disk are those of the command's processes and of what it wrote. The exit status is 1 if the growth of a
command exceeds 1.5, or if the memory of a command that reads its input in parts grows between the last two sizes.

    python -m scripts.bench.growth                     all commands, in about twenty minutes
    python -m scripts.bench.growth report predict      some of them
    python -m scripts.bench.growth --scale 0.1         a tenth of the sizes, to try the script
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ..steps import run_script
from .machine import processor
from .made_up import sentences, text_file

#: Larger growth is a fault; differences of less than ``_NOISE`` seconds are not.
_MOST_GROWTH = 1.5
_NOISE = 3.0
#: Largest ratio of the memory for the third size to that for the second, if a command reads its input in parts.
_MOST_MEMORY = 1.2
_SMALL = ("model=bert_laptop", "model.dim=64", "model.num_heads=2", "model.num_layers=2", "tokenizer.vocab_size=4000")
_TASK = "task=text_classification"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command: seconds, the peak resident bytes of its processes, and the bytes that it wrote."""

    seconds: float
    memory: int
    disk: int


@dataclass(frozen=True, slots=True)
class Case:
    """A command whose input grows.

    Attributes:
        unit: what is counted.
        sizes: three sizes, smallest first.
        words: writes an input of a size and returns the words of the command, and the file or folder it writes.
        is_flat: whether the command reads its input in parts, so that its memory must not grow.
    """

    unit: str
    sizes: tuple[int, int, int]
    words: Callable[[int], tuple[Sequence[str], Path]]
    is_flat: bool = False


def main() -> int:
    """Measure the commands and return 1 if the time of one grows faster than its input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="names of commands; default: all")
    parser.add_argument("--scale", type=float, default=1, help="factor of all sizes")
    arguments = parser.parse_args()
    print(f"{processor('cpu')}, {os.cpu_count()} cores")
    print(f"{'command':<10} {'size':>9} {'unit':<9} {'seconds':>8} {'memory MB':>9} {'disk MB':>8} {'growth':>6}")
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["LMTRANSFER_CACHE"] = str(Path(name) / "cache")
        cases = _cases()
        for command in arguments.commands or cases:
            case = cases[command]
            sizes = [max(1, round(size * arguments.scale)) for size in case.sizes]
            costs = [_measure(*case.words(size)) for size in sizes]
            growth = _growth(sizes, [cost.seconds for cost in costs])
            faults += growth > _MOST_GROWTH or (case.is_flat and costs[2].memory > _MOST_MEMORY * costs[1].memory)
            for size, cost in zip(sizes, costs, strict=True):
                last = f"{growth:>6.2f}" if cost is costs[-1] else ""
                print(
                    f"{command:<10} {size:>9,} {case.unit:<9} {cost.seconds:>8.1f} {cost.memory / 1e6:>9.0f} "
                    f"{cost.disk / 1e6:>8.1f} {last}",
                    flush=True,
                )
    return int(faults > 0)


def _growth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    before, after = seconds[1] - seconds[0], seconds[2] - seconds[1]
    if after < _NOISE:
        return 0.0
    return (after / (sizes[2] - sizes[1])) / (max(before, _NOISE / 2) / (sizes[1] - sizes[0]))


def _cases() -> dict[str, Case]:
    texts = (1_000, 10_000, 100_000)
    documents = (5_000, 20_000, 80_000)  # 8, 33 and 130 MB
    return {
        "prepare": Case("documents", documents, _prepare, is_flat=True),
        "open mlm": Case("documents", documents, lambda size: _open(size, "objective=mlm")),
        "open nsp": Case("documents", documents, lambda size: _open(size, "objective=mlm_nsp")),
        "finetune": Case("examples", (6_000, 25_000, 100_000), _finetune),
        "predict": Case(
            "texts", texts, lambda size: _infer(size, "predict", _finetuned(), "answers.jsonl"), is_flat=True
        ),
        "embed": Case("texts", texts, lambda size: _infer(size, "embed", _pretrained(), "vectors.npy"), is_flat=True),
        "blimp": Case("pairs", (1_000, 4_000, 16_000), _blimp),
        "report": Case("runs", (30, 300, 1_000), _report),
    }


def _prepare(count: int) -> tuple[list[str], Path]:
    cache = Path(f"cache-{count}")
    words = ["prepare", "corpus=text", f"corpus.path={text_file(count)}", f"cache_dir={cache}"]
    sample = "tokenizer.max_characters=1_000_000"  # the sample that a vocabulary is trained on is kept in memory
    return [*words, "tokenizer=wordpiece", "tokenizer.vocab_size=4000", sample], cache


def _open(count: int, objective: str) -> tuple[list[str], Path]:
    """Return a pretraining run of one step, on text that was prepared before."""
    words, cache = _prepare(count)
    if not cache.exists():
        _run(words)
    run = Path(f"opened-{count}")
    shutil.rmtree(run, ignore_errors=True)
    words = ["pretrain", *words[1:], *_SMALL[:-1], objective, "embeddings=null", "train.steps=1"]
    return [*words, f"output_root={run}", "name=run"], run


def _labels(path: str, count: int) -> Path:
    rng, file = np.random.default_rng(1), Path(path)
    labels = rng.choice(["yes", "no", "maybe"], count)
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(sentences(count, seed=1), labels, strict=True))
    file.write_text(f"text\tlabel\n{rows}")
    return file


def _finetune(count: int) -> tuple[list[str], Path]:
    """Return a finetuning run of one step."""
    folder = Path(f"finetuned-{count}")
    data = [_TASK, f"task.train={_labels('train.tsv', count)}", f"task.dev={_labels('dev.tsv', 100)}"]
    options = ["train.steps=1", "baseline=false", f"output_root={folder}", "name=run"]
    return ["finetune", f"init={_pretrained()}", *data, *options], folder


def _infer(count: int, command: str, run: Path, output: str) -> tuple[list[str], Path]:
    texts = Path(f"{count}.txt")
    texts.write_text("\n".join(sentences(count, seed=2)) + "\n")
    result = Path(f"{count}-{output}")
    return [command, f"run={run}", f"input={texts}", f"output={result}"], result


def _blimp(count: int) -> tuple[list[str], Path]:
    folder = Path(f"data-{count}") / "blimp"
    folder.mkdir(parents=True, exist_ok=True)
    texts = sentences(2 * count, seed=3)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    lines = [
        {"sentence_good": good, "sentence_bad": bad, "UID": "made_up", "field": "syntax", "linguistics_term": "none"}
        | {"pairID": str(number), "lexically_identical": False, "one_prefix_method": False, "two_prefix_method": False}
        | {"simple_LM_method": True}
        for number, (good, bad) in enumerate(pairs)
    ]
    (folder / "made_up.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = Path(f"blimp-{count}")
    words = ["evaluate", f"run={_pretrained()}", "task=blimp", f"data_root={folder.parent}", f"output_root={run}"]
    return [*words, "name=run"], run


def _report(count: int) -> tuple[list[str], Path]:
    """Return the report on runs that are copies of one, with other scores, each with two seeds and a control."""
    root, source = Path(f"runs-{count}"), _finetuned()
    shutil.rmtree(root, ignore_errors=True)
    leave_out = shutil.ignore_patterns("checkpoints", "tokenizer", ".lock")
    shutil.copytree(_pretrained(), root / "pretrain" / "small", ignore=leave_out)
    rng = np.random.default_rng(4)
    for number in range(count):
        run = root / "finetune" / f"run{number}"
        shutil.copytree(source, run, ignore=leave_out)
        for path in run.rglob("result.json"):
            result = _shift(json.loads(path.read_text()), rng.uniform(-0.2, 0.2))
            path.write_text(json.dumps(result).replace(str(source), str(run)))
    return ["report", f"runs={root}"], root / "report"


def _shift(node: Any, shift: float) -> Any:
    """Add a number to every accuracy in a result."""
    if isinstance(node, dict):
        return {
            name: min(1.0, max(0.0, value + shift)) if name == "accuracy" else _shift(value, shift)
            for name, value in node.items()
        }
    return [_shift(value, shift) for value in node] if isinstance(node, list) else node


def _pretrained() -> Path:
    run = Path("runs/pretrain/small")
    if not run.exists():
        text = ["corpus=text", f"corpus.path={text_file(1_000)}"]
        _run(["pretrain", *text, *_SMALL, "train.steps=50", "name=small"])
    return run


def _finetuned() -> Path:
    run = Path("runs/finetune/small")
    if not run.exists():
        data = [_TASK, f"task.train={_labels('small.tsv', 300)}", f"task.dev={_labels('small-dev.tsv', 200)}"]
        options = ["train.steps=20", "seeds=2", "control=true", "name=small"]
        _run(["finetune", f"init={_pretrained()}", *data, *options])
    return run


def _run(words: Sequence[str]) -> None:
    subprocess.run(_command(words), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "lmtransfer", *words]


def _measure(words: Sequence[str], output: Path) -> Cost:
    start = time.perf_counter()
    process = subprocess.Popen(_command(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    whole, memory = psutil.Process(process.pid), 0
    while process.poll() is None:
        memory = max(memory, _resident(whole))
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"lmtransfer {' '.join(words)}: exit status {process.returncode}")
    files = [output] if output.is_file() else output.rglob("*")
    return Cost(seconds, memory, sum(file.stat().st_size for file in files if file.is_file()))


def _resident(process: psutil.Process) -> int:
    """Return the resident bytes of a process and its children; memory that they share counts for each of them."""
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_info().rss
    except psutil.NoSuchProcess:  # the process ended before it was read
        return 0
    return total


if __name__ == "__main__":
    run_script(main)

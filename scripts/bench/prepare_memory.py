"""Prepares a corpus and another that is ten times larger, each in a fresh process, and prints the peak memory of both.

The memory is the sum of the resident memory of the main process and its workers, sampled every 20 ms; memory that
several processes share is counted once for each process. The exit status is 1 if the larger corpus needs more than 1.2
times as much. (A corpus of about 2 MB is a single block, for which no worker starts, so use at least 8 MB.)

    python -m scripts.bench.prepare_memory                     8 MB and 80 MB of made-up text, 2 workers
    python -m scripts.bench.prepare_memory --megabytes 50      50 MB and 500 MB
    python -m scripts.bench.prepare_memory --text my/book.txt  a text of your own, repeated with a number in each line
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from ..steps import run_script

_TOLERANCE = 1.2
_CHILD = """
import sys
from pathlib import Path
from lmtransfer.data.token_cache import prepare
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.tokenizers.load import load_tokenizer

if __name__ == "__main__":
    path, tokenizer, cache_dir, workers = sys.argv[1:]
    corpus = FileCorpus(path=path, name="measured", split_unit="document", cache_dir=cache_dir)
    prepared = prepare(corpus, load_tokenizer(Path(tokenizer)), cache_dir=cache_dir, num_workers=int(workers))
    statistics = prepared.statistics
    print(statistics.documents, statistics.tokens, statistics.seconds)
"""


def main() -> int:
    """Measure, print, and return 1 if memory grows with the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=8.0, help="size of the smaller corpus")
    parser.add_argument("--text", type=Path, help="a text file to repeat; default: made-up text")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = (arguments.megabytes, 10 * arguments.megabytes)
        paths = [_write(folder / f"{size:g}mb.txt", int(size * 1e6), arguments.text) for size in sizes]
        _train_tokenizer(paths[0], folder / "tokenizer")
        (folder / "child.py").write_text(_CHILD, encoding="utf-8")
        peaks = []
        header = f"{'text':>9}  {'documents':>9}  {'tokens':>12}  {'seconds':>7}  {'peak memory':>11}"
        print(f"{header}   ({arguments.workers} workers)")
        for path in paths:
            documents, tokens, seconds, peak = _measure(folder, path, arguments.workers)
            peaks.append(peak)
            print(
                f"{path.stat().st_size / 1e6:>6.1f} MB  {documents:>9,}  {tokens:>12,}  {seconds:>7.1f}  "
                f"{peak / 1e6:>8.1f} MB"
            )
        ratio = peaks[1] / peaks[0]
        print(f"ten times the corpus, {ratio:.2f} times the memory")
        return int(ratio > _TOLERANCE)


def _write(path: Path, size: int, text: Path | None) -> Path:
    """Write documents of a few hundred words, all different, up to ``size`` bytes."""
    rng = np.random.default_rng(0)
    paragraphs = text.read_text(encoding="utf-8").split("\n") if text else _made_up(rng)
    with path.open("w", encoding="utf-8") as file:
        number = 0
        while file.tell() < size:
            number += 1
            places = rng.integers(0, len(paragraphs), 6)
            file.write("\n".join(f"{paragraphs[i]} Number {number}." for i in places) + "\n\n")
    return path


def _made_up(rng: np.random.Generator) -> list[str]:
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(5000)]
    frequencies = 1 / np.arange(1, len(words) + 1)
    frequencies /= frequencies.sum()
    return [
        " ".join(
            " ".join(words[i] for i in rng.choice(len(words), rng.integers(5, 25), p=frequencies)).capitalize() + "."
            for _ in range(4)
        )
        for _ in range(2000)
    ]


def _train_tokenizer(path: Path, folder: Path) -> None:
    from lmtransfer.tokenizers.trainers import SentencePieceTrainer

    trainer = SentencePieceTrainer(kind="unigram", vocab_size=4096, max_characters=1_000_000, allow_fewer=True)
    with path.open(encoding="utf-8") as lines:
        trainer.train(iter(lines), folder)


def _measure(folder: Path, path: Path, workers: int) -> tuple[int, int, float, int]:
    """Return documents, tokens, seconds, and the peak resident bytes of the processes."""
    command = [sys.executable, str(folder / "child.py"), str(path), str(folder / "tokenizer"), str(folder / "cache")]
    process = subprocess.Popen([*command, str(workers)], stdout=subprocess.PIPE, text=True)
    main_process = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _resident(main_process))
        time.sleep(0.02)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    documents, tokens, seconds = output.split()
    return int(documents), int(tokens), float(seconds), peak


def _resident(process: psutil.Process) -> int:
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_info().rss
    except psutil.NoSuchProcess:  # the process ended before it was read
        return 0
    return total


if __name__ == "__main__":
    run_script(main)

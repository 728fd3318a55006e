"""Measures how long it takes to turn a corpus into token ids, here and with two common alternatives.

Each side runs in a fresh process, in alternating turns, with the same text, the same vocabulary and the same number of
processes. The time of imports is left out.

- ``prepare`` reads the file, splits it into sentences, starts its workers and writes its cache.
- ``datasets.map`` runs the fast tokenizer of ``transformers`` on the lines of the file, for the vocabularies of the
  ``tokenizers`` library. Its data set is built beforehand.
- sentencepiece encodes the lines of the file with its own threads, for its own vocabularies. The lines are in memory,
  and nothing is written.

    python -m scripts.bench.prepare_speed                  100 MB of made-up text, 2 processes
    python -m scripts.bench.prepare_speed my/corpus.txt    a text file of your own, with blank lines between documents
    python -m scripts.bench.prepare_speed --kinds wordpiece byte_bpe --rounds 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..steps import run_script
from .made_up import text_file

#: Bytes of a made-up document, about.
_DOCUMENT_BYTES = 1620
_KINDS = ("wordpiece", "byte_bpe", "unigram", "bpe")
_VOCABULARY_CHARACTERS = 5_000_000


def main() -> int:
    """Measure all kinds of tokenizers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a text file; default: made-up text")
    parser.add_argument("--megabytes", type=float, default=100, help="size of the made-up text")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each side")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side; the fastest counts")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS, help="tokenizers")
    parser.add_argument("--vocab-size", type=int, default=16384)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(*_SIDES[arguments.side](arguments))
        return 0
    path = arguments.text or text_file(round(arguments.megabytes * 1e6 / _DOCUMENT_BYTES))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {arguments.workers} processes, {os.cpu_count()} cores")
    print(f"{'tokenizer':<10} {'prepare s':>9} {'other s':>9} {'ratio':>6} {'tokens':>13} {'other tokens':>13}  other")
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            folder = Path(name) / kind
            _train(path, kind, arguments.vocab_size, folder)
            other = "sentencepiece" if kind in ("unigram", "bpe") else "datasets"
            results: dict[str, tuple[float, int]] = {}
            for _ in range(arguments.rounds):
                for side in ("prepare", other):
                    result = _run(side, path, folder, arguments.workers)
                    results[side] = min(result, results.get(side, result))
            (ours, our_tokens), (theirs, their_tokens) = results["prepare"], results[other]
            print(
                f"{kind:<10} {ours:>9.2f} {theirs:>9.2f} {theirs / ours:>6.2f} {our_tokens:>13,} {their_tokens:>13,}  "
                f"{other}",
                flush=True,
            )
    return 0


def _train(path: Path, kind: str, vocab_size: int, folder: Path) -> None:
    from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer, WordPieceTrainer

    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_characters": _VOCABULARY_CHARACTERS,
        "allow_fewer": True,
    }
    trainers: dict[str, Callable[[], Any]] = {
        "wordpiece": lambda: WordPieceTrainer(**settings),
        "byte_bpe": lambda: ByteBpeTrainer(**settings),
        "unigram": lambda: SentencePieceTrainer(kind="unigram", **settings),
        "bpe": lambda: SentencePieceTrainer(kind="bpe", **settings),
    }
    with path.open(encoding="utf-8") as lines:
        trainers[kind]().train(iter(lines), folder)


def _run(side: str, path: Path, folder: Path, workers: int) -> tuple[float, int]:
    """Return the seconds and the tokens of one turn."""
    command = [sys.executable, "-m", "scripts.bench.prepare_speed", str(path), "--workers", str(workers)]
    output = subprocess.run([*command, "--side", side, "--folder", str(folder)], check=True, stdout=subprocess.PIPE)
    seconds, tokens = output.stdout.split()[-2:]
    return float(seconds), int(tokens)


def _prepare(arguments: argparse.Namespace) -> tuple[float, int]:
    from lmtransfer.data.corpora.corpus import FileCorpus
    from lmtransfer.data.token_cache import prepare
    from lmtransfer.tokenizers.load import load_tokenizer

    tokenizer = load_tokenizer(arguments.folder)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as cache_dir:
        start = time.perf_counter()
        corpus = FileCorpus(path=str(arguments.text), split_unit="document", cache_dir=cache_dir)
        prepared = prepare(corpus, tokenizer, cache_dir=cache_dir, num_workers=arguments.workers)
        return time.perf_counter() - start, prepared.statistics.tokens


def _datasets(arguments: argparse.Namespace) -> tuple[float, int]:
    os.environ |= {"HF_DATASETS_CACHE": str(arguments.folder / "datasets"), "TOKENIZERS_PARALLELISM": "false"}
    import datasets
    from transformers import BertTokenizerFast, PreTrainedTokenizerFast

    from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
    from lmtransfer.tokenizers.load import load_tokenizer
    from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer

    tokenizer = load_tokenizer(arguments.folder)
    if isinstance(tokenizer, WordPieceTokenizer):
        names = {"pad_token": "[UNK]", "do_lower_case": tokenizer.lowercase}
        fast: Any = BertTokenizerFast(str(arguments.folder / tokenizer.model_file), **names)
    else:
        assert isinstance(tokenizer, ByteBpeTokenizer)
        fast = PreTrainedTokenizerFast(tokenizer_file=str(arguments.folder / tokenizer.model_file))

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {
            "input_ids": fast(
                batch["text"],
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        }

    datasets.disable_progress_bars()
    lines = datasets.load_dataset("text", data_files=str(arguments.text), split="train")
    start = time.perf_counter()
    encoded = lines.map(
        encode, batched=True, num_proc=arguments.workers, remove_columns=["text"], load_from_cache_file=False
    )
    seconds = time.perf_counter() - start
    tokens = sum(
        len(batch["input_ids"].combine_chunks().flatten()) for batch in encoded.with_format("arrow").iter(10000)
    )
    return seconds, tokens


def _sentencepiece(arguments: argparse.Namespace) -> tuple[float, int]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(arguments.folder / "spm.model"))
    lines = arguments.text.read_text(encoding="utf-8").split("\n")
    start = time.perf_counter()
    tokens = sum(map(len, processor.encode(lines, num_threads=arguments.workers)))
    return time.perf_counter() - start, tokens


_SIDES: dict[str, Callable[[argparse.Namespace], tuple[float, int]]] = {
    "prepare": _prepare,
    "datasets": _datasets,
    "sentencepiece": _sentencepiece,
}


if __name__ == "__main__":
    run_script(main)

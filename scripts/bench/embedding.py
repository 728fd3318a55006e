"""Compares how fast lmtransfer and transformers turn texts into vectors, with the same weights.

    python -m scripts.bench.embedding my/texts.txt                 the published MiniLM (6 x 384), one thread
    python -m scripts.bench.embedding my/texts.txt --model folder  a folder of transformers with a BERT of your own

Each line of the file is a text. Each side runs in a fresh process, in turns, and its time is that of the texts alone,
without start-up: tokenization, the encoder, and the mean over tokens. transformers sorts the texts by length, runs in
float32 and gets the best of three batch sizes; lmtransfer runs in float32 and in the precision that it chooses itself.
The last line says how far the vectors of both in float32 are apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..minilm import model_folder
from ..steps import run_script
from .machine import environment, processor

_BATCH_SIZES = (8, 32, 128)


def main() -> None:
    """Run all sides in turns and print their times."""
    options = _options()
    if options.side:
        texts = options.texts.read_text(encoding="utf-8").splitlines()[: options.count]
        kind, setting = options.side.split(":")
        vectors, seconds = (_ours if kind == "lmtransfer" else _theirs)(texts, options, setting)
        np.save(options.folder / f"{kind}-{setting}.npy", vectors)
        print(seconds)
        return
    print(f"{processor('cpu')}, {options.threads} threads, {options.count} texts, {options.model}")
    sides = ["lmtransfer:fp32", "lmtransfer:auto", *(f"transformers:{size}" for size in _BATCH_SIZES)]
    fastest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        options.folder = Path(name)
        for _ in range(options.turns):
            for side in sides:
                fastest[side] = min(_seconds(side, options), fastest.get(side, float("inf")))
        best = min(value for side, value in fastest.items() if side.startswith("transformers"))
        for side, value in fastest.items():
            print(f"{side:<18} {options.count / value:>8.1f} texts/s  {best / value:>5.2f} times transformers")
        ours, theirs = (np.load(options.folder / f"{side.replace(':', '-')}.npy") for side in (sides[0], sides[-1]))
        print(f"largest difference of a vector {np.linalg.norm(ours - theirs, axis=1).max():.1e}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="a file with one text in each line")
    parser.add_argument("--model", type=Path, help="a folder that transformers reads")
    parser.add_argument("--count", type=int, default=1000, help="number of texts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = options.model or model_folder()
    return options


def _seconds(side: str, options: argparse.Namespace) -> float:
    words = [sys.executable, "-m", "scripts.bench.embedding", str(options.texts), "--side", side]
    words += ["--folder", str(options.folder), "--model", str(options.model), "--count", str(options.count)]
    words += ["--threads", str(options.threads)]
    variables = environment(ours=side.startswith("lmtransfer"), OMP_NUM_THREADS=str(options.threads))
    output = subprocess.run(words, env=variables, check=True, stdout=subprocess.PIPE).stdout
    return float(output.split()[-1])


def _ours(texts: list[str], options: argparse.Namespace, precision: Any) -> tuple[np.ndarray, float]:
    import torch

    import lmtransfer

    torch.set_num_threads(options.threads)
    run = lmtransfer.load(f"hf:{options.model}", device="cpu", precision=precision)
    run.vectors(texts[:1], layers="last", pooling="mean")  # loads the modules
    start = time.perf_counter()
    return run.vectors(texts, layers="last", pooling="mean"), time.perf_counter() - start


def _theirs(texts: list[str], options: argparse.Namespace, batch_size: str) -> tuple[np.ndarray, float]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(options.threads)
    tokenizer, model = AutoTokenizer.from_pretrained(options.model), AutoModel.from_pretrained(options.model).eval()
    limit = model.config.max_position_embeddings
    start = time.perf_counter()
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    vectors = np.zeros((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), int(batch_size)):
            places = order[first : first + int(batch_size)]
            names = {"padding": True, "truncation": True, "max_length": limit, "return_tensors": "pt"}
            batch = tokenizer([texts[place] for place in places], **names)
            mask_BL1 = batch["attention_mask"][..., None]
            hidden_BLE = model(**batch).last_hidden_state
            vectors[places] = ((hidden_BLE * mask_BL1).sum(1) / mask_BL1.sum(1)).numpy()
    return vectors, time.perf_counter() - start


if __name__ == "__main__":
    run_script(main)

"""Measures how fast one process builds pretraining batches, in tokens per second, for every objective.

    python -m scripts.bench.batches                          all objectives, rows of 128 tokens, 32,768 tokens per batch
    python -m scripts.bench.batches --only mlm,rtd --length 512
    python -m scripts.bench.batches --json batches.json

Building batches takes no extra time if the workers build tokens as fast as the device reads them: the number of workers
needed is the device's tokens per second divided by the number in this table. Batches are built by one thread, from
Python's docstrings (or from made-up text if these are not installed), with 8,192 pieces. Each number is the median over
several batches. The exit status is 1 if an objective is slower than ``--least``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from lmtransfer.config import paths
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.launch.run_once import command_settings
from lmtransfer.objectives.learner import collect_output_positions
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.build import PretrainingParts, build_parts
from lmtransfer.pretraining.text import Text, read_training_text
from lmtransfer.tokenizers.base import characters_of

from ..steps import run_script
from .text import corpus_overrides

#: The model for each objective that does not use BERT; the size has no effect on the batches.
MODELS = {
    "all_tokens_mlm": "electra_laptop",
    "bilm": "elmo_subword_laptop",
    "cbow": "word_embeddings_laptop",
    "lm": "gpt_laptop",
    "lm_contiguous": "transformer_xl_laptop",
    "mlm_sop": "albert_laptop",
    "plm": "xlnet_laptop",
    "rtd": "electra_laptop",
    "skipgram": "word_embeddings_laptop",
}

#: Objectives that have the same batches as another objective.
SAME = ("all_tokens_mlm_laptop", "backward_lm", "nsp", "sop")


def main() -> int:
    """Measure each objective, print a table, and return 1 if an objective is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="objectives, separated by commas")
    parser.add_argument("--length", type=int, default=128, help="objective.max_length: tokens in a row")
    parser.add_argument("--batch-tokens", type=int, default=32_768, help="tokens in a batch")
    parser.add_argument("--batches", type=int, default=15, help="batches to measure")
    parser.add_argument("--least", type=float, default=0.0, help="tokens per second that each objective must reach")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    all_names = [name for name in paths.group_options("objective", [paths.conf_dir()]) if name not in SAME]
    names = arguments.only.split(",") if arguments.only else all_names
    rates: dict[str, float] = {}
    print(f"{'objective':24}{'tokens/s':>14}   rows of {arguments.length} tokens, one process")
    for name in names:
        rates[name] = measure(name, arguments.length, arguments.batch_tokens, arguments.batches)
        print(f"{name:24}{rates[name]:>14,.0f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    slow = [name for name, rate in rates.items() if rate < arguments.least]
    if slow:
        print(f"below {arguments.least:,.0f} tokens/s: {', '.join(slow)}")
    return bool(slow)


def measure(name: str, length: int, batch_tokens: int, num_batches: int) -> float:
    """Return the tokens per second of one objective: the median over batches."""
    text, parts = _parts(name, length)
    parts.corruption.observe(text.prepared.train)
    source = PretrainingSource(
        store=text.prepared.train,
        rows=parts.rows,
        corruption=parts.corruption,
        seed=0,
        output_positions=collect_output_positions(parts.objectives),
        characters=characters_of(text.tokenizer),
        capacity=batch_tokens,
    )
    plan = source.plan(0)
    per_batch = max(1, int(batch_tokens / float(np.mean(plan.lengths))))
    order = np.random.default_rng(0).permutation(len(plan.lengths))
    rates = []
    for number in range(num_batches + 2):
        rows = np.sort(order.take(range(number * per_batch, (number + 1) * per_batch), mode="wrap"))
        while plan.lengths[rows].sum() > batch_tokens:
            rows = rows[:-1]
        begin = time.perf_counter()
        batch = source.build(0, plan, rows, follows=True if parts.rows.contiguous else None)
        rates.append(batch.num_tokens / (time.perf_counter() - begin))
    return statistics.median(rates[2:])


def _parts(name: str, length: int) -> tuple[Text, PretrainingParts]:
    model = MODELS.get(name, "bert_laptop")
    words = ["~experiment", f"objective={name}", f"model={model}", f"objective.max_length={length}"]
    settings = command_settings(
        "pretrain",
        [
            *words,
            f"model.max_length={max(length, 512)}",
            *corpus_overrides(),
            "tokenizer.lowercase=false",
            "tokenizer.allow_fewer=true",
        ],
    )
    assert isinstance(settings, PretrainSettings)
    text = read_training_text(settings)
    return text, build_parts(settings, text.tokenizer)


if __name__ == "__main__":
    run_script(main)

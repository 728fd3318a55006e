"""The time of a probing epoch with cached features and with encoding: seconds of each, and their ratio.

A linear probe of a frozen BERT mini (random weights, since the time does not depend on them) over the mean of its last
layer, on the training examples of SST-2 from the data folder LMTRANSFER_DATA, in batches of 64 examples.

    python scripts/measure_cached_features.py                     8,000 examples
    python scripts/measure_cached_features.py --examples 67349    all of them
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from lmtransfer.data.corpora.python_docs import PythonDocs
from lmtransfer.data.store.cache import tokenizer_for
from lmtransfer.data.stream.stream import PlannedStream
from lmtransfer.models.bert import BertEncoder
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tokenizers.train import SentencePieceTrainer
from lmtransfer.training.hardware import setup
from lmtransfer.transfer.evaluation import Autocast
from lmtransfer.transfer.features import compute_features
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

_BATCH = 64


def main() -> None:
    """Measure both epochs and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=8000)
    options = parser.parse_args()
    hardware = setup(device="cpu", threads=os.cpu_count())
    task = TextClassification(
        name="sst2",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        train="sst2/train.tsv",
        data_root=os.environ.get("LMTRANSFER_DATA"),
    )
    tokenizer = tokenizer_for(PythonDocs(), SentencePieceTrainer(kind="unigram", vocab_size=8192, allow_fewer=True))
    examples = task.examples("train")[: options.examples]
    encoded = task.encode(examples, tokenizer, max_length=128, num_segments=2)
    torch.manual_seed(0)
    encoder = BertEncoder(vocab_size=tokenizer.vocab_size, dim=256, num_layers=4, num_heads=4, hidden_dim=1024)
    learner = TransferMethod(freeze="frozen", pooling="mean", dropout=0.0).learner(encoder, head=task.head, seed=0)
    live = TaskSource(encoded)
    start_time = time.perf_counter()
    table = compute_features(learner, live, folder=None, autocast=hardware.precision.autocast)
    caching = time.perf_counter() - start_time
    seconds = {
        "encoding": _epoch(learner, live, hardware.precision.autocast),
        "cached": _epoch(learner, TaskSource(encoded, table), hardware.precision.autocast),
    }
    print(f"{len(examples):,} examples, {encoded.offsets[-1]:,} tokens, {hardware}")
    print(f"features made once:             {caching:8.2f} s, {table.values.nbytes / 1e6:.1f} MB")
    print(f"an epoch that encodes:          {seconds['encoding']:8.2f} s")
    print(f"an epoch on cached features:    {seconds['cached']:8.2f} s")
    print(f"ratio:                          {seconds['encoding'] / seconds['cached']:8.1f} x")


def _epoch(learner: TaskLearner, source: TaskSource, autocast: Autocast) -> float:
    """Seconds of one training epoch of the head; the second of two epochs is measured, the first is warm-up."""
    optimizer = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], lr=1e-3)
    stream = PlannedStream(source, seed=0, batch_examples=_BATCH)
    num_steps, steps, seconds = stream.steps_per_epoch, stream.steps(), 0.0
    learner.train()
    for _ in range(2):
        start_time = time.perf_counter()
        for _ in range(num_steps):
            for batch in next(steps).micro_batches:
                with autocast():
                    (loss,) = learner.losses(batch)[0].values()
                (loss.sum / loss.count).backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - start_time
    return seconds


if __name__ == "__main__":
    main()

"""Training speed against Hugging Face transformers, in one process and one run, on the same rows.

    python scripts/benchmark.py              all parts
    python scripts/benchmark.py pretrain     BERT mini, masked tokens, full rows of 128 tokens: nothing to pad
    python scripts/benchmark.py pairs        BERT mini, masked tokens and next sentence, pairs of up to 128 tokens
    python scripts/benchmark.py finetune     BERT mini on single sentences, 32 a batch

Both sides see the same rows, masks and labels, take the same fused AdamW, the same dropout and the same threads and
memory allocator, and count real tokens only. The peer pads; it is tried with every combination of its flags and the
best is kept. Batches are built before the clock starts; compiling and the first steps are left out. The two sides take
turns, and the median of the turns counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.cache import prepare, tokenizer_for
from lmtransfer.data.files import find_file, read_lines
from lmtransfer.data.python_docs import PythonDocs
from lmtransfer.data.stream import PlannedStream
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.corruption.token_masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner, needed_reads
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.next_sentence import NextSentencePrediction
from lmtransfer.objectives.rows.sentence_pairs import SentencePairs
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.tasks.encoded import encode_texts
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.train import SentencePieceTrainer
from lmtransfer.training.hardware import tune_allocator
from lmtransfer.training.learner import Step
from lmtransfer.training.optimizers import AdamW
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import Updater
from lmtransfer.transfer.composing import OneToken
from lmtransfer.transfer.freezing import Full
from lmtransfer.transfer.head import ClassificationHead
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.reading import OneLayer

SHAPE = {"dim": 256, "num_layers": 4, "num_heads": 4, "hidden_dim": 1024}
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Peer:
    """One combination of the peer's flags."""

    compiled: bool
    attention: str
    precision: str = "bf16"

    def __str__(self) -> str:
        return f"{self.precision}, attn_implementation={self.attention}, torch.compile={self.compiled}"


PEERS = [Peer(compiled=compiled, attention=attention) for compiled in (True, False) for attention in ("sdpa", "eager")]
DEFAULT_PEER = Peer(compiled=False, attention="sdpa", precision="fp32")


def main() -> None:
    """Run the parts named on the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["pretrain", "pairs", "finetune"], help="pretrain, pairs, finetune")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads for both sides")
    parser.add_argument("--dropout", type=float, default=None, help="on both sides; default: 0 and 0.1 (finetune)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_allocator()
    corpus = PythonDocs()
    tokenizer = tokenizer_for(corpus, SentencePieceTrainer(kind="unigram", vocab_size=8192))
    for part in options.parts:
        setup = {"pretrain": pretraining, "pairs": pretraining_on_pairs, "finetune": finetuning}[part]
        dropout = options.dropout if options.dropout is not None else 0.1 if part == "finetune" else 0.0
        lines = compare(part, setup(tokenizer, corpus, dropout, options.steps), dropout, options)
        print("\n" + "\n".join(lines) + "\n", flush=True)


def compare(part: str, sides: Sides, dropout: float, options: Any) -> list[str]:
    """Measure our side against the peer's best flags."""
    ours, peer = sides
    trials = {}
    for flags in [*PEERS, DEFAULT_PEER]:
        try:
            side = peer(flags)
            side.turn()
            trials[flags] = (max(side.turn() for _ in range(2)), side)
            print(f"{part}: transformers, {flags}: {trials[flags][0]:,.0f} tokens/s", flush=True)
        except Exception as error:  # a flag combination that the installed version refuses is no candidate
            print(f"{part}: transformers, {flags}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    best = max((flags for flags in trials if flags != DEFAULT_PEER), key=lambda flags: trials[flags][0])
    theirs, mine = trials[best][1], ours()
    mine.turn()
    speeds = [(mine.turn(), theirs.turn()) for _ in range(options.rounds)]
    own, other = (statistics.median(column) for column in zip(*speeds, strict=True))
    ratio = statistics.median(a / b for a, b in speeds)
    return [
        f"{part}: BERT 4 x 256, {mine.describe()}, AdamW, dropout {dropout}, {options.threads} threads",
        f"  machine                {cpu_name()}, torch {torch.__version__}",
        f"  lmtransfer             {own:10,.0f} real tokens/s",
        f"  transformers, best     {other:10,.0f} real tokens/s  ({best})",
        f"  transformers, default  {trials[DEFAULT_PEER][0]:10,.0f} real tokens/s  ({DEFAULT_PEER})",
        f"  ratio                  {ratio:10.2f} x  (turns: {', '.join(f'{a / b:.2f}' for a, b in speeds)})",
    ]


class Side:
    """One system over a fixed list of batches."""

    def __init__(self, step: Callable[[Any], None], batches: Sequence[Any], tokens: int, slots: int) -> None:
        self.step, self.batches, self.tokens, self.slots = step, batches, tokens, slots

    def turn(self) -> float:
        """Train on every batch once; real tokens a second."""
        began = time.perf_counter()
        for batch in self.batches:
            self.step(batch)
        return self.tokens / (time.perf_counter() - began)

    def describe(self) -> str:
        """The shape of the batches."""
        return (
            f"{self.tokens / len(self.batches):,.0f} real tokens a step of {self.slots / len(self.batches):,.0f} padded"
        )


#: How to make our side, and the peer's with given flags.
Sides = tuple[Callable[[], Side], Callable[[Peer], Side]]


def our_side(learner: nn.Module, batches: Sequence[Any], slots: int) -> Side:
    """Our own training step, as the loop takes it."""
    learner.train()
    optimizer = AdamW(learner=learner, learning_rate=LEARNING_RATE)
    updater = Updater(
        learner=learner,
        optimizer=optimizer,
        seed=0,
        device="cpu",
        precision=Precision(name="bf16", device="cpu"),
        max_grad_norm=1.0,
    )
    steps = [Step(number=number, epoch=0.0, micro_batches=(batch,)) for number, batch in enumerate(batches)]
    return Side(lambda step: updater.step(step, factor=1.0), steps, sum(b.num_tokens for b in batches), slots)


def peer_side(model: nn.Module, batches: Sequence[dict[str, Tensor]], tokens: int, peer: Peer) -> Side:
    """A lean loop around the peer's model: no Trainer overhead, and the loss read once a step, as ours is."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-6, fused=True)
    called = torch.compile(model) if peer.compiled else model

    def step(batch: dict[str, Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=peer.precision == "bf16"):
            loss = called(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return Side(step, batches, tokens, sum(b["input_ids"].numel() for b in batches))


def pretraining(tokenizer: Tokenizer, corpus: PythonDocs, dropout: float, num_steps: int) -> Sides:
    """Full rows of 128 tokens, 15 % masked: BertForMaskedLM on the other side."""
    rows = LanguageStream(tokenizer=tokenizer, max_length=128)
    return _pretraining(tokenizer, corpus, rows, [MaskedLanguageModel], "BertForMaskedLM", dropout, num_steps)


def pretraining_on_pairs(tokenizer: Tokenizer, corpus: PythonDocs, dropout: float, num_steps: int) -> Sides:
    """Sentence pairs of up to 128 tokens, 15 % masked, next sentence: BertForPreTraining on the other side."""
    rows = SentencePairs(tokenizer=tokenizer, max_length=128)
    objectives = [MaskedLanguageModel, NextSentencePrediction]
    return _pretraining(tokenizer, corpus, rows, objectives, "BertForPreTraining", dropout, num_steps)


def _pretraining(
    tokenizer: Tokenizer,
    corpus: PythonDocs,
    rows: Any,
    objectives: Sequence[Callable[[], Any]],
    peer_class: str,
    dropout: float,
    num_steps: int,
) -> Sides:
    source = PretrainingSource(
        store=prepare(corpus, tokenizer).train,
        rows=rows,
        corruption=TokenMasking(tokenizer=tokenizer, mask_prob=0.15),
        seed=0,
        reads=needed_reads([objective() for objective in objectives]),
        few_shapes=True,
    )
    stream = PlannedStream(source, seed=0, batch_examples=32).steps()
    batches = [next(stream).micro_batches[0] for _ in range(num_steps)]
    padded = [pad(batch.inputs, 128) for batch in batches]
    for batch, row in zip(batches, padded, strict=True):
        labels = torch.full_like(batch.inputs.tokens_T, -100)
        labels[batch.positions_M[: batch.num_targets]] = batch.targets_M[: batch.num_targets]
        row["labels"] = unpack(labels, batch.inputs.lengths[: batch.inputs.num_real], 128, -100)
        if "nsp" in batch.labels:
            row["next_sentence_label"] = batch.labels["nsp"]
    tokens = sum(batch.num_tokens for batch in batches)

    def ours() -> Side:
        encoder = BertEncoder(vocab_size=tokenizer.vocab_size, dropout=dropout, **SHAPE)
        learner = PretrainingLearner(encoder, [objective() for objective in objectives])
        return our_side(learner, batches, len(batches) * 32 * 128)

    def theirs(peer: Peer) -> Side:
        import transformers

        return peer_side(getattr(transformers, peer_class)(peer_config(tokenizer, dropout, peer)), padded, tokens, peer)

    return ours, theirs


def finetuning(tokenizer: Tokenizer, corpus: PythonDocs, dropout: float, num_steps: int) -> Sides:
    """SST-2 (its first lines, from LMTRANSFER_DATA), else sentences of the documentation; batches of 32 at random."""
    texts, labels = sentences(corpus, 32 * num_steps)
    encoded = encode_texts(
        [str(i) for i in range(len(texts))], texts, None, labels, tokenizer, max_length=128, num_segments=2
    )
    stream = PlannedStream(TaskSource(encoded), seed=0, batch_examples=32).steps()
    batches = [next(stream).micro_batches[0] for _ in range(num_steps)]
    padded = [pad(batch.packed, None) | {"labels": batch.labels_B} for batch in batches]
    tokens = sum(batch.num_tokens for batch in batches)

    def ours() -> Side:
        encoder = BertEncoder(vocab_size=tokenizer.vocab_size, dropout=dropout, **SHAPE)
        learner = TaskLearner(
            encoder=encoder,
            reading=OneLayer(index=-1, num_layers=SHAPE["num_layers"]),
            composition=OneToken(dim=SHAPE["dim"], which="first"),
            head=ClassificationHead(input_dim=SHAPE["dim"], num_labels=2, dropout=dropout),
            freezing=Full(),
            use_pooler=True,
        )
        return our_side(learner, batches, sum(row["input_ids"].numel() for row in padded))

    def theirs(peer: Peer) -> Side:
        from transformers import BertForSequenceClassification

        model = BertForSequenceClassification(peer_config(tokenizer, dropout, peer))
        if peer.compiled:  # few distinct shapes, each compiled once before the clock starts
            torch._dynamo.config.cache_size_limit = 64
            rows = [pad(b.packed, _up(_longest(b.packed), 16)) | {"labels": b.labels_B} for b in batches]
            return peer_side(model, rows, tokens, peer)
        return peer_side(model, padded, tokens, peer)

    return ours, theirs


def peer_config(tokenizer: Tokenizer, dropout: float, peer: Peer) -> Any:
    """The same architecture in the peer's terms; attention dropout is off on both sides."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=SHAPE["dim"],
        num_hidden_layers=SHAPE["num_layers"],
        num_attention_heads=SHAPE["num_heads"],
        intermediate_size=SHAPE["hidden_dim"],
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
        attn_implementation=peer.attention,
    )


def sentences(corpus: PythonDocs, count: int) -> tuple[list[str], list[int]]:
    """So many sentences with a label each."""
    root = os.environ.get("LMTRANSFER_DATA")
    if root and list(Path(root).glob("sst2/train.tsv*")):
        lines = read_lines(find_file(Path(root) / "sst2" / "train.tsv"))
        rows = [line.rstrip("\n").split("\t") for _, (_, line) in zip(range(count + 1), lines, strict=False)][1:]
        return [row[0] for row in rows], [int(row[1]) for row in rows]
    documents = [document.text.split(". ")[0] for _, document in zip(range(count), corpus.documents(), strict=False)]
    return documents, [len(text) % 2 for text in documents]


def pad(packed: PackedBatch, length: int | None) -> dict[str, Tensor]:
    """A packed batch as the peer's padded inputs; ``length`` None pads to the longest."""
    length = length or _longest(packed)
    lengths = packed.lengths[: packed.num_real]
    return {
        "input_ids": unpack(packed.tokens_T, lengths, length, 0),
        "token_type_ids": unpack(packed.segments_T, lengths, length, 0),
        "attention_mask": unpack(torch.ones_like(packed.tokens_T), lengths, length, 0),
    }


def _longest(packed: PackedBatch) -> int:
    return max(packed.lengths[: packed.num_real])


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def unpack(values_T: Tensor, lengths: Sequence[int], length: int, fill: int) -> Tensor:
    """(T) -> (B, length)."""
    rows = torch.full((len(lengths), length), fill, dtype=values_T.dtype)
    for row, part in zip(rows, values_T[: sum(lengths)].split(list(lengths)), strict=True):
        row[: len(part)] = part
    return rows


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

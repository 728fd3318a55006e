"""Compares training speed and memory with Hugging Face transformers, in one run on this machine.

    python -m scripts.bench.vs_transformers              all parts except ragged
    python -m scripts.bench.vs_transformers pretrain     BERT mini, masked tokens, full rows of 128: nothing to pad
    python -m scripts.bench.vs_transformers ragged       BERT mini, masked tokens, whole sentences of one document
    python -m scripts.bench.vs_transformers pairs        BERT mini, masked tokens and next sentence, pairs of up to 128
    python -m scripts.bench.vs_transformers finetune     BERT mini on single sentences (SST-2), 32 per batch
    python -m scripts.bench.vs_transformers finetune_pairs finetune_spans    on pairs (MNLI), questions (SQuAD, 384)

The peer is ``transformers.Trainer`` with its best flags: each combination of torch.compile and attention is tried, and
the fastest is used; bf16, fused AdamW, no logging, no saving. If rows differ in length, the peer runs twice: with
random batches, as on our side, and with batches of similar length, which need less padding but change the batch order.
--lent adds a run of the peer with our settings for the memory allocator and for waiting threads. --busy adds a run of
our side beside one busy process. --lean adds a minimal loop around the same model without the Trainer's overhead, with
the same settings as --lent. Our side is our trainer with its stream of packed batches.

Both sides have the same architecture, rows, masks, rows per step, AdamW, clipping, dropout and threads; only real
tokens count. Our time includes cutting and masking rows, which the peer gets ready-made. Each measurement runs in its
own process, which reports its peak memory. The first steps, which include compilation, are not timed. The sides run in
turns, and the median over the turns is reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from ..steps import run_script
from .machine import busy_process, processor
from .setting import FINETUNING, Flags, Setting
from .side import measure_side
from .text import text


def main() -> None:
    """Run the parts named on the command line and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["pretrain", "pairs", *FINETUNING], help="parts to run")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads for both sides")
    parser.add_argument("--dropout", type=float, default=None, help="on both sides; default: 0, or 0.1 (finetune)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--steps", type=int, default=40, help="timed steps per turn")
    parser.add_argument("--warmup", type=int, default=20, help="steps before the clock starts")
    parser.add_argument("--lent", action="store_true", help="also run the peer with our allocator and waiting")
    parser.add_argument("--busy", action="store_true", help="also run our side beside a busy process")
    parser.add_argument("--lean", action="store_true", help="also run a lean loop around the peer's model")
    parser.add_argument("--flags", help="the peer's flags, such as eager or sdpa,compiled; default: try all flags")
    parser.add_argument("--dim", type=int, default=256, help="width of the model; use a small width to try this script")
    options = parser.parse_args()
    text()  # tokenized once, before any side is timed
    for part in options.parts:
        dropout = options.dropout if options.dropout is not None else 0.1 if part in FINETUNING else 0.0
        setting = Setting(
            part=part,
            device=options.device,
            dim=options.dim,
            hidden_dim=4 * options.dim,
            length=384 if part == "finetune_spans" else 128,
            dropout=dropout,
            steps=options.steps,
            warmup=options.warmup,
            threads=options.threads,
        )
        if options.flags:
            peers, defaults = [replace(flags, **_parse_flags(options.flags)) for flags in batch_flags(part)], []
        else:
            peers = [best_flags(setting, flags) for flags in batch_flags(part)]
            defaults = default_line(setting)
        lines = [
            *compare(setting, options.rounds, peers, lent=options.lent, lean=options.lean, busy=options.busy),
            *defaults,
        ]
        print("\n" + "\n".join(lines) + "\n", flush=True)


def batch_flags(part: str) -> list[Flags]:
    """Return the peer's flags for batches: random batches, and batches of similar length if rows differ in length."""
    return [Flags()] if part == "pretrain" else [Flags(), Flags(grouped=True)]


def best_flags(setting: Setting, batches: Flags) -> Flags:
    """Find the Trainer's fastest flags in a short trial with the given kind of batches."""
    short = replace(setting, steps=max(setting.steps // 2, 1))
    rates: dict[Flags, float] = {}
    for compiled, attention in product((False, True), ("sdpa", "eager")):
        flags = replace(batches, compiled=compiled, attention=attention)
        try:
            rates[flags] = measure_side("trainer", short, flags)["tokens_per_second"]
            print(f"{setting.part}: Trainer, {flags}: {rates[flags]:,.0f} tokens/s", flush=True)
        except RuntimeError as error:  # the installed version does not support this combination
            print(f"{setting.part}: Trainer, {flags}: {error}", flush=True)
    if not rates:
        raise SystemExit("transformers.Trainer did not run with any flags; install the extra `bench`")
    return max(rates, key=lambda flags: rates[flags])


def default_line(setting: Setting) -> list[str]:
    """Return the line for the Trainer with default settings."""
    short = replace(setting, steps=max(setting.steps // 2, 1))
    try:
        return [_line("Trainer, defaults", [measure_side("trainer", short, Flags(reduced=False))])]
    except RuntimeError as error:
        return [f"  Trainer, defaults: {error}"]


def _parse_flags(text: str) -> dict[str, Any]:
    attention, *compiled = text.split(",")
    if attention not in ("eager", "sdpa") or compiled not in ([], ["compiled"]):
        raise SystemExit(f"--flags={text}: must be eager or sdpa, optionally followed by ,compiled")
    return {"attention": attention, "compiled": bool(compiled)}


def compare(setting: Setting, rounds: int, peers: Sequence[Flags], *, lent: bool, lean: bool, busy: bool) -> list[str]:
    """Measure our side and the peers in turns."""
    lent_flags = replace(peers[-1], lent=True)
    sides = {
        "lmtransfer": ("ours", peers[0]),
        **{("Trainer, by length" if flags.grouped else "Trainer"): ("trainer", flags) for flags in peers},
        **({"Trainer, lent": ("trainer", lent_flags)} if lent else {}),
        **({"lean loop, lent": ("lean", lent_flags)} if lean else {}),
    }
    turns = []
    for _ in range(rounds):
        turns.append({name: measure_side(side, setting, flags) for name, (side, flags) in sides.items()})
        if busy:
            with busy_process():
                turns[-1]["beside a busy process"] = measure_side("ours", setting, peers[0])
    lines = [
        f"{setting.part}: BERT {setting.num_layers} x {setting.dim}, {setting.rows} rows of up to {setting.length} "
        f"tokens per step, AdamW, dropout {setting.dropout}, {setting.threads} threads",
        f"  machine               {processor(setting.device)}, torch {torch.__version__}",
        *(_line(name, [turn[name] for turn in turns]) for name in turns[0]),
    ]
    for name in list(turns[0])[1:]:
        ratios = [turn["lmtransfer"]["tokens_per_second"] / turn[name]["tokens_per_second"] for turn in turns]
        turns_text = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"  against {name:21} {statistics.median(ratios):6.2f} x  (turns: {turns_text})")
    return lines


def _line(name: str, results: Sequence[dict[str, Any]]) -> str:
    rate, memory = (statistics.median(result[key] for result in results) for key in ("tokens_per_second", "memory"))
    step = results[0]["tokens_per_step"]
    numbers = f"{rate:10,.0f} real tokens/s, {memory / 1e9:5.2f} GB, {step:,.0f} per step"
    return f"  {name:21} {numbers}  ({results[0]['flags']})"


if __name__ == "__main__":
    run_script(main)

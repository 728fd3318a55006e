"""Training speed and memory against Hugging Face transformers, in one run on this machine.

    python -m scripts.bench.vs_transformers              all parts but ragged
    python -m scripts.bench.vs_transformers pretrain     BERT mini, masked tokens, full rows of 128: nothing to pad
    python -m scripts.bench.vs_transformers ragged       BERT mini, masked tokens, whole sentences of one document
    python -m scripts.bench.vs_transformers pairs        BERT mini, masked tokens and next sentence, pairs of up to 128
    python -m scripts.bench.vs_transformers finetune     BERT mini on single sentences (SST-2), 32 a batch
    python -m scripts.bench.vs_transformers finetune_pairs finetune_spans    on pairs (MNLI), questions (SQuAD, of 384)

The peer is ``transformers.Trainer`` with its best flags: each combination of torch.compile and attention is tried, and
the fastest is used; bf16, fused AdamW, no logging, no saving. If rows differ in length, it runs twice: with batches
drawn at random, as ours are, and with batches of similar length, which need less padding but change the batch order.
--lent adds a run of the peer with our settings of the memory allocator and of thread waiting. --busy adds a run of our
side beside one busy process. --lean adds a minimal loop around the same model without the Trainer's overhead, with the
same settings as --lent. Our side is our trainer over its stream of packed batches.

Both sides have the same architecture, rows, masks, rows per step, AdamW, clipping, dropout and threads; only real
tokens count. Our time includes cutting and masking rows; for the peer this is done beforehand. Each measurement runs in
its own process, which reports its own peak memory. Its first steps, which include compilation, are not timed. The sides
run in turns, and the median of the turns is reported.
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
from .side import measured
from .text import text


def main() -> None:
    """Run the parts named on the command line and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["pretrain", "pairs", *FINETUNING], help="which")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads for both sides")
    parser.add_argument("--dropout", type=float, default=None, help="on both sides; default: 0 and 0.1 (finetune)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--steps", type=int, default=40, help="timed steps a turn")
    parser.add_argument("--warmup", type=int, default=20, help="steps before the clock starts")
    parser.add_argument("--lent", action="store_true", help="the peer with our allocator and waiting, too")
    parser.add_argument("--busy", action="store_true", help="our side beside a busy process, too")
    parser.add_argument("--lean", action="store_true", help="a lean loop around the peer's model, too")
    parser.add_argument("--flags", help="of the peer, where they are known: eager, or sdpa,compiled; default: try all")
    parser.add_argument("--dim", type=int, default=256, help="width of the model; smaller to try this script")
    options = parser.parse_args()
    text()  # tokenised once, before any side is timed
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
            peers, defaults = [replace(flags, **_known_flags(options.flags)) for flags in batchings(part)], []
        else:
            peers = [best_flags(setting, flags) for flags in batchings(part)]
            defaults = default_line(setting)
        lines = [
            *compare(setting, options.rounds, peers, lent=options.lent, lean=options.lean, busy=options.busy),
            *defaults,
        ]
        print("\n" + "\n".join(lines) + "\n", flush=True)


def batchings(part: str) -> list[Flags]:
    """The peer's ways to make batches: at random, and of similar length if rows differ in length."""
    return [Flags()] if part == "pretrain" else [Flags(), Flags(grouped=True)]


def best_flags(setting: Setting, batches: Flags) -> Flags:
    """The fastest flags of the Trainer in a short trial with such batches."""
    short = replace(setting, steps=max(setting.steps // 2, 1))
    rates: dict[Flags, float] = {}
    for compiled, attention in product((False, True), ("sdpa", "eager")):
        flags = replace(batches, compiled=compiled, attention=attention)
        try:
            rates[flags] = measured("trainer", short, flags)["tokens_per_second"]
            print(f"{setting.part}: Trainer, {flags}: {rates[flags]:,.0f} tokens/s", flush=True)
        except RuntimeError as error:  # the installed version does not support this combination
            print(f"{setting.part}: Trainer, {flags}: {error}", flush=True)
    if not rates:
        raise SystemExit("transformers.Trainer did not run at all; is the extra `bench` installed?")
    return max(rates, key=lambda flags: rates[flags])


def default_line(setting: Setting) -> list[str]:
    """The result of the Trainer with default settings, if it runs."""
    short = replace(setting, steps=max(setting.steps // 2, 1))
    try:
        return [_line("Trainer, defaults", [measured("trainer", short, Flags(reduced=False))])]
    except RuntimeError as error:
        return [f"  Trainer, defaults: {error}"]


def _known_flags(text: str) -> dict[str, Any]:
    attention, *compiled = text.split(",")
    if attention not in ("eager", "sdpa") or compiled not in ([], ["compiled"]):
        raise SystemExit(f"--flags={text}: write eager or sdpa, and ,compiled behind it if it shall be")
    return {"attention": attention, "compiled": bool(compiled)}


def compare(setting: Setting, rounds: int, peers: Sequence[Flags], *, lent: bool, lean: bool, busy: bool) -> list[str]:
    """Measure our side and the peers in turns."""
    loan = replace(peers[-1], lent=True)
    sides = {
        "lmtransfer": ("ours", peers[0]),
        **{("Trainer, like lengths" if flags.grouped else "Trainer"): ("trainer", flags) for flags in peers},
        **({"the same, lent": ("trainer", loan)} if lent else {}),
        **({"lean loop, lent": ("lean", loan)} if lean else {}),
    }
    turns = []
    for _ in range(rounds):
        turns.append({name: measured(side, setting, flags) for name, (side, flags) in sides.items()})
        if busy:
            with busy_process():
                turns[-1]["beside a busy process"] = measured("ours", setting, peers[0])
    lines = [
        f"{setting.part}: BERT {setting.num_layers} x {setting.dim}, {setting.rows} rows of up to {setting.length} "
        f"tokens a step, AdamW, dropout {setting.dropout}, {setting.threads} threads",
        f"  machine               {processor(setting.device)}, torch {torch.__version__}",
        *(_line(name, [turn[name] for turn in turns]) for name in turns[0]),
    ]
    for name in list(turns[0])[1:]:
        ratios = [turn["lmtransfer"]["tokens_per_second"] / turn[name]["tokens_per_second"] for turn in turns]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"  against {name:21} {statistics.median(ratios):6.2f} x  (turns: {shown})")
    return lines


def _line(name: str, results: Sequence[dict[str, Any]]) -> str:
    rate, memory = (statistics.median(result[key] for result in results) for key in ("tokens_per_second", "memory"))
    step = results[0]["tokens_per_step"]
    return (
        f"  {name:21} {rate:10,.0f} real tokens/s, {memory / 1e9:5.2f} GB, {step:,.0f} a step  ({results[0]['flags']})"
    )


if __name__ == "__main__":
    run_script(main)

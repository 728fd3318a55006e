"""Training speed and memory against Hugging Face transformers, in one run on this machine.

    python scripts/bench_vs_transformers.py              all parts
    python scripts/bench_vs_transformers.py pretrain     BERT mini, masked tokens, full rows of 128: nothing to pad
    python scripts/bench_vs_transformers.py pairs        BERT mini, masked tokens and next sentence, pairs of up to 128
    python scripts/bench_vs_transformers.py finetune     BERT mini on single sentences (SST-2), 32 a batch
    python scripts/bench_vs_transformers.py finetune_pairs finetune_spans    on pairs (MNLI), questions (SQuAD, of 384)

The peer is ``transformers.Trainer`` with its best flags: each combination of torch.compile and attention is tried, and
the fastest is kept; bf16, fused AdamW, batches of like length, no logging, no saving. It runs as it comes, and once
more with our setting of the memory allocator lent to it. With --lean a third peer is a lean loop around the same model,
without the Trainer's overhead, with the same loan. Our side is our own trainer over its stream of packed batches.

Same architecture, rows, masks, rows a step, AdamW, clipping, dropout and threads; only real tokens count. Rows are cut
and masked within our time, and beforehand for the peer. Each measurement is a process of its own, which tells its own
peak of memory; its first steps, in which shapes are compiled, are not timed. The sides take turns, and the median of
the turns counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench.setting import FINETUNING, Flags, Setting
from bench.side import measured
from bench.text import text

BEST = [Flags(compiled=compiled, attention=attention) for compiled in (False, True) for attention in ("sdpa", "eager")]
DEFAULT = Flags(reduced=False)


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
        best, defaults = (_known_flags(options.flags), []) if options.flags else best_flags(setting)
        lines = [*compare(setting, options.rounds, best, lean=options.lean), *defaults]
        print("\n" + "\n".join(lines) + "\n", flush=True)


def best_flags(setting: Setting) -> tuple[Flags, list[str]]:
    """The flags that serve the Trainer best in a short trial, and a line about its defaults."""
    short = replace(setting, steps=max(setting.steps // 2, 1))
    tried: dict[Flags, dict[str, Any]] = {}
    for flags in [*BEST, DEFAULT]:
        try:
            tried[flags] = measured("trainer", short, flags)
            print(f"{setting.part}: Trainer, {flags}: {tried[flags]['tokens_per_second']:,.0f} tokens/s", flush=True)
        except RuntimeError as error:  # a combination that the installed version refuses is no candidate
            print(f"{setting.part}: Trainer, {flags}: {error}", flush=True)
    candidates = [flags for flags in BEST if flags in tried]
    if not candidates:
        raise SystemExit("transformers.Trainer did not run at all; is the extra `bench` installed?")
    best = max(candidates, key=lambda flags: tried[flags]["tokens_per_second"])
    return best, [_line("Trainer, defaults", [tried[DEFAULT]])] if DEFAULT in tried else []


def _known_flags(text: str) -> Flags:
    attention, *compiled = text.split(",")
    if attention not in ("eager", "sdpa") or compiled not in ([], ["compiled"]):
        raise SystemExit(f"--flags={text}: write eager or sdpa, and ,compiled behind it if it shall be")
    return Flags(attention=attention, compiled=bool(compiled))


def compare(setting: Setting, rounds: int, best: Flags, *, lean: bool) -> list[str]:
    """Measure our side against the peers, in turns."""
    lent = replace(best, lent=True)
    sides = {
        "lmtransfer": ("ours", best),
        "transformers.Trainer": ("trainer", best),
        "the same, lent": ("trainer", lent),
        **({"lean loop, lent": ("lean", lent)} if lean else {}),
    }
    turns = [{name: measured(side, setting, flags) for name, (side, flags) in sides.items()} for _ in range(rounds)]
    lines = [
        f"{setting.part}: BERT {setting.num_layers} x {setting.dim}, {setting.rows} rows of up to {setting.length} "
        f"tokens a step, AdamW, dropout {setting.dropout}, {setting.threads} threads",
        f"  machine               {processor(setting.device)}, torch {torch.__version__}",
        *(_line(name, [turn[name] for turn in turns]) for name in sides),
    ]
    for name in list(sides)[1:]:
        ratios = [turn["lmtransfer"]["tokens_per_second"] / turn[name]["tokens_per_second"] for turn in turns]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"  against {name:20} {statistics.median(ratios):6.2f} x  (turns: {shown})")
    return lines


def _line(name: str, results: Sequence[dict[str, Any]]) -> str:
    rate, memory = (statistics.median(result[key] for result in results) for key in ("tokens_per_second", "memory"))
    step = results[0]["tokens_per_step"]
    return (
        f"  {name:21} {rate:10,.0f} real tokens/s, {memory / 1e9:5.2f} GB, {step:,.0f} a step  ({results[0]['flags']})"
    )


def processor(device: str) -> str:
    """The processor, as the system calls it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

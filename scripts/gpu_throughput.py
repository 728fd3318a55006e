"""Pretraining throughput of BERT base on one GPU, with rows of 128 and 512 tokens: a short table.

    python scripts/gpu_throughput.py [--seconds 300] [--device cpu --tiny]

Masked tokens on full rows. Our trainer runs compiled and in bf16 (fp16 on older cards). If it is installed,
``transformers.Trainer`` runs on the same rows, compiled and eager; the faster one counts. The share of the peak (MFU)
is the arithmetic that the model needs, independent of the implementation, divided by the card's dense 16-bit peak. What
does not fit into the time is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import time
from dataclasses import replace
from typing import Any

import torch
from bench.setting import Flags, Setting
from bench.side import measured
from bench.text import text

from lmtransfer.training.flops import peak_flops

BASE = Setting(
    part="pretrain", device="cuda", dim=768, num_layers=12, num_heads=12, hidden_dim=3072, vocab_size=30528, threads=4
)
TINY = replace(BASE, dim=32, num_layers=2, num_heads=2, hidden_dim=64, vocab_size=8192, threads=1, steps=2, warmup=2)


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few steps, to see whether it works")
    parser.add_argument("--seconds", type=float, default=300, help="for all measurements together")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    text()
    peers = (
        [Flags(compiled=True), Flags()] if all(map(importlib.util.find_spec, ("transformers", "accelerate"))) else []
    )
    lines = []
    for length in (128, 512):
        setting = _setting(length, options)
        ours = _try("ours", setting, Flags(), deadline)
        theirs = [result for flags in peers if (result := _try("trainer", setting, flags, deadline)) is not None]
        best = max(theirs, key=lambda result: result["tokens_per_second"], default=None)
        lines += [_line("lmtransfer", setting, ours), _line("transformers.Trainer", setting, best)]
        if ours and best:
            lines.append(f"{'ratio':22} {length:>6} {ours['tokens_per_second'] / best['tokens_per_second']:>14.2f} x")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, only to see whether it works"
    print(f"\n{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, BERT base, masked tokens")
    if not peers:
        print("transformers with accelerate is not installed here, so there is no peer")
    print(f"{'':22} {'tokens':>6} {'real tokens/s':>16} {'MFU':>6} {'memory':>9}")
    print("\n".join(lines), flush=True)


def _setting(length: int, options: Any) -> Setting:
    if options.tiny:
        return replace(TINY, device=options.device, length=length, rows=1024 // length)
    large = torch.cuda.get_device_properties(0).total_memory > 60e9
    return replace(BASE, length=length, rows=(32768 if large else 8192) // length, steps=40, warmup=10)


def _try(side: str, setting: Setting, flags: Flags, deadline: float) -> dict[str, Any] | None:
    start_time = time.monotonic()
    label = f"{side}, {setting.length} tokens" + (f", {flags}" if side == "trainer" else "")
    try:
        result = measured(side, setting, flags, timeout=max(deadline - start_time, 1))
    except subprocess.TimeoutExpired:
        print(f"{label}: left out, the time is up", flush=True)
        return None
    except RuntimeError as error:
        print(f"{label}: failed: {error}", flush=True)
        return None
    measure_seconds = time.monotonic() - start_time
    print(
        f"{label}: {result['tokens_per_second']:,.0f} tokens/s ({result['flags']}; {measure_seconds:.0f} s)", flush=True
    )
    return result


def _line(name: str, setting: Setting, result: dict[str, Any] | None) -> str:
    if result is None:
        return f"{name:22} {setting.length:>6} {'-':>16} {'-':>6} {'-':>9}"
    peak = peak_flops(torch.device(setting.device))
    rate = result["tokens_per_second"]
    needed = rate * setting.flops_per_token(setting.vocab_size or 0, setting.length)
    share = f"{100 * needed / peak:.0f} %" if peak else "-"
    return f"{name:22} {setting.length:>6} {rate:>16,.0f} {share:>6} {result['memory'] / 1e9:>6.1f} GB"


if __name__ == "__main__":
    main()

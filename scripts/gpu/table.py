"""The table of all results in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_Record = Mapping[str, Any]
_HEADING = f"{'':32}{'real tokens/s':>14} {'MFLOP/token':>12} {'MFU':>6} {'ceiling':>8} {'memory':>9}"
_LEGEND = (
    "",
    "MFLOP/token  for the matrix products that the model needs per real token, forward and backward, however they are",
    "             computed: 6 for each weight, and 12 x layers x width x mean length for attention; output layers",
    "             count only at predicted positions; embeddings, norms and the optimizer do not count. An evaluation",
    "             has no backward pass and needs a third.",
    "MFU          tokens/s x FLOP/token, divided by the dense 16-bit peak in the GPU's data sheet",
    "ceiling      tokens/s x FLOP/token, divided by the fastest matrix product measured here (part ceiling)",
)


def table(folder: Path, parts: list[str]) -> str:
    """Format a line for every existing measurement of these parts."""
    contents = {part: _read(folder / f"{part}.json") for part in parts}
    records = {part: record for part, record in contents.items() if record is not None}
    if not records:
        return f"{folder} contains no results"
    fastest = _measurements(records, "ceiling").get("matrix products", {})
    ours = _measurements(records, "bert")
    lines = []
    for place in dict.fromkeys(str(record["place"]) for record in records.values()):
        lines += ["", place, _HEADING]
        for part, record in records.items():
            if record["place"] == place:
                lines += [_line(part, name, numbers, fastest, ours) for name, numbers in record["measurements"].items()]
    return "\n".join([*lines, *_LEGEND])


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _measurements(records: Mapping[str, _Record], part: str) -> dict[str, dict[str, Any]]:
    measurements: dict[str, dict[str, Any]] = records[part]["measurements"] if part in records else {}
    return measurements


def _line(part: str, name: str, numbers: _Record, fastest: _Record, ours: Mapping[str, _Record]) -> str:
    rate = numbers.get("tokens_per_second")
    flops = numbers.get("flops_per_token") or (ours.get(name, {}).get("flops_per_token") if part == "trainer" else None)
    shares = [
        f"{100 * rate * flops / most:.0f} %" if rate and flops and most else "-"
        for most in (fastest.get("peak"), fastest.get("square"))
    ]
    memory = f"{numbers['memory'] / 1e9:.1f} GB" if "memory" in numbers else "-"
    shown = f"{rate:,.0f}" if rate else "-"
    notes = "; ".join(_notes(part, name, numbers, ours))
    work = f"{flops / 1e6:,.1f}" if flops else "-"
    return f"{f'{part}, {name}':32}{shown:>14} {work:>12} {shares[0]:>6} {shares[1]:>8} {memory:>9}  {notes}".rstrip()


def _notes(part: str, name: str, numbers: _Record, ours: Mapping[str, _Record]) -> Iterator[str]:
    """Yield notes on numbers that have no column."""
    if "error" in numbers:
        yield f"FAILED: {numbers['error']}"
    if "skipped" in numbers:
        yield numbers["skipped"]
    if "passed" in numbers:
        yield f"{numbers['passed']} passed, {len(numbers['failed'])} failed, {len(numbers['skipped_tests'])} skipped"
    if part == "trainer" and "tokens_per_second" in numbers and ours.get(name, {}).get("tokens_per_second"):
        yield f"lmtransfer: {ours[name]['tokens_per_second'] / numbers['tokens_per_second']:.2f} x"
    if "square" in numbers:
        yield f"{numbers['square'] / 1e12:.2f} TFLOP/s, {numbers['model'] / 1e12:.2f} in the shape of the model"
    if "milliseconds" in numbers:
        yield "ms: " + ", ".join(f"{phase} {time:.1f}" for phase, time in numbers["milliseconds"].items())
    if "rates" in numbers:
        slowest = min(numbers["rates"], key=lambda objective: numbers["rates"][objective])
        yield f"{len(numbers['rates'])} objectives, slowest {slowest}: {numbers['rates'][slowest]:,.0f} tokens/s"
    if "deviations" in numbers:
        last, largest = (100 * numbers["deviations"][name] for name in ("last_tenth", "largest"))
        yield f"losses against the CPU: last tenth {last:+.2f} %, largest deviation {largest:.2f} %"
    if "seconds" in numbers:
        yield f"{numbers['seconds']:.0f} s in all"

"""What run directories say, read without any code of lmtransfer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def run_folders(root: Path) -> Iterator[Path]:
    """The finished runs that hold models, in the order of their paths; of several seeds of a task only the whole run.

    The runs of a study are left out, since they are like the others.
    """
    for path in sorted(root.rglob("result.json")):
        command = json.loads(path.read_text()).get("command")
        inner = "control" in path.parts or path.parent.name.startswith("seed-")
        whole = command in ("import", "pretrain") or (command in ("probe", "finetune") and not inner)
        if whole and "study" not in path.parts:
            yield path.parent


def final(run: Path) -> dict[str, Any]:
    """Where a run stands: the metrics of each result below it, the losses of each log, and the sizes of its weights.

    Nothing of it depends on what tensors are called: of each checkpoint's ``last``, by number of elements, there are
    the sums and the sums of absolute values of all tensors of that size, in ascending order.
    """
    from safetensors.torch import load_file

    found: dict[str, Any] = {"metrics": {}, "losses": {}, "weights": {}}
    for path in sorted(run.rglob("result.json")):
        found["metrics"][_within(path, run)] = json.loads(path.read_text())["metrics"]
    for path in sorted(run.rglob("metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found["losses"][_within(path, run)] = [line["loss"] for line in lines if line.get("loss") is not None]
    for path in sorted(run.rglob("checkpoints/last/model.safetensors")):
        sizes: dict[str, list[list[float]]] = {}
        for tensor in load_file(path).values():
            sums = sizes.setdefault(str(tensor.numel()), [[], []])
            for numbers, value in zip(sums, (tensor.double().sum(), tensor.double().abs().sum()), strict=True):
                numbers.append(round(float(value), 6))
        found["weights"][_within(path, run)] = {
            size: [sorted(numbers) for numbers in sums] for size, sums in sorted(sizes.items())
        }
    return found


def _within(path: Path, run: Path) -> str:
    return path.relative_to(run).as_posix()

"""Run the parts of the check and print the table; started by ``scripts/gpu_check.sh``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from . import batches, gpu_tests, steps
from .finetuning import finetune
from .losses import losses
from .part import Measure, Part, Place
from .pretraining import families
from .table import table

#: The parts in order.
PARTS: Mapping[str, Callable[[Place], dict[str, Measure]]] = {
    "tests": gpu_tests.measurements,
    "ceiling": steps.ceiling,
    "bert": steps.bert,
    "trainer": steps.trainer,
    "phases": steps.phases,
    "families": families,
    "finetune": finetune,
    "losses": losses,
    "batches": batches.measurements,
}
#: Seconds of a part: nine minutes, less what starting and stopping take.
_SECONDS = 510.0


def main() -> int:
    """Run the chosen parts; returns 1 if a measurement of them failed."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description="What only a GPU can show, in parts.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all, in this order")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "runs/gpu_check"), help="folder")
    parser.add_argument("--again", action="store_true", help="also what is finished")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    place = _place("cpu" if os.environ.get("LMTRANSFER_GPU_CHECK") == "cpu" else "cuda")
    if place.tiny:
        os.environ.setdefault("LMTRANSFER_BENCH_SYNTHETIC", "200")
    complete = [
        Part(name, place, options.out, again=options.again).run(PARTS[name](place), seconds=_SECONDS)
        for name in options.parts or PARTS
    ]
    print(table(options.out, list(PARTS)))
    return int(not all(complete))


def _place(device: str) -> Place:
    cuda = device == "cuda"
    name = torch.cuda.get_device_name() if cuda else "CPU, tiny: only to see whether it works"
    return Place(
        device=device,
        name=f"{name}, torch {torch.__version__}",
        large=cuda and torch.cuda.get_device_properties(0).total_memory > 60e9,
        work=Path(tempfile.gettempdir()) / f"lmtransfer-gpu-check-{device}-{os.getuid()}",
    )


if __name__ == "__main__":
    sys.exit(main())

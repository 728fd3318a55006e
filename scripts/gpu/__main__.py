"""Runs the parts of the GPU check and prints the table; started by ``scripts/gpu_check.sh``."""

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
#: Time limit of a part in seconds: nine minutes, minus the time to start and stop.
_SECONDS = 510.0


def main() -> int:
    """Run the chosen parts; return 1 if one of their measurements failed."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check.sh", description="Tests and benchmarks for a GPU, in parts."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all, in this order")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or "runs/gpu_check"), help="output folder"
    )
    parser.add_argument("--again", action="store_true", help="repeat finished measurements too")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
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
    name = torch.cuda.get_device_name() if cuda else "CPU, tiny sizes, only to see whether the check works"
    return Place(
        device=device,
        name=f"{name}, torch {torch.__version__}",
        large=cuda and torch.cuda.get_device_properties(0).total_memory > 60e9,
        work=Path(tempfile.gettempdir()) / f"lmtransfer-gpu-check-{device}-{os.getuid()}",
    )


if __name__ == "__main__":
    sys.exit(main())

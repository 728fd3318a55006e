"""Write the loss curves of finished runs into lmtransfer/reporting/reference_curves.json.

    PYTHONPATH=tests python -m support.write_reference_curves laptop=runs/pretrain/mine ...

Each argument names a recipe and a run directory of ``lmtransfer pretrain``, or one of its seeds. The file is written
anew. Runs without a unigram entropy (objectives that mask nothing) are refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.reporting.figures.logged import loss_curve
from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.reference import entropy_of, settings_of
from lmtransfer.runs.labels import node_label
from support import ROOT

FILE = ROOT / "lmtransfer" / "reporting" / "reference_curves.json"
POINTS, PART = 40, "mlm"


def curve_of(recipe: str, folder: Path) -> dict[str, Any]:
    """One curve with at most ``POINTS`` points, closer together at the start."""
    run = read_run(folder.resolve())
    curve, entropy = loss_curve(run, recipe, PART), entropy_of(run)
    if curve is None or entropy is None:
        sys.exit(f"{folder}: no {PART} loss or no unigram entropy is logged")
    tokens = np.asarray(curve.tokens)
    wanted = np.unique(np.geomspace(1, len(tokens), POINTS).round().astype(int) - 1)
    return {
        "recipe": recipe,
        "corpus": node_label(run.config.get("corpus")),
        "seed": run.config.get("seed"),
        "settings": settings_of(run.config),
        "part": PART,
        "entropy": entropy,
        "tokens": [int(tokens[place]) for place in wanted],
        "loss": [round(float(curve.smooth[place]), 3) for place in wanted],
    }


def main() -> None:
    """Write the file from the runs of the command line."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    curves = [curve_of(recipe, Path(folder)) for recipe, _, folder in (word.partition("=") for word in sys.argv[1:])]
    FILE.write_text("[\n" + ",\n".join(json.dumps(curve) for curve in curves) + "\n]\n", encoding="utf-8")
    print(f"{len(curves)} curves in {FILE.relative_to(ROOT)}, {FILE.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()

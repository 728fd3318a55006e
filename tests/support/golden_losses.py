"""The losses of every objective over ten small steps. A change of names or structure must not change them.

``golden_losses.json`` holds them. Write them anew only if a change is meant to change training, and say so in the
commit:

    PYTHONPATH=tests python -m support.golden_losses [objective ...]    without names: all objectives
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from fakes.objectives import random_documents, store_of

from support.objective_table import NAMES, built, line_of

FILE = Path(__file__).with_suffix(".json")
STEPS, ROWS = 10, 8


def golden_losses(name: str, folder: Path) -> dict[str, list[float]]:
    """Each loss (and accuracy) of an objective, as a mean, at each of ten steps in float32 on one thread.

    Args:
        name: a file of conf/objective.
        folder: for the tokenised text.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        store = store_of(folder / name, random_documents(60))
        learner, source, _ = built(name, store, "objective.max_length=24", changes=line_of(name).changes)
        plan = source.plan(0)
        optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
        found: dict[str, list[float]] = {}
        for step in range(STEPS):
            torch.manual_seed(step)
            first = ROWS * (step % 4)
            losses, _ = learner.losses(source.build(0, plan, range(first, first + ROWS)))
            optimizer.zero_grad()
            torch.stack([loss.weight * loss.sum / max(1, loss.count) for loss in losses.values()]).sum().backward()
            optimizer.step()
            for kind, loss in losses.items():
                found.setdefault(kind, []).append(round(float(loss.sum.detach()) / max(1.0, float(loss.count)), 6))
        return found
    finally:
        torch.set_num_threads(threads)


def written() -> dict[str, dict[str, list[float]]]:
    """What the file holds: the losses by objective."""
    found: dict[str, dict[str, list[float]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Compute the losses of the named objectives, and write the file."""
    chosen = sys.argv[1:] or NAMES
    with tempfile.TemporaryDirectory() as folder:
        found = {name: golden_losses(name, Path(folder)) if name in chosen else written()[name] for name in NAMES}
    lines = [f" {json.dumps(name)}: {json.dumps(losses)}" for name, losses in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE}: {', '.join(chosen)}")


if __name__ == "__main__":
    main()

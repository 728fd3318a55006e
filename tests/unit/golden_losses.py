"""The losses of every objective over twenty small steps. A change of names or structure must not change them.

``scripts/write_golden_losses.py`` writes them to ``golden_losses.json``. Write them anew only if a change is meant to
change training, and say so in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from fakes.objectives import random_documents, store_of
from objective_table import built, line_of

FILE = Path(__file__).with_suffix(".json")
STEPS, ROWS = 20, 8


def golden_losses(name: str, folder: Path) -> dict[str, list[float]]:
    """Each loss (and accuracy) of an objective, as a mean, at each of twenty steps in float32 on one thread.

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

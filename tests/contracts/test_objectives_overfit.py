"""Objectives can be learned by heart by the models they are meant for: 32 rows, in seconds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from fakes.objectives import random_documents, store_of
from support.objective_table import built, line_of

#: One of each kind of loss. The golden losses show of all objectives that training is what it was.
FAST = ("lm", "mlm_nsp", "mlm_spans", "plm", "rtd", "skipgram")
#: Slow ones, and those that differ from others only in what is hidden.
SLOW = ("backward_lm", "bilm", "mlm_entities", "mlm_ngrams", "mlm_whole_words")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_thirty_two_rows_are_learnt_by_heart(tmp_path: Path, name: str) -> None:
    line = line_of(name)
    store = store_of(tmp_path / "s", random_documents(60))
    learner, source, node = built(name, store, "objective.max_length=24", changes=line.changes)
    batch = source.build(0, source.plan(0), range(32))
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2, weight_decay=0.0)
    means: dict[str, float] = {}
    for step in range(400):
        torch.manual_seed(step)
        losses, _ = learner.losses(batch)
        optimizer.zero_grad()
        torch.stack([loss.weight * loss.sum / loss.count for loss in losses.values()]).sum().backward()
        optimizer.step()
        means = {kind: loss.sum.item() / loss.count for kind, loss in losses.items()}
        if step == 0 and "mlm" in means:
            assert means["mlm"] == pytest.approx(math.log(96), abs=0.3)  # nothing is known yet
        if all(means[loss] < line.learned.get(loss, 0.1) for loss in node.losses):
            break
    assert step < 399, means
    assert all(means.get(f"{loss}_accuracy", 1) > 0.9 for loss in node.losses if loss not in line.learned), means

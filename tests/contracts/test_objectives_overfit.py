"""Every objective can be learned by heart by the model it is meant for, and by others: 32 rows, in seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.objectives import random_documents, store_of
from support.objective_table import MEANT_FOR, NAMES, built, line_of

#: Further models, by the objective that they learn.
OTHERS = [
    ("bilm", "bi_gpt_laptop"),
    ("lm", "gpt_laptop"),
    ("mlm", "roberta_laptop"),
    ("mlm_sop", "albert_lite"),  # with narrow embeddings, as published
]


#: Slow ones, and those that differ from others only in what is hidden; see also OTHERS.
SLOW = ("backward_lm", "bilm", "mlm_entities", "mlm_ngrams", "mlm_whole_words")
#: Those that differ from others only in sizes and budget.
ALIKE = ("all_tokens_mlm_laptop", "mlm_laptop")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES if n not in ALIKE]
)
def test_thirty_two_rows_are_learnt_by_heart(tmp_path: Path, name: str) -> None:
    learn_by_heart(tmp_path, name)


@pytest.mark.parametrize(("name", "model"), OTHERS)
def test_other_models_learn_them_too(tmp_path: Path, name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEANT_FOR, name, replace(line_of(name), model=model, changes={"embedding_dim": 16}))
    learn_by_heart(tmp_path, name)


def learn_by_heart(tmp_path: Path, name: str) -> None:
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

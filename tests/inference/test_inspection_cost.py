"""The memory that training is said to take on a GPU, against what an H200 took (scripts/RESULTS.md, "On a GPU")."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.objectives import random_documents, store_of
from support.objective_table import CONF, SMALL, built

from lmtransfer.config.config_files import group_config
from lmtransfer.inference.inspection.cost import estimate_gpu_memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective", "measured", "tolerance"),
    [("electra_small", "rtd", 5.7e9, 0.03), ("bert_base", "mlm", 15.0e9, 0.03), ("modern_base", "mlm", 20.6e9, 0.1)],
)
def test_memory_is_what_a_gpu_took(
    model: str, objective: str, measured: float, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 32,768 tokens in a pass, rows of 128 and a vocabulary of about 30,000."""
    monkeypatch.setattr("fakes.objectives.NumberTokenizer.vocab_size", 30_522)
    node = group_config("model", model, [CONF])
    sizes = {key: node[key] for key in SMALL if key in node}
    store = store_of(tmp_path, random_documents(300))
    learner, source, _ = built(objective, store, "objective.max_length=128", model=model, changes=sizes)
    plan = source.plan(0)
    batches = [source.build(0, plan, range(rows)) for rows in (4, 8)]
    found = estimate_gpu_memory(learner, batches, tokens=32_768, device=torch.device("cpu"), seed=0)
    assert found == pytest.approx(measured, rel=tolerance)

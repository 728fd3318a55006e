"""The cost of a step, and the estimated GPU memory against measurements on an H200 (scripts/RESULTS.md, "On a GPU")."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.objectives import NumberTokenizer, bert, random_documents, store_of
from support.objective_table import CONF, SMALL, built

from lmtransfer.inference.inspection.cost import (
    StepCost,
    estimate_gpu_memory,
    measurable_rows,
    measure,
    parameter_counts,
)
from lmtransfer.inference.inspection.tables import format_duration
from lmtransfer.launch.config_files import group_config
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.precision import Precision

TOKENIZER = NumberTokenizer()


def measured(tmp_path: Path, rows: int) -> tuple[StepCost, PretrainingLearner]:
    source = PretrainingSource(
        store=store_of(tmp_path / f"s{rows}", random_documents(200)),
        rows=LanguageStream(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER),
        seed=0,
        output_positions=("masked",),
    )
    learner = PretrainingLearner(bert(), [MaskedLanguageModel()])
    hardware = Hardware(device=torch.device("cpu"), precision=Precision(), reason="", threads=1, compile=False)
    batch = source.build(0, source.plan(0), range(rows))
    assert measurable_rows(batch, learner, torch.device("cpu")) == rows
    return measure(learner, AdamW(learner=learner), batch, hardware=hardware, seed=0), learner


def test_memory_is_counted_and_scales(tmp_path: Path) -> None:
    cost, learner = measured(tmp_path, 8)
    trainable = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    assert cost.weight_bytes == 4 * sum(p.numel() for p in learner.parameters())
    assert cost.gradient_bytes == 4 * trainable
    assert cost.state_bytes == pytest.approx(8 * trainable, rel=0.02)  # two moments, and step counts
    assert cost.tokens == 256
    double, _ = measured(tmp_path, 16)
    assert double.activation_bytes == pytest.approx(2 * cost.activation_bytes, rel=0.05)
    # At least the inputs of a layer's four matrix products over 256 tokens, with widths 16, 16, 16 and 32.
    assert cost.activation_bytes > 4 * 256 * 80
    assert cost.peak_bytes(512) == cost.peak_bytes(0) + 2 * cost.activation_bytes


def test_time_is_linear_in_tokens() -> None:
    cost = StepCost(
        tokens=100,
        pass_seconds=2.0,
        update_seconds=0.5,
        weight_bytes=0,
        gradient_bytes=0,
        state_bytes=0,
        activation_bytes=0,
    )
    assert cost.step_seconds(300) == 6.5
    assert [format_duration(s) for s in (3.25, 119, 120, 7200, 200_000)] == [
        "3.2 seconds",
        "119.0 seconds",
        "2.0 minutes",
        "2.0 hours",
        "2.3 days",
    ]


def test_parameters_are_counted_once_each() -> None:
    learner = PretrainingLearner(bert(), [MaskedLanguageModel()])
    counts = parameter_counts(learner)
    assert counts["in all"] == sum(p.numel() for p in learner.parameters())
    assert counts["in all"] == sum(count for part, count in counts.items() if part != "in all")
    assert counts["embeddings"] == 16 * (96 + 64 + 2)
    assert counts["head of mlm"] == 16 * 16 + 16 + 2 * 16 + 96


@pytest.mark.slow
def test_memory_is_what_a_gpu_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting: 32,768 tokens per pass, rows of 128 tokens, and a vocabulary of about 30,000."""
    monkeypatch.setattr("fakes.objectives.NumberTokenizer.vocab_size", 30_522)
    node = group_config("model", "electra_small", [CONF])
    sizes = {key: node[key] for key in SMALL if key in node}
    store = store_of(tmp_path, random_documents(300))
    learner, source, _ = built("rtd", store, "objective.max_length=128", model="electra_small", changes=sizes)
    plan = source.plan(0)
    batches = [source.build(0, plan, range(rows)) for rows in (4, 8)]
    found = estimate_gpu_memory(learner, batches, tokens=32_768, device=torch.device("cpu"), seed=0)
    assert found == pytest.approx(5.7e9, rel=0.03)

"""Sentence order prediction: its loss against a plain loop, filler, and refusals; gradients are in the parity tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, gpt, random_documents, store_of
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import NoCorruption
from lmtransfer.objectives.fit import check_fit
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.pair_label import SentenceOrderPrediction
from lmtransfer.objectives.rows.pairs import OrderedPairs, SentencePairs
from lmtransfer.objectives.source import PretrainingSource


@pytest.mark.parametrize("capacity", [None, 512])
def test_loss_equals_a_loop_over_rows(tmp_path: Path, capacity: int | None) -> None:
    source = PretrainingSource(
        store=store_of(tmp_path / "s", random_documents(40)),
        rows=OrderedPairs(max_length=32, tokenizer=TOKENIZER),
        corruption=NoCorruption(),
        seed=0,
        output_positions=collect_output_positions([SentenceOrderPrediction()]),
        capacity=capacity,
    )
    learner = PretrainingLearner(bert(), [SentenceOrderPrediction(weight=0.5)])
    encoder: Any = learner.encoder
    plan, ids = source.plan(0), range(9)
    batch = source.build(0, plan, ids)
    losses, _ = learner.losses(batch)
    assert {kind: (loss.count, loss.weight) for kind, loss in losses.items()} == {
        "sop": (9, 0.5),
        "sop_accuracy": (9, 0.0),
    }
    total, hits = 0.0, 0
    head: Any = learner.objectives["sop"]
    with torch.no_grad():
        for row in map(plan.row, ids):
            first = encoder(pack([row.tokens], [row.segments])).last[:1]
            logits = head.classifier(encoder.pooler(first))[0]
            total -= float(logits.log_softmax(0)[row.labels["sop"]])
            hits += int(logits.argmax()) == row.labels["sop"]
    assert losses["sop"].sum.item() == pytest.approx(total, rel=1e-5)
    assert losses["sop_accuracy"].sum.item() == hits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = learner.losses(batch)
    assert rounded["sop"].sum.dtype == torch.float32
    assert rounded["sop"].sum.item() == pytest.approx(total, rel=0.03)


def test_misfits_are_told() -> None:
    encoder = bert()
    encoder.pooler = None
    with refuses(ConfigError, "objective=sop", "pooler", "BertEncoder"):
        PretrainingLearner(encoder, [SentenceOrderPrediction()])
    with refuses(ConfigError, "objective=sop", "bidirectional", "model.attention", "causal"):
        PretrainingLearner(gpt(), [SentenceOrderPrediction()])
    with refuses(ConfigError, "'sop'", "SentencePairs", "objective/rows=ordered_pairs"):
        check_fit(
            encoder=bert(),
            objectives=[SentenceOrderPrediction()],
            rows=SentencePairs(max_length=32, tokenizer=TOKENIZER),
            corruption=NoCorruption(),
        )

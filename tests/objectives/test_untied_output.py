"""An output matrix of its own: the losses against torch's cross entropy over it, and where its gradient goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, gpt, random_documents, store_of

from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource


def _learner(cls: Any, *, tie_output: bool) -> PretrainingLearner:
    torch.manual_seed(0)
    return PretrainingLearner(gpt() if cls is LanguageModel else bert(), [cls(tie_output=tie_output)])


def _batch(folder: Path, learner: PretrainingLearner) -> Any:
    masked = learner.objective_list()[0].name == "mlm"
    source = PretrainingSource(
        store=store_of(folder / "s", random_documents(20)),
        rows=LanguageStream(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER) if masked else NoCorruption(),
        seed=0,
        output_positions=collect_output_positions(learner.objective_list()),
    )
    return source.build(0, source.plan(0), [3, 1, 11])


@pytest.mark.parametrize("cls", [MaskedLanguageModel, LanguageModel])
def test_with_the_token_embedding_as_its_own_matrix_the_loss_is_the_tied_one(cls: Any, tmp_path: Path) -> None:
    tied, untied = _learner(cls, tie_output=True), _learner(cls, tie_output=False)
    untied.load_state_dict(tied.state_dict(), strict=False)
    (objective,) = untied.objective_list()
    matrix = objective.get_submodule("output")
    batch = _batch(tmp_path, tied)
    name = objective.name
    with torch.no_grad():
        other = untied.losses(batch)[0][name].sum.item()
        matrix.weight.copy_(objective.tied_embedding.weight)
    expected = tied.losses(batch)[0][name].sum.item()
    assert abs(other - expected) > 1e-3
    assert untied.losses(batch)[0][name].sum.item() == pytest.approx(expected, rel=1e-6)


def test_the_token_embedding_learns_from_what_is_read_alone(tmp_path: Path) -> None:
    learner = _learner(MaskedLanguageModel, tie_output=False)
    batch = _batch(tmp_path, learner)
    learner.losses(batch)[0]["mlm"].sum.backward()
    (objective,) = learner.objective_list()
    embedding, output = objective.tied_embedding.weight.grad, objective.get_submodule("output").weight.grad
    read = set(batch.inputs.tokens_T.tolist())
    assert {row for row in range(96) if embedding[row].any()} <= read
    assert all(output[row].any() for row in range(96))  # each is in the softmax

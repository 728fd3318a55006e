"""The bag-of-words objective: weights, losses and gradients against closed forms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import TOKENIZER, bert, electra, elmo, gpt, perturbed, random_documents, store_of

from lmtransfer.data.batch import pack
from lmtransfer.data.token_frequencies import token_information
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.objectives.bag_of_words import BagOfWords
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import Corruption, NoCorruption, TokenMasking
from lmtransfer.objectives.language_model import BidirectionalLanguageModel, LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource

#: Encoders with what they learn beside the words of rows.
BESIDE: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Corruption]]] = {
    "bert": (bert, MaskedLanguageModel, lambda: TokenMasking(tokenizer=TOKENIZER)),
    "electra": (electra, ReplacedTokenDetection, lambda: TokenMasking(tokenizer=TOKENIZER)),
    "gpt": (gpt, LanguageModel, NoCorruption),
    "elmo": (elmo, BidirectionalLanguageModel, NoCorruption),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    documents = random_documents(60)
    documents[0] = [[7] * 400, [8] * 40]  # words with a different information
    return store_of(tmp_path_factory.mktemp("stores") / "s", documents)


def learner_of(name: str, **changes: Any) -> PretrainingLearner:
    """Return a learner in float64 with perturbed weights."""
    make_encoder, make_other, _ = BESIDE[name]
    learner = PretrainingLearner(make_encoder(), [make_other(), BagOfWords(tokenizer=TOKENIZER, **changes)])  # type: ignore[arg-type]
    return perturbed(learner.double(), seed=3)


def batch_of(
    learner: PretrainingLearner, store: TokenStore, name: str, rows: range = range(6), capacity: int | None = None
) -> PretrainingBatch:
    source = PretrainingSource(
        store=store,
        rows=LanguageStream(max_length=24, tokenizer=TOKENIZER),
        corruption=BESIDE[name][2](),
        seed=0,
        output_positions=collect_output_positions(learner.objective_list()),
        capacity=capacity,
    )
    return source.build(0, source.plan(0), rows)


def targets(batch: PretrainingBatch, information_V: np.ndarray) -> torch.Tensor:
    """Count the target distribution of each row."""
    q_BV = torch.zeros(batch.original.num_real, TOKENIZER.vocab_size, dtype=torch.float64)
    edges = batch.original.cu_seqlens.tolist()
    for row in range(batch.original.num_real):
        tokens = batch.original.tokens_T[edges[row] : edges[row + 1]].tolist()
        for token, times in Counter(t for t in tokens if not TOKENIZER.is_special[t]).items():
            q_BV[row, token] = times * information_V[token]
    return q_BV / q_BV.sum(1, keepdim=True)


def test_the_information_of_a_token_is_that_of_its_share(store: TokenStore) -> None:
    counts = Counter(store.tokens(0, store.num_tokens).tolist())
    information = token_information(store, size=96)
    assert counts[7] >= 400
    for token in range(96):
        share = counts.get(token, min(counts.values())) / store.num_tokens
        assert information[token] == pytest.approx(-math.log(share))
    learner = learner_of("bert")
    bow = learner.objectives["bow"]
    assert bow.information.tolist() == [float(not special) for special in TOKENIZER.is_special]
    bow.observe(store)
    assert bow.information.tolist() == pytest.approx(np.where(TOKENIZER.is_special, 0, information).tolist())
    assert "bow.information" in {name.removeprefix("objectives.") for name in learner.state_dict()}


@pytest.mark.parametrize(("pooling", "capacity"), [("mean", None), ("mean", 256), ("first", 256)])
@pytest.mark.parametrize("name", BESIDE)
def test_loss_accuracy_and_gradient_equal_the_formula(
    store: TokenStore, name: str, pooling: str, capacity: int | None
) -> None:
    learner = learner_of(name, pooling=pooling, weight=2.0)
    bow = learner.objectives["bow"]
    bow.observe(store)
    batch = batch_of(learner, store, name, capacity=capacity)
    losses, _ = learner.losses(batch)
    assert (batch.original.num_real < batch.original.num_sequences) == (capacity is not None)
    if name == "bert":
        assert not torch.equal(batch.inputs.tokens_T, batch.original.tokens_T)

    q_BV, edges = targets(batch, bow.information.double().numpy()), batch.inputs.cu_seqlens.tolist()
    p_BV = torch.zeros_like(q_BV)
    for row in range(6):
        alone = pack([batch.inputs.tokens_T[edges[row] : edges[row + 1]].numpy()])
        with torch.no_grad():
            states = learner.encoder(alone).last
            pooled = states.mean(0) if pooling == "mean" else states[0]
            hidden = bow.dense.weight @ pooled + bow.dense.bias
            p_BV[row] = (learner.encoder.token_embedding.weight @ hidden + bow.bias).softmax(0)
    assert losses["bow"].sum.item() == pytest.approx(-(q_BV * p_BV.log()).sum().item(), rel=1e-9)
    assert (losses["bow"].count, losses["bow"].weight) == (6, 2.0)
    hits = sum(float(q_BV[row, p_BV[row].argmax()] > 0) for row in range(6))
    assert losses["bow_accuracy"].sum.item() == hits
    losses["bow"].sum.backward()
    torch.testing.assert_close(bow.bias.grad, (p_BV - q_BV).sum(0))


def test_it_changes_nothing_of_the_other_loss(store: TokenStore) -> None:
    both = learner_of("bert")
    alone = PretrainingLearner(both.encoder, [MaskedLanguageModel()]).double()
    alone.objectives["mlm"].load_state_dict(both.objectives["mlm"].state_dict())
    batches = [batch_of(learner, store, "bert") for learner in (both, alone)]
    assert (batches[0].output_positions is None, batches[1].output_positions is None) == (True, False)
    losses = [learner.losses(batch)[0]["mlm"].sum.item() for learner, batch in zip((both, alone), batches, strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_row_without_words_adds_nothing() -> None:
    learner = learner_of("bert")
    bow = learner.objectives["bow"]
    rows = pack([np.array([1, 2]), np.array([1, 50, 2])])
    (whole, _), (alone, _) = (learner.losses(_as_batch(packed)) for packed in (rows, pack([np.array([1, 50, 2])])))
    torch.testing.assert_close(whole["bow"].sum, alone["bow"].sum)
    whole["bow"].sum.backward()
    assert bow.bias.grad.isfinite().all()


def _as_batch(packed: Any) -> PretrainingBatch:
    nothing = torch.zeros(0, dtype=torch.int64)
    return PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=nothing,
        targets_M=nothing,
        weights_M=nothing.float(),
        uniform_M=nothing.float(),
        num_targets=0,
        labels={},
        output_positions=None,
        read_index={"masked": nothing, "starts": packed.starts_B},
        keys=("",) * packed.num_real,
    )

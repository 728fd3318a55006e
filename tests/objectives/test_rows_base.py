"""The part of a plan that is sent to a worker has the same rows, but not the text."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from fakes.objectives import TOKENIZER, random_documents, store_of

from lmtransfer.data.corpora.mixture import Sampling
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import MixedStore
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.rows.base import RowPlan, Rows
from lmtransfer.objectives.rows.pairs import OrderedPairs, SentencePairs
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource

WAYS: dict[str, Rows] = {
    "sentence_pairs": SentencePairs(max_length=24, tokenizer=TOKENIZER),
    "ordered_pairs": OrderedPairs(max_length=24, tokenizer=TOKENIZER),
    "full_sentences": FullSentences(max_length=24, tokenizer=TOKENIZER),
    "stream": LanguageStream(max_length=24, tokenizer=TOKENIZER),
    "contiguous": LanguageStream(max_length=24, frame="none", contiguous=True, tokenizer=TOKENIZER),
}


@pytest.fixture(scope="module", params=["one", "mixture"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    one, other = (store_of(folder / str(seed), random_documents(200, seed=seed)) for seed in range(2))
    return one if request.param == "one" else MixedStore({"a": one, "b": other}, Sampling())


def source_of(way: str, store: Any) -> PretrainingSource:
    return PretrainingSource(store=store, rows=WAYS[way], corruption=TokenMasking(tokenizer=TOKENIZER), seed=3)


@pytest.mark.parametrize("way", WAYS)
def test_a_part_that_was_sent_builds_the_same_batch(way: str, store: Any) -> None:
    if way == "contiguous" and isinstance(store, MixedStore):
        pytest.skip("contiguous rows continue one text")
    source = source_of(way, store)
    plan = source.plan(1)
    rows = np.random.default_rng(0).permutation(len(plan.lengths))[:7]
    sent = pickle.dumps(source.part(plan, rows))
    assert len(sent) < 4000  # without the text and the other rows
    worker = pickle.loads(pickle.dumps(source))
    expected, built = source.build(1, plan, rows), worker.build(1, pickle.loads(sent), rows)
    assert built.keys == expected.keys
    for name in ("tokens_T", "segments_T", "cu_seqlens"):
        assert getattr(built.original, name).tolist() == getattr(expected.original, name).tolist()
        assert getattr(built.inputs, name).tolist() == getattr(expected.inputs, name).tolist()
    assert {name: label.tolist() for name, label in built.labels.items()} == {
        name: label.tolist() for name, label in expected.labels.items()
    }


class _PlansHereOnly(PretrainingSource):
    """Fails if a worker makes a plan."""

    here = os.getpid()

    def plan(self, epoch: int) -> RowPlan:
        assert os.getpid() == self.here, "a worker plans"
        return super().plan(epoch)


def test_workers_make_no_plan(store: Any) -> None:
    given = {"store": store, "rows": WAYS["sentence_pairs"], "corruption": TokenMasking(tokenizer=TOKENIZER), "seed": 3}
    steps = PlannedStream(_PlansHereOnly(**given), seed=0, batch_tokens=200, num_workers=1).steps()
    alone = PlannedStream(PretrainingSource(**given), seed=0, batch_tokens=200).steps()
    for _ in range(4):
        assert next(steps).micro_batches[0].keys == next(alone).micro_batches[0].keys

"""What compiled passes compute against what a step holds: plans of the GPU recipes on one rank and on several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.objectives import NumberTokenizer, random_documents, store_of

from lmtransfer.config.phases import phases_of
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.data.micro_batches import PlannedStream, Source
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.launch.run_once import command_settings

#: Recipes for GPUs.
RECIPES = (
    *("adapt_gpu", "albert_base", "babylm_strict", "babylm_strict_small", "bert_base", "electra_small", "elmo"),
    *("gpt_base", "modern_base", "modern_small", "roberta_base", "transformer_xl_base", "xlnet_base"),
)
#: Full steps that are planned.
STEPS = 12


class _Lengths(Source):
    """Rows of these lengths; nothing is built."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths

    def plan(self, epoch: int) -> Any:
        return self

    def build(self, epoch: int, plan: Any, row_ids: Any, *, follows: bool | None = None) -> Any:
        return int(self.lengths[row_ids].sum())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    documents = random_documents(900, most_sentences=60, longest=40)
    return store_of(tmp_path_factory.mktemp("store"), documents)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_passes_compute_little_filler(recipe: str, world_size: int, store: TokenStore) -> None:
    pretraining = command_settings(
        "pretrain", [f"experiment={recipe}", *["corpus.path=texts"][: recipe.startswith("babylm")]]
    )
    assert isinstance(pretraining, PretrainSettings)
    for phase in phases_of(pretraining):
        rows = phase.objective.rows.build(tokenizer=NumberTokenizer())
        train = pretraining.train if phase.train is None else phase.train
        batch_tokens, micro_batch_tokens = train.batch_tokens, train.micro_batch_tokens
        assert batch_tokens is not None
        own = rows.plan(store, seed=0, epoch=0).lengths
        own = own[own == rows.max_length] if rows.contiguous else own
        source = _Lengths(np.resize(own, int((STEPS + 2) * batch_tokens / own.mean()) + 1))
        settings = {
            "batch_tokens": batch_tokens,
            "micro_batch_tokens": micro_batch_tokens,
            "world_size": world_size,
            "contiguous": rows.contiguous,
        }
        real, computed, passes = 0, 0, set()
        for rank in range(world_size):
            stream = PlannedStream(source, seed=0, rank=rank, **settings)
            capacity = stream.capacity(rows.max_length)
            for step, _ in zip(stream.steps(), range(STEPS), strict=False):
                assert max(step.micro_batches) <= capacity
                real += sum(step.micro_batches)
                computed += len(step.micro_batches) * capacity
                passes.add(len(step.micro_batches))
        assert len(passes) == 1  # the same number on every rank in every step
        assert real / computed >= 0.96

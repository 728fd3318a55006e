"""The arithmetic that is said to be needed, against what PyTorch counts in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import NumberTokenizer, electra, elmo, gpt, modern, random_documents, store_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.all_tokens import AllTokensMaskedLanguageModel
from lmtransfer.objectives.bidirectional_lm import BidirectionalLanguageModel
from lmtransfer.objectives.corruption.base import NoCorruption
from lmtransfer.objectives.corruption.token_masking import TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.utilisation import learning_flops

TOKENIZER = NumberTokenizer()
SIZE = {"vocab_size": 96, "dim": 64, "num_heads": 2, "hidden_dim": 256, "max_length": 64, "dropout": 0.0}


def _albert(**changes: Any) -> AlbertEncoder:
    return AlbertEncoder(**{**SIZE, "embedding_dim": 16, "num_layers": 6, **changes})


MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (lambda: BertEncoder(**SIZE, num_layers=3), MaskedLanguageModel),
    "albert": (_albert, MaskedLanguageModel),
    "albert-ffn": (lambda: _albert(share="ffn"), MaskedLanguageModel),
    "electra": (lambda: electra(dim=64, hidden_dim=256, num_layers=4), ReplacedTokenDetection),
    "all-tokens": (lambda: electra(dim=64, hidden_dim=256, num_layers=4), AllTokensMaskedLanguageModel),
    "modern": (lambda: modern(dim=64, hidden_dim=96, window=64), MaskedLanguageModel),
    "gpt": (gpt, LanguageModel),
    "elmo": (elmo, BidirectionalLanguageModel),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_tokens_arithmetic_is_what_is_counted_in_a_step(tmp_path: Path, name: str) -> None:
    make, objective = MODELS[name]
    masked = objective in (MaskedLanguageModel, ReplacedTokenDetection, AllTokensMaskedLanguageModel)
    source = PretrainingSource(
        store=store_of(tmp_path / "s", random_documents(60)),
        rows=LanguageStream(max_length=48, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER) if masked else NoCorruption(),
        seed=0,
        output_positions={"all", "masked"},
    )
    learner = PretrainingLearner(make(), [objective()])
    batch = source.build(0, source.plan(0), range(8))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        losses, _ = learner.losses(batch)
        torch.stack([loss.sum * loss.weight for loss in losses.values()]).sum().backward()
    share = batch.num_targets / batch.num_tokens if masked else 1.0
    expected = learning_flops(learner, mean_length=48, target_share=share)
    counted = counter.get_total_flops() / batch.num_tokens
    assert expected == pytest.approx(counted, rel=1e-3)

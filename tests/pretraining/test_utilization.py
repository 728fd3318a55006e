"""The estimated FLOP, against PyTorch's count for a step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.objectives import NumberTokenizer, electra, elmo, gpt, modern, random_documents, store_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.language_model import BidirectionalLanguageModel, LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import AllTokensMaskedLanguageModel, ReplacedTokenDetection
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.messages import large_output_note
from lmtransfer.pretraining.utilization import learning_flops, output_flops

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


def _counted(folder: Path, encoder: Any, objective: Any) -> tuple[PretrainingLearner, float, float]:
    """Return a learner, the share of predicted tokens in a batch, and PyTorch's FLOP count per token."""
    masked = objective in (MaskedLanguageModel, ReplacedTokenDetection, AllTokensMaskedLanguageModel)
    source = PretrainingSource(
        store=store_of(folder, random_documents(60)),
        rows=LanguageStream(max_length=48, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER) if masked else NoCorruption(),
        seed=0,
        output_positions=collect_output_positions([objective()]),
    )
    learner = PretrainingLearner(encoder, [objective()])
    batch = source.build(0, source.plan(0), range(8))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        losses, _ = learner.losses(batch)
        torch.stack([loss.sum * loss.weight for loss in losses.values()]).sum().backward()
    share = batch.num_targets / batch.num_tokens if masked else 1.0
    return learner, share, counter.get_total_flops() / batch.num_tokens


@pytest.mark.parametrize("name", MODELS)
def test_a_tokens_arithmetic_is_what_is_counted_in_a_step(tmp_path: Path, name: str) -> None:
    make, objective = MODELS[name]
    learner, share, counted = _counted(tmp_path / "s", make(), objective)
    assert learning_flops(learner, mean_length=48, target_share=share) == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize(("kind", "objective"), [(BertEncoder, MaskedLanguageModel), (GptEncoder, LanguageModel)])
def test_the_part_of_the_output_is_what_more_pieces_add(tmp_path: Path, kind: Any, objective: Any) -> None:
    one, other = (
        _counted(tmp_path / str(size), kind(**{**SIZE, "vocab_size": size}, num_layers=2), objective)
        for size in (96, 192)
    )
    part = output_flops(one[0], mean_length=48, target_share=one[1])
    assert part == pytest.approx(other[2] - one[2], rel=1e-3)


@pytest.mark.parametrize(("share", "num_pieces", "said"), [(0.7, 32768, True), (0.5, 32768, False), (0.7, 8192, False)])
def test_a_large_output_is_noted(share: float, num_pieces: int, said: bool) -> None:
    text: Any = SimpleNamespace(tokenizer=SimpleNamespace(num_pieces=num_pieces))
    note = large_output_note(share, text)
    assert (note is not None) == said
    assert note is None or all(part in note for part in ("70 %", "32,768", "tokenizer.vocab_size=8192"))

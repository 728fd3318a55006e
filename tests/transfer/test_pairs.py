"""Pairs of texts, read as one sequence, or separately and then compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes.tasks import WordTokenizer, bert, gpt
from support.refusals import refuses
from torch import Tensor

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import ClassificationSpec, LabelTargets
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.pooling import PairComparison

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
PAIRS = ClassificationSpec(2, pairs=True)


def _encoded(num: int = 12, *, num_segments: int = 2, single: bool = False) -> EncodedExamples:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 7))) for _ in range(2 * num)]
    examples = [
        TextExample(f"train:{i}", texts[2 * i], None if single else texts[2 * i + 1], label=i % 2) for i in range(num)
    ]
    labels = LabelTargets(np.arange(num) % 2)
    return encode_texts(examples, labels, WordTokenizer(), max_length=12, num_segments=num_segments)


def _batch(encoded: EncodedExamples, rows: list[int]) -> TaskBatch:
    source = TaskSource(encoded)
    return source.build(0, source.plan(0), rows)


def _learner(encoder: Any, **changes: Any) -> TaskLearner:
    settings: dict[str, Any] = {"freeze": "full", "pooling": "mean", "dropout": 0.0, "pairs": "apart"}
    return TransferMethod(**{**settings, **changes}).learner(encoder, head=PAIRS, seed=0).eval()


def _by_hand(learner: TaskLearner, encoded: EncodedExamples, row: int) -> Tensor:
    """Return the result for a single pair, split at the separator, with the texts read one after the other."""
    tokens = encoded.tokens_T[encoded.offsets[row] : encoded.offsets[row + 1]]
    end = tokens.tolist().index(WordTokenizer.sep_id) + 1
    u, v = (learner.encoder(pack([text])).layers[-1].float().mean(0) for text in (tokens[:end], tokens[end:]))
    return torch.cat([u, v, (u - v).abs(), u * v])


@pytest.mark.parametrize(("encoder", "num_segments"), [(bert, 2), (gpt, 1)])
def test_texts_are_pooled_each_by_itself_and_compared(encoder: Any, num_segments: int) -> None:
    encoded, rows = _encoded(num_segments=num_segments), [5, 0, 3, 11]
    assert encoded.num_truncated > 0
    learner = _learner(encoder())
    with torch.no_grad():
        ours = learner.head_input(_batch(encoded, rows))
        theirs = torch.stack([_by_hand(learner, encoded, row) for row in rows])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_chosen_part_keeps_where_the_second_texts_begin() -> None:
    encoded = _encoded()
    part = encoded.select(np.array([7, 2]))
    assert encoded.first_lengths is not None
    assert part.first_lengths is not None
    assert part.first_lengths.tolist() == encoded.first_lengths[[7, 2]].tolist()


@pytest.mark.parametrize("changes", [{}, {"layers": "mix"}, {"pooling": "max"}, {"pooling": "attention"}])
def test_kept_features_give_the_same(changes: dict[str, Any]) -> None:
    learner = _learner(bert(), freeze="frozen", **changes)
    batch = _batch(_encoded(), [4, 1, 8])
    with torch.no_grad():
        torch.testing.assert_close(learner.head_logits(learner.frozen_features(batch), batch), learner.logits(batch))


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({"pairs": "auto", "pooling": "mean"}, True),
        ({"pairs": "auto", "pooling": "family"}, False),
        ({"pairs": "auto", "pooling": "cls"}, False),
        ({"pairs": "together", "pooling": "mean"}, False),
        ({"pairs": "apart", "pooling": "attention"}, True),
    ],
)
def test_auto_reads_apart_where_all_tokens_are_pooled(changes: dict[str, Any], apart: bool) -> None:
    assert isinstance(_learner(bert(), **changes).composition, PairComparison) == apart


def test_single_texts_are_composed_as_ever() -> None:
    method = TransferMethod(freeze="full", pooling="mean", pairs="apart")
    learner = method.learner(bert(), head=ClassificationSpec(2), seed=0)
    assert not isinstance(learner.composition, PairComparison)
    assert _encoded(single=True).first_lengths is None


def test_one_token_for_both_texts_is_not_read_apart() -> None:
    with refuses(ConfigError, "transfer.pairs=apart", "transfer.pooling=cls"):
        _learner(bert(), pooling="cls")

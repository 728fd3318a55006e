"""Incompatible rows, corruptions, objectives and encoders are refused, all at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.objectives import TOKENIZER, bert, gpt
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.corruption.permutation import PermutationTargets
from lmtransfer.objectives.corruption.windows import ContextWindows
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction, SentenceOrderPrediction
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.rows.stream import LanguageStream


def _mlm_nsp() -> list[Objective]:
    return [MaskedLanguageModel(), NextSentencePrediction()]


def test_all_misfits_are_told_at_once() -> None:
    rows = LanguageStream(max_length=128, tokenizer=TOKENIZER)
    names = ("objective.max_length=128", "model.max_length=64", "'nsp'", "objective/corruption=tokens")
    with refuses(ConfigError, *names) as raised:
        check_compatible(
            encoder=bert(),
            objectives=_mlm_nsp(),
            rows=rows,
            corruption=NoCorruption(),
        )
    assert len(raised.value.problems) == 3


def test_what_is_no_subclass_is_told_with_what_it_must_be() -> None:
    things: Any = SimpleNamespace(name="own", max_length=8)
    with pytest.raises(ConfigError) as raised:
        check_compatible(encoder=bert(), objectives=[things], rows=things, corruption=NoCorruption())
    named = [
        ("objective.rows", "SimpleNamespace", "lmtransfer.objectives.rows.base.Rows"),
        ("objective.losses", "SimpleNamespace", "lmtransfer.objectives.base.Objective"),
    ]
    for problem, names in zip(raised.value.problems, named, strict=True):
        assert all(name in problem for name in names), problem


def test_other_misfits_are_told() -> None:
    pairs, masks = SentencePairs(max_length=32, tokenizer=TOKENIZER), TokenMasking(tokenizer=TOKENIZER)
    with refuses(ConfigError, "model.num_segments=2"):
        check_compatible(encoder=bert(num_segments=1), objectives=[MaskedLanguageModel()], rows=pairs, corruption=masks)
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)
    with refuses(ConfigError, "objective.corruption", "(lm)", "objective/corruption=none"):
        check_compatible(encoder=gpt(), objectives=[LanguageModel()], rows=rows, corruption=masks)
    check_compatible(encoder=gpt(), objectives=[LanguageModel()], rows=rows, corruption=NoCorruption())
    check_compatible(encoder=bert(), objectives=_mlm_nsp(), rows=pairs, corruption=masks)
    for shows in (PermutationTargets(tokenizer=TOKENIZER), ContextWindows(tokenizer=TOKENIZER)):
        with refuses(ConfigError, "objective.losses.mlm", type(shows).__name__, "objective/corruption=tokens"):
            check_compatible(encoder=bert(), objectives=[MaskedLanguageModel()], rows=rows, corruption=shows)


def test_misfits_of_pairs_are_told() -> None:
    encoder = bert()
    encoder.pooler = None
    for objective in (NextSentencePrediction(), SentenceOrderPrediction()):
        with refuses(ConfigError, f"objective={objective.name}", "pooler", "BertEncoder"):
            PretrainingLearner(encoder, [objective])
    rows = SentencePairs(max_length=32, tokenizer=TOKENIZER)
    with refuses(ConfigError, "'sop'", "SentencePairs", "objective/rows=ordered_pairs"):
        check_compatible(encoder=bert(), objectives=[SentenceOrderPrediction()], rows=rows, corruption=NoCorruption())

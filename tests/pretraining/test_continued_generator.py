"""generator_start=encoder: the same function, separate weights, and the head for masked tokens; refused settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import bert, electra, modern
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import AllTokensMaskedLanguageModel, ReplacedTokenDetection
from lmtransfer.pretraining.continued import inherit_heads
from lmtransfer.training.weights import weights

ENCODERS: dict[str, Callable[..., Any]] = {"electra": electra, "modern": modern}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "rtd": ReplacedTokenDetection,
    "all_tokens_mlm": AllTokensMaskedLanguageModel,
}
COPY = {"generator_size": 1.0, "generator_start": "encoder"}


def masked_learner(name: str) -> PretrainingLearner:
    """Return a masked language model with perturbed weights."""
    learner = PretrainingLearner(ENCODERS[name](num_heads=1), [MaskedLanguageModel()])
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return learner


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", ENCODERS)
def test_it_computes_what_the_encoder_and_its_head_did(name: str, kind: str, sharing: str) -> None:
    before = masked_learner(name)
    packed = pack([np.array([1, 7, 30, 5, 2]), np.array([1, 80, 2])])
    states_TD = before.encoder(packed).last
    logits_TV = before.objective_list()[0].token_logits(states_TD)
    heads = {key.removeprefix("objectives."): tensor for key, tensor in weights(before).items()}

    learner = PretrainingLearner(before.encoder, [OBJECTIVES[kind](embedding_sharing=sharing, **COPY)])
    assert inherit_heads(learner, heads).partly_loaded == (kind,)
    generator = learner.objective_list()[0].generator
    generator_TD = generator(packed).last
    torch.testing.assert_close(generator_TD, states_TD, rtol=0, atol=0)
    torch.testing.assert_close(learner.encoder(packed).last, states_TD, rtol=0, atol=0)
    head = learner.objective_list()[0].inner()["generator"]
    torch.testing.assert_close(head.token_logits(generator_TD), logits_TV, rtol=0, atol=0)

    with torch.no_grad():  # separate from then on
        for parameter in generator.stack.parameters():
            parameter.zero_()
    torch.testing.assert_close(learner.encoder(packed).last, states_TD, rtol=0, atol=0)


def test_a_head_of_its_own_goes_before_one_of_masked_tokens() -> None:
    other = PretrainingLearner(electra(num_heads=1), [ReplacedTokenDetection(**COPY)])
    with torch.no_grad():
        other.objective_list()[0].generator_head.bias.fill_(3.0)
    heads = {key.removeprefix("objectives."): tensor for key, tensor in weights(other).items()}
    heads["mlm.bias"] = torch.full((96,), 5.0)
    learner = PretrainingLearner(electra(num_heads=1), [ReplacedTokenDetection(**COPY)])
    inherit_heads(learner, heads)
    assert set(learner.objective_list()[0].generator_head.bias.tolist()) == {3.0}


def test_by_itself_it_takes_no_other_head() -> None:
    learner = PretrainingLearner(electra(), [ReplacedTokenDetection()])
    assert inherit_heads(learner, {"mlm.bias": torch.full((96,), 5.0)}).random == ("rtd",)
    assert set(learner.objective_list()[0].generator_head.bias.tolist()) == {0.0}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_what_is_refused(kind: str) -> None:
    make, key = OBJECTIVES[kind], f"objective.losses.{kind}"
    other_ways = (f"{key}.generator_size=1.0", "generator_start=random")
    with refuses(ConfigError, f"{key}.generator_start=encoder", "0.5", *other_ways):
        make(generator_size=0.5, generator_start="encoder")
    with refuses(ConfigError, "generator_start=encoder", "num_heads=1", " 2", "generator_start=random"):
        PretrainingLearner(electra(), [make(**COPY)])
    with refuses(ConfigError, f"objective={kind}", "BertEncoder", "model=electra_laptop"):
        PretrainingLearner(bert(), [make(**COPY)])

"""Arguments outside the range in a component's signature are refused."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.objectives import TOKENIZER
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import ConfigError

_GENERATOR: dict[str, list[Any]] = {
    "temperature": [0],
    "generator_size": [0, 1.5],
    "embedding_sharing": ["untied"],
    "generator_start": ["me"],
}
_WORDS: dict[str, list[Any]] = {"max_words": [0]}
BAD: dict[str, dict[str, list[Any]]] = {
    "models.albert.AlbertEncoder": {"share": ["groups"]},
    "models.modern.ModernEncoder": {"global_every": [0]},
    "objectives.masked_lm.MaskedLanguageModel": {"num_sampled": [0]},
    "objectives.language_model.LanguageModel": {"num_sampled": [0]},
    "objectives.language_model.BidirectionalLanguageModel": {"num_sampled": [0]},
    "objectives.permutation_lm.PermutationLanguageModel": {"num_sampled": [0]},
    "objectives.replaced_token.AllTokensMaskedLanguageModel": {"num_sampled": [0], **_GENERATOR},
    "objectives.replaced_token.ReplacedTokenDetection": _GENERATOR,
    "objectives.span_boundary.SpanBoundaryObjective": {"num_positions": [0], "position_dim": [0]},
    "objectives.bag_of_words.BagOfWords": {"pooling": ["max"]},
    "objectives.corruption.masking.TokenMasking": {
        "mask_prob": [0, 1.5],
        "max_predictions": [0],
        "weighting": ["loss"],
    },
    "objectives.corruption.permutation.PermutationTargets": {"max_ngram": [0], "max_predictions": [0]},
    "objectives.corruption.windows.ContextWindows": {"window": [0], "num_negatives": [0], "subsample": [0]},
    "objectives.corruption.words.NGrams": _WORDS,
    "objectives.corruption.words.Spans": {**_WORDS, "stop_prob": [0, 1.5]},
    "objectives.corruption.words.Entities": {**_WORDS, "entity_share": [2]},
    "objectives.rows.pairs.SentencePairs": {"short_seq_prob": [1.5], "random_prob": [-1]},
    "objectives.rows.pairs.OrderedPairs": {"short_seq_prob": [1.5], "swap_prob": [-1]},
}


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [(target, name, value) for target, bad in BAD.items() for name, values in bad.items() for value in values],
)
def test_a_value_out_of_range_is_refused(target: str, name: str, value: Any) -> None:
    node = OmegaConf.create({"_target_": f"lmtransfer.{target}", name: value})
    with refuses(ConfigError, name, str(value)):
        build(node, tokenizer=TOKENIZER)

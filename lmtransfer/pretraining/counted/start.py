"""The result of counting before the heads are built: token embeddings, and the frequency of each token.

Shape legend: V vocabulary, C characters of a word, P width of a word vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.config.component import build
from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import token_shares
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.pretraining.counted.characters import fit_characters
from lmtransfer.pretraining.counted.embeddings import CountedEmbeddings
from lmtransfer.randomness import derived_seed
from lmtransfer.training import distributed

#: Shorter budgets than this, in seconds, limit counting.
_SHORT = 300.0
#: How many tokens are counted first within a short budget, and by which factor they grow.
_FIRST_TOKENS, _GROWTH = 1 << 17, 4


@dataclass(frozen=True, slots=True)
class Start:
    """The result of counting.

    Attributes:
        num_tokens: number of counted tokens; 0 if the run has a checkpoint, which contains the embeddings.
        seconds: seconds that counting took; a budget in seconds includes them.
        shares_V: share of each token in the text, for the biases of heads; shorter than V if the last tokens never
            occur. None: biases start at 0.
        vectors_VP: the counted vectors of an encoder that reads characters, for its separate output matrix; None: the
            encoder has a table, or the run has a checkpoint.
        explained: share of the variance of these vectors that the encoder reproduces from characters.
        cut: whether not all of the text is counted, so that a short budget in seconds is left for training.
    """

    num_tokens: int
    seconds: float
    shares_V: np.ndarray | None
    vectors_VP: Tensor | None = None
    explained: float = 0.0
    cut: bool = False

    def fill_head(self, objective: Objective) -> None:
        """Set an objective's biases over the vocabulary to log frequencies with mean 0.

        If the encoder reads characters, also set an output matrix of the same shape to the counted vectors.

        Args:
            objective: the objective, bound to its encoder.
        """
        if self.vectors_VP is not None:
            for name in objective.vocabulary_sized:
                parameter = objective.get_parameter(name)
                if parameter.shape == self.vectors_VP.shape:
                    with torch.no_grad():
                        parameter.copy_(self.vectors_VP)
        if self.shares_V is None:
            return
        shares_V = np.pad(self.shares_V, (0, max(0, objective.encoder.vocab_size - len(self.shares_V))))
        log_V = np.log(np.maximum(shares_V, shares_V[shares_V > 0].min() / 2))
        for name in objective.vocabulary_sized:
            parameter = objective.get_parameter(name)
            if parameter.shape == log_V.shape:
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(log_V - log_V.mean()))


def count_first(
    node: Any,
    encoder: Encoder,
    store: TokenStore | MixedStore,
    *,
    characters_VC: np.ndarray | None,
    seed: int,
    fresh: bool,
    budget: float | None = None,
) -> Start:
    """Count a text and initialise an encoder's token embeddings, on the main rank; the other ranks get its weights.

    Call it before anything copies or ties the embedding table.

    Args:
        node: ``embeddings`` of the config.
        encoder: an encoder with token embeddings, or one that reads words as characters.
        store: the training text.
        characters_VC: character ids of each token id, if the tokenizer gives them.
        seed: seed of the run.
        fresh: whether the run has no checkpoint yet; otherwise nothing is counted.
        budget: budget of the run in seconds. Of a short one counting takes about half at most: it begins with little
            text, and counts more as long as there is time.

    Raises:
        ConfigError: counting even a little text takes more than half of the budget.
    """
    counted, start_time = cast(CountedEmbeddings, build(node)), perf_counter()
    shares_V, vectors_VP = token_shares(store), None
    num_tokens, explained, cut = 0, 0.0, False
    if fresh and distributed.is_main():
        table = encoder.token_embedding
        if table is not None:
            num_tokens, cut = _fill(counted, table, store, seed=seed, budget=budget)
        else:
            network = encoder.word_network
            assert network is not None  # checked before any text is read
            assert characters_VC is not None
            words = nn.Embedding(len(characters_VC), network.projection.out_features)
            absent = torch.Generator().manual_seed(derived_seed(seed, "absent words"))
            nn.init.normal_(words.weight, std=counted.deviation, generator=absent)
            num_tokens, cut = _fill(counted, words, store, seed=seed, budget=budget)
            vectors_VP = words.weight.detach()
            explained = fit_characters(network, characters_VC, vectors_VP, shares_V)
    num_tokens, explained, cut, seconds = distributed.from_main(
        (num_tokens, explained, cut, perf_counter() - start_time if fresh else 0.0)
    )
    if budget is not None and budget < _SHORT and seconds > budget / 2:
        raise ConfigError(
            f"train.seconds={budget:g}: counting {num_tokens:,} tokens for the token embeddings took {seconds:.0f} s: "
            f"raise train.seconds to {math.ceil(3 * seconds)} or more, or start at random with embeddings=null"
        )
    return Start(num_tokens, seconds, shares_V if counted.output_bias else None, vectors_VP, explained, cut)


def _fill(
    counted: CountedEmbeddings, table: nn.Embedding, store: TokenStore | MixedStore, *, seed: int, budget: float | None
) -> tuple[int, bool]:
    """Write counted vectors into a table, within half of a short budget in seconds.

    Returns:
        The number of counted tokens, and whether there was no time for more.
    """
    if budget is None or budget >= _SHORT:
        return counted.fill(table, store, seed=seed), False
    start_time, most_tokens = perf_counter(), _FIRST_TOKENS
    while True:
        before = perf_counter()
        num_tokens = counted.fill(table, store, seed=seed, most_tokens=most_tokens)
        now = perf_counter()
        if num_tokens < most_tokens or most_tokens >= counted.max_tokens:
            return num_tokens, False
        if now - start_time + _GROWTH * (now - before) > budget / 2:
            return num_tokens, True
        most_tokens *= _GROWTH

"""The result of counting before the heads are built: token embeddings, and the frequency of each token.

Shape legend: V vocabulary, C characters of a word, F features of a word and a constant, P width of a word vector.
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
from lmtransfer.models.layers.char_cnn import CharacterCnn
from lmtransfer.objectives.base import Objective
from lmtransfer.pretraining.counted.embeddings import CountedEmbeddings
from lmtransfer.randomness import derive_seed
from lmtransfer.training import process_group

_WORDS_AT_ONCE = 1024
#: Added to the diagonal of the normal equations, as a share of its mean. Chosen on words left out of a fit to film
#: reviews: a smaller value explains slightly more of the fitted words, but less of other words.
_RIDGE = 1e-2

#: Budgets shorter than this, in seconds, limit counting.
_SHORT = 300.0
#: Number of tokens that are counted first within a short budget, and the factor by which it grows.
_FIRST_TOKENS, _GROWTH = 1 << 17, 4


@torch.no_grad()
def fit_characters(network: CharacterCnn, characters_VC: np.ndarray, vectors_VP: Tensor, shares_V: np.ndarray) -> float:
    """Fit a network's projection so that its word vectors approximate the counted vectors.

    The convolutions keep their random weights, and the projection is the solution of a ridge regression on their
    output. A word is weighted by the square root of its share of the text, so that rare words count as well, but their
    less certain vectors count less. Where we differ from the paper: it trains a separate network by gradient descent,
    for words that have no vector; here, this is the first layer of the model.

    Args:
        network: the network; only its projection is changed.
        characters_VC: character ids of each word, int16.
        vectors_VP: the counted vectors, float32.
        shares_V: share of each word in the text; words with share 0 are omitted. May be shorter than V.

    Returns:
        The share of the variance of the vectors that the network reproduces, with these word weights.
    """
    weights_V = torch.from_numpy(np.sqrt(np.pad(shares_V, (0, len(characters_VC) - len(shares_V)))))
    rows = weights_V.nonzero().squeeze(1).split(_WORDS_AT_ONCE)
    features = network.projection.in_features + 1
    products_FF = torch.zeros(features, features, dtype=torch.float64)
    products_FP = torch.zeros(features, vectors_VP.shape[1], dtype=torch.float64)
    variance = 0.0
    for row in rows:
        states = network.features(characters_VC[row.numpy()])
        read = nn.functional.pad(states.float().cpu(), (0, 1), value=1.0)
        weight = weights_V[row].float()[:, None]
        products_FF += (weight * read).T @ read
        products_FP += (weight * read).T @ vectors_VP[row]
        variance += float((weight * vectors_VP[row].square()).sum())
    penalty_FF = _RIDGE * products_FF.diagonal().mean() * torch.eye(features)
    solution_FP = torch.linalg.solve(products_FF + penalty_FF, products_FP)
    network.projection.weight.copy_(solution_FP[:-1].T)
    network.projection.bias.copy_(solution_FP[-1])
    error = variance + float((solution_FP * (products_FF @ solution_FP - 2 * products_FP)).sum())
    return 1 - error / variance


@dataclass(frozen=True, slots=True)
class Start:
    """The result of counting.

    Attributes:
        num_tokens: number of counted tokens; 0 if the run has a checkpoint, which contains the embeddings.
        seconds: duration of counting, which a budget in seconds includes.
        shares_V: share of each token in the text, for the biases of heads; shorter than V if the last tokens never
            occur. None if biases start at 0.
        vectors_VP: the counted vectors for the separate output matrix of an encoder that reads characters; None if the
            encoder has a table, or the run has a checkpoint.
        explained: share of the variance of these vectors that the encoder reproduces from characters.
        cut: whether part of the text is not counted, to leave a short budget in seconds for training.
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
    """Count a text and initialize an encoder's token embeddings on the main rank; the other ranks receive its weights.

    Call this before anything copies or ties the embedding table.

    Args:
        node: ``embeddings`` of the config.
        encoder: an encoder with token embeddings, or one that reads words as characters.
        store: the training text.
        characters_VC: character ids of each token id, if the tokenizer provides them.
        fresh: whether the run has no checkpoint yet; otherwise nothing is counted.
        budget: the run's budget in seconds. Counting takes at most about half of a short budget: it begins with little
            text, and counts more as long as there is time.

    Raises:
        ConfigError: counting even a little text takes more than half of the budget.
    """
    embeddings, start_time = cast(CountedEmbeddings, build(node)), perf_counter()
    shares_V, vectors_VP = token_shares(store), None
    num_tokens, explained, cut = 0, 0.0, False
    if fresh and process_group.is_main():
        table = encoder.token_embedding
        if table is not None:
            num_tokens, cut = _fill(embeddings, table, store, seed=seed, budget=budget)
        else:
            network = encoder.word_network
            assert network is not None  # checked before any text is read
            assert characters_VC is not None
            words = nn.Embedding(len(characters_VC), network.projection.out_features)
            absent = torch.Generator().manual_seed(derive_seed(seed, "absent words"))
            nn.init.normal_(words.weight, std=embeddings.deviation, generator=absent)
            num_tokens, cut = _fill(embeddings, words, store, seed=seed, budget=budget)
            vectors_VP = words.weight.detach()
            explained = fit_characters(network, characters_VC, vectors_VP, shares_V)
    num_tokens, explained, cut, seconds = process_group.broadcast(
        (num_tokens, explained, cut, perf_counter() - start_time if fresh else 0.0)
    )
    if budget is not None and budget < _SHORT and seconds > budget / 2:
        raise ConfigError(
            f"train.seconds={budget:g}: counting {num_tokens:,} tokens for the token embeddings took {seconds:.0f} s: "
            f"raise train.seconds to {math.ceil(3 * seconds)} or more, or start from random embeddings with "
            "embeddings=null"
        )
    return Start(num_tokens, seconds, shares_V if embeddings.output_bias else None, vectors_VP, explained, cut)


def _fill(
    embeddings: CountedEmbeddings,
    table: nn.Embedding,
    store: TokenStore | MixedStore,
    *,
    seed: int,
    budget: float | None,
) -> tuple[int, bool]:
    """Write counted vectors into a table, within half of a short budget in seconds.

    Returns:
        The number of counted tokens, and whether there was no time for more.
    """
    if budget is None or budget >= _SHORT:
        return embeddings.fill(table, store, seed=seed), False
    start_time, most_tokens = perf_counter(), _FIRST_TOKENS
    while True:
        before = perf_counter()
        num_tokens = embeddings.fill(table, store, seed=seed, most_tokens=most_tokens)
        now = perf_counter()
        if num_tokens < most_tokens or most_tokens >= embeddings.max_tokens:
            return num_tokens, False
        if now - start_time + _GROWTH * (now - before) > budget / 2:
            return num_tokens, True
        most_tokens *= _GROWTH

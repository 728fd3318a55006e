"""Fits a network that reads characters to counted vectors of words (after Pinter et al. 2017).

Shape legend: V vocabulary, C characters of a word, F features of a word and a constant, P width of a word vector.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.models.layers.char_cnn import CharacterCnn

_WORDS_AT_ONCE = 1024
#: Added to the diagonal of the normal equations, as a share of its mean. Chosen on words that were left out of a fit to
#: film reviews: less explains a little more of the words that are fitted, and less of other words.
_RIDGE = 1e-2


@torch.no_grad()
def fit_characters(network: CharacterCnn, characters_VC: np.ndarray, vectors_VP: Tensor, shares_V: np.ndarray) -> float:
    """Set the projection of a network so that it gives each word its counted vector as nearly as possible.

    The convolutions keep their random weights, and the projection is the solution of a ridge regression on what they
    give. A word counts by the square root of its share of the text, so that rare words count, too, but their less
    certain vectors count less. Where we differ from the paper: it trains a separate network by gradient descent, for
    words that have no vector; here this is the first layer of the model.

    Args:
        network: the network; only its projection is changed.
        characters_VC: character ids of each word, int16.
        vectors_VP: the counted vectors, float32.
        shares_V: share of each word in the text; words with share 0 are left out. May be shorter than V.

    Returns:
        The share of the variance of the vectors that the network reproduces, with these weights of the words.
    """
    weights_V = torch.from_numpy(np.sqrt(np.pad(shares_V, (0, len(characters_VC) - len(shares_V)))))
    rows = weights_V.nonzero().squeeze(1).split(_WORDS_AT_ONCE)
    features = network.projection.in_features + 1
    products_FF = torch.zeros(features, features, dtype=torch.float64)
    products_FP = torch.zeros(features, vectors_VP.shape[1], dtype=torch.float64)
    variance = 0.0
    for row in rows:
        found = network.features(characters_VC[row.numpy()])
        read = nn.functional.pad(found.float().cpu(), (0, 1), value=1.0)
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

"""Fits a network that reads characters to counted vectors of words (Pinter et al. 2017, "Mimicking Word Embeddings").

Shape legend: V vocabulary, C characters of a word, U words of a step, P width of a word vector.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derived_seed

_WORDS_OF_A_STEP = 1024
_LEARNING_RATE = 3e-3


def fit_characters(
    encoder: Encoder, characters_VC: np.ndarray, vectors_VP: Tensor, shares_V: np.ndarray, *, steps: int, seed: int
) -> float:
    """Train ``encoder.word_vectors`` to give each word its counted vector, with Adam and a linear decay.

    A step samples words by the square root of their share of the text, so that rare words count, too, but their less
    certain vectors count less. Where we differ from the paper: it trains a separate network for words that have no
    vector; here this is the first layer of the model.

    Args:
        encoder: an encoder that reads characters; only the weights that ``word_vectors`` uses are changed.
        characters_VC: character ids of each word, int16.
        vectors_VP: the counted vectors, float32.
        shares_V: share of each word in the text; words with share 0 are left out. May be shorter than V.
        steps: number of steps; 0 changes nothing.
        seed: seed of the run.

    Returns:
        The share of the variance of the vectors that the network reproduces, over the words of the last tenth of the
        steps; 0 without steps.
    """
    weights_V = torch.from_numpy(np.sqrt(np.pad(shares_V, (0, len(characters_VC) - len(shares_V)))))
    generator = torch.Generator().manual_seed(derived_seed(seed, "fitted characters"))
    optimizer = torch.optim.Adam(_weights_of_words(encoder, characters_VC), betas=(0.9, 0.99))
    errors, variances = [], []
    for step in range(steps):
        ids_U = weights_V.multinomial(_WORDS_OF_A_STEP, replacement=True, generator=generator)
        found_UP = encoder.word_vectors(torch.from_numpy(characters_VC[ids_U.numpy()]))
        wanted_UP = vectors_VP[ids_U].to(found_UP)
        error = (found_UP - wanted_UP).square().mean()
        variance = wanted_UP.square().mean()
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * (1 - step / steps)
        optimizer.zero_grad()
        (error / variance).backward()
        optimizer.step()
        if step >= 0.9 * steps:
            errors.append(error.item())
            variances.append(variance.item())
    optimizer.zero_grad()
    return 1 - sum(errors) / sum(variances) if errors else 0.0


def _weights_of_words(encoder: Encoder, characters_VC: np.ndarray) -> list[nn.Parameter]:
    """The parameters that ``encoder.word_vectors`` uses."""
    parameters = list(encoder.parameters())
    vectors_UP = encoder.word_vectors(torch.from_numpy(characters_VC[:1]))
    used = torch.autograd.grad(vectors_UP.sum(), parameters, allow_unused=True)
    return [parameter for parameter, gradient in zip(parameters, used, strict=True) if gradient is not None]

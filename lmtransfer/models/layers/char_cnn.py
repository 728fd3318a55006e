"""Word vectors from characters: convolutions, highway layers and a projection (Kim et al. 2016; Peters et al. 2018).

Shape legend: T tokens, C characters of a word, U distinct words, E width of a character embedding, F filters, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import upload

#: Number of ELMo's character ids: 0 is no character, byte b has id b + 1, and special characters follow the bytes.
NUM_CHARACTERS = 262
#: The character that fills a word up to C characters; the convolutions read it like any other character.
PADDING_CHARACTER = 261

#: The number of distinct words and the number of characters are rounded up to multiples of these constants, because a
#: CPU builds a kernel for each new shape of a bfloat16 product.
_WORDS_MULTIPLE, _CHARACTERS_MULTIPLE = 128, 8

CharActivation = Literal["relu", "tanh"]


class Highway(nn.Module):
    """A highway layer: ``g * relu(A x) + (1 - g) * x`` with ``g = sigmoid(B x)`` (Srivastava et al. 2015, equation 3).

    As in allenai/bilm-tf, weights start from a normal distribution of variance 1 / D, and gate biases at -2, so that
    the output is mostly ``x`` at first.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)
        for layer, bias in ((self.gate, -2.0), (self.transform, 0.0)):
            nn.init.normal_(layer.weight, std=dim**-0.5)
            nn.init.constant_(layer.bias, bias)

    def forward(self, words_UD: Tensor) -> Tensor:
        """Apply the layer, (U, D) -> (U, D)."""
        gate_UD = torch.sigmoid(self.gate(words_UD))
        return words_UD + gate_UD * (torch.relu(self.transform(words_UD)) - words_UD)


class CharacterCnn(nn.Module):
    """Computes word vectors from characters, as in allenai/bilm-tf.

    The stages are convolutions of several widths over the character embeddings, the maximum of each filter over the
    word, the activation *after* the maximum, highway layers, and a projection. Each distinct word of a batch is
    computed once.

    Args:
        filters: (width in characters, number of filters) of each convolution.
    """

    gives_embeddings = True

    def __init__(
        self,
        *,
        char_dim: int,
        filters: Sequence[Sequence[int]],
        num_highway: int,
        output_dim: int,
        activation: CharActivation = "relu",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARACTERS, char_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, count, width) for width, count in filters)
        total = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(dim=total) for _ in range(num_highway))
        self.projection = nn.Linear(total, output_dim)
        self.activation = nn.ReLU() if activation == "relu" else nn.Tanh()
        self.max_width = max(width for width, _ in filters)
        self._start(activation)

    @torch.no_grad()
    def _start(self, activation: CharActivation) -> None:
        """Initialize the weights as in bilm-tf."""
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        self.embedding.weight[0] = 0.0
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            if activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                nn.init.normal_(convolution.weight, std=convolution.weight[0].numel() ** -0.5)
            nn.init.zeros_(convolution.bias)
        nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, chars_TC: Tensor) -> Tensor:
        """Compute word vectors from character ids (any integer dtype, on the host): (T, C) -> (T, D)."""
        chars_UC, word_T = distinct_rows(chars_TC.numpy(), multiple=_WORDS_MULTIPLE)
        words_UD = self.projection(self.features(chars_UC))
        return words_UD.index_select(0, upload(word_T, words_UD.device))

    def features(self, chars_UC: np.ndarray) -> Tensor:
        """Compute the input of the projection: character ids (U, C) -> (U, F)."""
        embedded_UCE = self.embedding(upload(self._trimmed(chars_UC), self.embedding.weight.device).long())
        pooled = [_strongest(convolution, embedded_UCE) for convolution in self.convolutions]
        words_UF = self.activation(torch.cat(pooled, dim=1))
        for highway in self.highways:
            words_UF = highway(words_UF)
        return words_UF

    def _trimmed(self, chars_UC: np.ndarray) -> np.ndarray:
        """Remove trailing columns of padding that do not change the maxima."""
        width = int((chars_UC != PADDING_CHARACTER).sum(1).max()) + self.max_width
        return chars_UC[:, : -(-width // _CHARACTERS_MULTIPLE) * _CHARACTERS_MULTIPLE]


def _strongest(convolution: nn.Module, embedded_UCE: Tensor) -> Tensor:
    """Return the maximum of each filter, (U, F), by a matrix product, which on a CPU is twice as fast as ``conv1d``."""
    assert isinstance(convolution, nn.Conv1d)
    assert convolution.bias is not None
    (width,), char_dim = convolution.kernel_size, embedded_UCE.shape[2]
    windows = embedded_UCE.flatten(1).unfold(1, width * char_dim, char_dim)
    weight = convolution.weight.transpose(1, 2).flatten(1)
    return nn.functional.linear(windows, weight).max(1).values + convolution.bias


def distinct_rows(rows_TC: np.ndarray, *, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, (U, C), and the index of each row among them, int64, (T,).

    Extra rows fill U up to a multiple of ``multiple``. Rows are compared by a 64-bit hash, which is many times as fast
    as sorting them. The probability that two words in a batch of 4,096 have the same hash is below 1 in 10^9.
    """
    generator = torch.Generator().manual_seed(0)
    factors_C = torch.randint(-(2**62), 2**62, (rows_TC.shape[1],), generator=generator).numpy() * 2 + 1
    hashes_T = (rows_TC.astype(np.int64) * factors_C).sum(1)  # wraps around
    _, first_U, word_T = np.unique(hashes_T, return_index=True, return_inverse=True)
    first_U = np.pad(first_U, (0, -len(first_U) % multiple))
    return rows_TC[first_U], word_T

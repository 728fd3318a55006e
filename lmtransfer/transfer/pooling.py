"""Combines the encoder's token vectors into a head's input: one vector per sequence, or one per token.

A sequence's vector is that of its first or last token, the mean, the maximum, the maximum over a BiLSTM's states, or a
mean weighted by attention.

All compositions work on packed sequences, so no padding can be pooled by mistake. Compositions that also support padded
rows have ``pool_padded``, for exported graphs.

Shape legend: T tokens of a packed batch, B sequences, L slots of a padded row, D width, E width of the result.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from lmtransfer.data.batch import upload


def segment_sum(values_TD: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over each sequence, (T, D) -> (B, D); int64 lengths may be on the host or the device."""
    owner_T = owners(lengths_on(lengths, values_TD.device), num_tokens=len(values_TD))
    return values_TD.new_zeros(len(lengths), values_TD.shape[1]).index_add(0, owner_T, values_TD)


def segment_max(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the maximum of each feature over each sequence, (T, ...) -> (B, ...); see ``segment_sum``."""
    # unsafe: the kernel skips the check that the lengths add up to T, for which a GPU would make the host wait.
    return torch.segment_reduce(values, "max", lengths=lengths_on(lengths, values.device), axis=0, unsafe=True)


def lengths_on(lengths: Tensor, device: torch.device) -> Tensor:
    """Return the lengths on ``device`` without making the host wait."""
    return lengths if lengths.device == device else upload(lengths.numpy(), device)


def owners(lengths: Tensor, *, num_tokens: int) -> Tensor:
    """Return the index of each token's sequence, int64, (T,); passing T avoids a device synchronization."""
    sequences = torch.arange(len(lengths), device=lengths.device)
    return torch.repeat_interleave(sequences, lengths, output_size=num_tokens)


def time_major_order(lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of packed tokens for PyTorch's LSTMs: by position, with the longest sequence first.

    Also return the number of sequences with a token at each position. Lengths are int64 on the host.
    """
    lengths_B = lengths.numpy()
    owner_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    starts_B = np.cumsum(lengths_B) - lengths_B
    position_T = np.arange(len(owner_T)) - starts_B[owner_T]
    rank_B = np.argsort(np.argsort(-lengths_B, kind="stable"))
    order_T = np.argsort(position_T * len(lengths_B) + rank_B[owner_T])
    return order_T, np.bincount(position_T)


def lstm_states(lstm: nn.LSTM, hidden_TD: Tensor, lengths: Tensor) -> Tensor:
    """Return the states of an LSTM over packed sequences, (T, D) -> (T, E), always in float32.

    In lower precision, rounding errors would accumulate over the recurrence. Lengths are int64 on the host.
    """
    order_T, batch_sizes = time_major_order(lengths)
    order, restore = (upload(indices, hidden_TD.device) for indices in (order_T, np.argsort(order_T)))
    with torch.autocast(hidden_TD.device.type, enabled=False):
        states, _ = lstm(PackedSequence(hidden_TD.float()[order], torch.from_numpy(batch_sizes)))
    restored_TH: Tensor = states.data[restore]
    return restored_TH


#: Which tokens a composition uses: the first of each sequence, the last, or all.
Tokens = Literal["first", "last", "all"]


class Pooling(nn.Module):
    """The base class of compositions, which turn tokens into one vector per sequence or one per token.

    Args:
        dim: E, which is D unless a subclass says otherwise.

    Attributes:
        tokens: which tokens the composition uses; an encoder may skip the others in its last layer.
        reads_padded: whether ``pool_padded`` is defined.
        reads_pairs: whether the texts of each pair are two sequences: first, second, first and so on.
    """

    tokens: Tokens = "all"
    reads_padded: bool = True
    reads_pairs: bool = False

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.output_dim = dim

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compose the tokens, (T, D), or (B, D) if ``tokens`` is one per sequence, into float32 (B, E) or (T, E).

        Lengths are the numbers of tokens in each sequence, int64, (B,), on the host.
        """
        raise NotImplementedError

    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """Compose padded rows, for exported graphs: (B, L, D) -> (B, E), or (B, L, E)."""
        raise NotImplementedError


class OneToken(Pooling):
    """The vector of a sequence's first token ([CLS]) or last token ([SEP]), which causal encoders need."""

    def __init__(self, *, dim: int, which: Literal["first", "last"]) -> None:
        super().__init__(dim=dim)
        self.tokens = which

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the token, (B, D) -> (B, D)."""
        return hidden.float()

    @override
    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        if self.tokens == "first":
            return hidden_BLD[:, 0].float()
        last_B = (real_BL * torch.arange(real_BL.shape[1], device=real_BL.device)).amax(1)
        place_B1D = last_B[:, None, None].expand(-1, 1, self.output_dim)
        return hidden_BLD.gather(1, place_B1D).squeeze(1).float()


class Mean(Pooling):
    """The mean over all tokens of a sequence, including special tokens."""

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compute the mean, (T, D) -> (B, D)."""
        return segment_sum(hidden.float(), lengths) / lengths_on(lengths, hidden.device)[:, None]

    @override
    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        total_BD = hidden_BLD.float().masked_fill(~real_BL[:, :, None], 0.0).sum(1)
        return total_BD / real_BL.sum(1, keepdim=True)


class Max(Pooling):
    """The maximum of each feature over all tokens of a sequence, including special tokens."""

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compute the maximum, (T, D) -> (B, D)."""
        return segment_max(hidden.float(), lengths)

    @override
    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        return hidden_BLD.float().masked_fill(~real_BL[:, :, None], float("-inf")).amax(1)


class AttentionPooling(Pooling):
    """A mean weighted by ``softmax(v . tanh(W h))`` (Lin et al. 2017, one hop; Yang et al. 2016)."""

    def __init__(self, *, dim: int, attention_dim: int = 128) -> None:
        super().__init__(dim=dim)
        self.project = nn.Linear(dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compute the weighted mean, (T, D) -> (B, D)."""
        hidden_TD = hidden.float()
        scores_T = self.score(torch.tanh(self.project(hidden_TD))).float().squeeze(1)
        highest_B = segment_max(scores_T.detach(), lengths)
        owner_T = owners(lengths_on(lengths, hidden.device), num_tokens=len(scores_T))
        weights_T = torch.exp(scores_T - highest_B[owner_T])
        total_B = segment_sum(weights_T[:, None], lengths)
        return segment_sum(weights_T[:, None] * hidden_TD, lengths) / total_B

    @override
    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        hidden_BLD = hidden_BLD.float()
        scores_BL = self.score(torch.tanh(self.project(hidden_BLD))).squeeze(2)
        weights_BL = scores_BL.masked_fill(~real_BL, float("-inf")).softmax(1)
        pooled_BD: Tensor = (weights_BL[:, :, None] * hidden_BLD).sum(1)
        return pooled_BD


class BiLstmStates(Pooling):
    """The states of a bidirectional LSTM, as in taggers (Huang et al. 2015; Peters et al. 2018, section 4)."""

    reads_padded = False

    def __init__(self, *, dim: int, hidden_dim: int = 256) -> None:
        super().__init__(dim=2 * hidden_dim)
        self.lstm = nn.LSTM(dim, hidden_dim, bidirectional=True)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the states, (T, D) -> (T, 2 * hidden_dim)."""
        return lstm_states(self.lstm, hidden, lengths)


class BiLstm(BiLstmStates):
    """The maximum over the states of a bidirectional LSTM (Conneau et al. 2017, section 3.2.2)."""

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compute the maximum, (T, D) -> (B, 2 * hidden_dim)."""
        return segment_max(super().forward(hidden, lengths), lengths)


class PairComparison(Pooling):
    """Two texts as ``[u, v, |u - v|, u * v]``, read and composed separately (Conneau et al. 2017, section 3.1).

    The composition of ``each`` text must use all tokens.
    """

    reads_padded, reads_pairs = False, True

    def __init__(self, each: Pooling) -> None:
        super().__init__(dim=4 * each.output_dim)
        self.each = each

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Compose the pairs, (T, D) and (2 B,) -> (B, 4 E)."""
        first_BE, second_BE = self.each(hidden, lengths).unflatten(0, (-1, 2)).unbind(1)
        return torch.cat([first_BE, second_BE, (first_BE - second_BE).abs(), first_BE * second_BE], dim=1)


class EveryToken(Pooling):
    """Each token's vector, unchanged."""

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the tokens, (T, D) -> (T, D), float32."""
        return hidden.float()

    @override
    def pool_padded(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        return hidden_BLD.float()

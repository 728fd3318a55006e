"""Sums and token orders over the sequences of a packed batch.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


def segment_sum(values_TD: Tensor, lengths: Tensor) -> Tensor:
    """The sum over each sequence, (T, D) -> (B, D).

    Args:
        values_TD: packed sequences.
        lengths: their lengths, int64, shape (B,).
    """
    owner_T = owners(lengths, num_tokens=len(values_TD))
    return values_TD.new_zeros(len(lengths), values_TD.shape[1]).index_add(0, owner_T, values_TD)


def owners(lengths: Tensor, *, num_tokens: int) -> Tensor:
    """The number of the sequence that each token belongs to, int64, shape (T,).

    Args:
        lengths: tokens of each sequence, int64, shape (B,).
        num_tokens: the sum of ``lengths``, given so that no device synchronisation is needed.
    """
    sequences = torch.arange(len(lengths), device=lengths.device)
    return torch.repeat_interleave(sequences, lengths, output_size=num_tokens)


def time_major_order(lengths: Tensor, *, num_tokens: int) -> tuple[Tensor, Tensor]:
    """The order of packed tokens for PyTorch's LSTMs: first all first tokens, with the longest sequence first.

    Args:
        lengths: tokens of each sequence, int64, shape (B,).
        num_tokens: their sum.

    Returns:
        The token at each index of that order, int64, shape (T,); and the number of sequences with a token at each
        position, int64, on the CPU.
    """
    owner_T = owners(lengths, num_tokens=num_tokens)
    starts_B = lengths.cumsum(0) - lengths
    position_T = torch.arange(num_tokens, device=lengths.device) - starts_B[owner_T]
    rank_B = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
    order_T = torch.argsort(position_T * len(lengths) + rank_B[owner_T])
    return order_T, torch.bincount(position_T).cpu()


def lstm_states(lstm: nn.LSTM, hidden_TD: Tensor, lengths: Tensor) -> Tensor:
    """The states of an LSTM over packed sequences, (T, D) -> (T, E), always in float32.

    In lower precision, rounding errors would accumulate over the recurrence.

    Args:
        lstm: an LSTM with input width D.
        hidden_TD: packed sequences.
        lengths: their lengths, int64, shape (B,).
    """
    order_T, batch_sizes = time_major_order(lengths, num_tokens=len(hidden_TD))
    with torch.autocast(hidden_TD.device.type, enabled=False):
        states, _ = lstm(PackedSequence(hidden_TD.float()[order_T], batch_sizes))
    return states.data[torch.argsort(order_T)]

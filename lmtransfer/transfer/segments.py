"""Sums over the sequences of a packed batch, and the order of their tokens.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of the result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lmtransfer.data.batch import upload


def segment_sum(values_TD: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over each sequence, (T, D) -> (B, D).

    Args:
        values_TD: packed sequences.
        lengths: length of each sequence, int64, shape (B,), on the host or on the device of the values.
    """
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
    """Return the sequence number of each token, int64, shape (T,).

    Args:
        lengths: number of tokens in each sequence, int64, shape (B,).
        num_tokens: the sum of ``lengths``, passed to avoid a device synchronization.
    """
    sequences = torch.arange(len(lengths), device=lengths.device)
    return torch.repeat_interleave(sequences, lengths, output_size=num_tokens)


def time_major_order(lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of packed tokens for PyTorch's LSTMs: by position, with the longest sequence first.

    Args:
        lengths: number of tokens in each sequence, int64, shape (B,), on the host.

    Returns:
        The token at each index of that order, int64, shape (T,); and the number of sequences with a token at each
        position, int64.
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

    In lower precision, rounding errors would accumulate over the recurrence.

    Args:
        lstm: an LSTM with input width D.
        hidden_TD: packed sequences.
        lengths: length of each sequence, int64, shape (B,), on the host.
    """
    order_T, batch_sizes = time_major_order(lengths)
    order, restore = (upload(indices, hidden_TD.device) for indices in (order_T, np.argsort(order_T)))
    with torch.autocast(hidden_TD.device.type, enabled=False):
        states, _ = lstm(PackedSequence(hidden_TD.float()[order], torch.from_numpy(batch_sizes)))
    return states.data[restore]

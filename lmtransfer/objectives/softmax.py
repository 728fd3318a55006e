"""Distributions over the vocabulary, computed in chunks to save memory.

Shape legend: M distributions, m distributions of a chunk, E width of the output embedding, V vocabulary, K best ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Number of logits in memory at a time: 4 MiB of float32 on a CPU, 64 MiB on other devices.
_CHUNK_LOGITS = {"cpu": 1 << 20}
_CHUNK_LOGITS_ELSEWHERE = 1 << 24


@dataclass(frozen=True, slots=True)
class Softmax:
    """States, and the output layer that turns each state into a distribution over the vocabulary.

    The softmax is over the whole vocabulary. Logits are float32 (float64 for float64 states), whatever the dtype of the
    states, because two sentences can differ so little that bfloat16 would hide the difference.
    """

    states_ME: Tensor
    weight_VE: Tensor
    bias_V: Tensor | None = None

    def at(self, rows_N: Tensor) -> Softmax:
        """Return the distributions at some rows, which may repeat."""
        return Softmax(self.states_ME[rows_N], self.weight_VE, self.bias_V)

    def log_probabilities(self, ids_M: Tensor) -> Tensor:
        """Return the log probability (nats) of one id per distribution: int64 (M,) -> float32 (M,)."""
        parts = [logs.gather(-1, ids_M[part, None])[:, 0] for part, logs in self._chunks()]
        return torch.cat(parts) if parts else self.states_ME.new_zeros(0)

    def best(self, count: int, allowed_V: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable ids of each distribution, best first.

        Args:
            allowed_V: True for the ids to choose from; probabilities are not renormalized over these ids.

        Returns:
            The log probabilities, float32, (M, K), and the ids, int64, (M, K).
        """
        parts = [logs.masked_fill(~allowed_V, -torch.inf).topk(count, dim=-1) for _, logs in self._chunks()]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of m distributions with their log probabilities, (m, V)."""
        device = self.states_ME.device.type
        dtype = torch.promote_types(self.states_ME.dtype, torch.float32)
        weight, bias = self.weight_VE.to(dtype), None if self.bias_V is None else self.bias_V.to(dtype)
        rows = max(1, _CHUNK_LOGITS.get(device, _CHUNK_LOGITS_ELSEWHERE) // len(weight))
        for start in range(0, len(self.states_ME), rows):
            part = slice(start, start + rows)
            with torch.autocast(device, enabled=False):
                logits = torch.nn.functional.linear(self.states_ME[part].to(dtype), weight, bias)
                logs = logits.log_softmax(-1)
            yield part, logs

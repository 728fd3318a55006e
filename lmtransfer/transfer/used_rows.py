"""Finetuning the rows of a word table that the training examples use, and no others.

A row whose word never occurs gets a gradient of zero at every step; without decay, an update of zero leaves it as it
was. So only the rows that occur need gradients, moments and updates: with 4,000 sentences of SST-2 and a vocabulary of
30,522, a third of them, which is a tenth of a step on two cores, and of a vocabulary of 250,000 nearly all memory.

Shape legend: V rows of the table, U of them in use, D width, T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.models.base import Encoder

#: Above this share of rows in use, nothing is gained.
_WORTH_IT = 0.8


class UsedRows(nn.Embedding):
    """An embedding whose rows in use are a parameter of their own, ``rows``.

    Wherever gradients are recorded, rows in use are looked up, and any other id is an error. Elsewhere the whole table
    is: it takes over what ``rows`` has learnt when it is next read, or saved, and it alone is saved.

    Args:
        table: what it takes the place of; its weights are shared, and learn no more by themselves.
        used_U: ids of the rows in use, ascending, int64.
    """

    used_U: Tensor
    place_V: Tensor

    def __init__(self, table: nn.Embedding, used_U: Tensor) -> None:
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=table.weight.detach(), _freeze=True)
        used_U = used_U.to(table.weight.device)
        self.rows = nn.Parameter(table.weight.detach()[used_U])
        place_V = torch.full((table.num_embeddings,), -1, device=used_U.device)
        place_V[used_U] = torch.arange(len(used_U), device=used_U.device)
        self.register_buffer("used_U", used_U, persistent=False)
        self.register_buffer("place_V", place_V, persistent=False)
        self._learnt = False
        self._version = self.weight._version

    def forward(self, ids_T: Tensor) -> Tensor:
        """(T,) -> (T, D)."""
        if not torch.is_grad_enabled():
            self.settle()
            return super().forward(ids_T)
        self._follow()
        self._learnt = True
        return nn.functional.embedding(self.place_V[ids_T], self.rows)

    @torch.no_grad()
    def settle(self) -> None:
        """Put what ``rows`` has learnt into the table."""
        self._follow()
        if self._learnt:
            self.weight[self.used_U] = self.rows
            self._learnt, self._version = False, self.weight._version

    @torch.no_grad()
    def _follow(self) -> None:
        """Take the rows from a table that was written to: weights were loaded."""
        if self.weight._version != self._version:
            self.rows.copy_(self.weight[self.used_U])
            self._learnt, self._version = False, self.weight._version

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.settle()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "rows"]


def learn_used_rows(encoder: Encoder, tokens: np.ndarray) -> bool:
    """Let only those rows of an encoder's word table learn that occur; tell whether that is worth it, and was done.

    Args:
        encoder: whose table it is; left as it was where words are spelt, or most rows occur.
        tokens: every token id of the training examples.
    """
    table = encoder.token_embedding
    if table is None or not table.weight.requires_grad:
        return False
    used_U = np.union1d(tokens, [0])  # 0 fills batches up
    if len(used_U) > _WORTH_IT * table.num_embeddings:
        return False
    replacement = UsedRows(table, torch.from_numpy(used_U.astype(np.int64)))
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if child is table:
                setattr(module, name, replacement)
    return True

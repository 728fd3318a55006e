"""Disentangled embedding sharing (DeBERTaV3): a table that is another table, without gradient, plus a difference.

Shape legend: V rows, E width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class _BasePlusDifference(nn.Module):
    """The sum of the base table and the difference; no gradient reaches the base."""

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self._base = (base,)  # a tuple, so that PyTorch does not register the base as a submodule here too

    def forward(self, difference_VE: Tensor) -> Tensor:
        """Return the table, (V, E)."""
        return self._base[0].weight.detach() + difference_VE

    def right_inverse(self, table_VE: Tensor) -> Tensor:
        """Return the difference between ``table_VE`` and the base."""
        return table_VE - self._base[0].weight.detach()


def disentangle(table: nn.Embedding, base: nn.Embedding) -> nn.Embedding:
    """Replace the weights of ``table`` with ``stop_gradient(base) + difference``, in place (He et al. 2021, section 3).

    ``table.weight`` returns the sum; its gradient goes to the difference. ``state_dict`` contains the sum under the
    name of the table, as for an ordinary table. The caller must save the difference. Base and difference restore the
    sum bit for bit.

    Returns:
        The difference, (V, E), which is trained instead of the table; 0 where ``table`` equals ``base``.
    """
    parametrize.register_parametrization(table, "weight", _BasePlusDifference(base))
    table.register_state_dict_post_hook(_save_sum)
    difference = nn.Embedding(base.num_embeddings, base.embedding_dim, device="meta")
    difference.weight = _original(table)
    return difference


def merge(module: nn.Module) -> None:
    """Convert all disentangled tables in ``module`` to ordinary tables with the same values."""
    for table in list(module.modules()):
        if isinstance(table, nn.Embedding) and parametrize.is_parametrized(table, "weight"):
            merged = table.weight.detach().clone()
            parametrize.remove_parametrizations(table, "weight", leave_parametrized=False)
            table.weight = nn.Parameter(merged)


def _original(table: nn.Embedding) -> nn.Parameter:
    return table.get_submodule("parametrizations.weight").get_parameter("original")


@torch.no_grad()
def _save_sum(table: nn.Embedding, state: dict[str, Any], prefix: str, _: Any) -> None:
    if state.pop(f"{prefix}parametrizations.weight.original", None) is not None:  # None after ``merge``
        state[f"{prefix}weight"] = table.weight

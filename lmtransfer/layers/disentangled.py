"""A table that is another one without its gradient, plus a difference of its own (DeBERTaV3).

Shape legend: V rows, E width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class _BasePlusDifference(nn.Module):
    """The sum, through which no gradient reaches the base.

    Args:
        base: the other table.
    """

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self._base = (base,)  # a tuple, so that these weights are not this module's a second time

    def forward(self, difference_VE: Tensor) -> Tensor:
        """The table, (V, E)."""
        return self._base[0].weight.detach() + difference_VE

    def right_inverse(self, table_VE: Tensor) -> Tensor:
        """The difference that gives a table."""
        return table_VE - self._base[0].weight.detach()


def disentangle(table: nn.Embedding, base: nn.Embedding) -> nn.Embedding:
    """Let ``table`` be ``stop_gradient(base) + difference`` from now on (He et al. 2021, section 3).

    Whoever reads ``table.weight`` reads the sum, and its gradient goes to the difference. In ``state_dict`` the table
    is the sum under its own name, as if it were an ordinary one, and the difference is not there: it is for the caller
    to save, and with it and the base the sum is the same to the last bit.

    Args:
        table: changed in place; the difference is 0 where it equals ``base``.
        base: of the same shape.

    Returns:
        The difference, (V, E), which trains in the table's stead.
    """
    parametrize.register_parametrization(table, "weight", _BasePlusDifference(base))
    table.register_state_dict_post_hook(_save_sum)
    difference = nn.Embedding(base.num_embeddings, base.embedding_dim, device="meta")
    difference.weight = _original(table)
    return difference


def merge(module: nn.Module) -> None:
    """Make the tables in ``module`` that are sums ordinary ones of the same values, to be used and trained no more."""
    for table in list(module.modules()):
        if isinstance(table, nn.Embedding) and parametrize.is_parametrized(table, "weight"):
            merged = table.weight.detach().clone()
            parametrize.remove_parametrizations(table, "weight", leave_parametrized=False)
            table.weight = nn.Parameter(merged)


def _original(table: nn.Embedding) -> nn.Parameter:
    return table.get_submodule("parametrizations.weight").get_parameter("original")


@torch.no_grad()
def _save_sum(table: nn.Embedding, state: dict[str, Any], prefix: str, _: Any) -> None:
    if state.pop(f"{prefix}parametrizations.weight.original", None) is not None:  # it may have been merged since
        state[f"{prefix}weight"] = table.weight

"""Distances between tokens as features, and scores by distance as scores by key.

Shape legend: G sequences of a block, H heads, Q queries, S keys, P distances, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sinusoids(distances_P: Tensor, dim: int) -> Tensor:
    """Sines, then cosines of the distances at ``dim / 2`` wave lengths each, (P, D) float32.

    Vaswani et al. 2017, section 3.5, in the order of Transformer-XL's code: all sines come before all cosines.
    """
    exponents = torch.arange(0, dim, 2, device=distances_P.device, dtype=torch.float32) / dim
    angles = distances_P.float()[:, None] / 10000.0**exponents
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :dim]


def add_shifted(scores_GHQS: Tensor, by_distance_HGQP: Tensor, offset: int) -> Tensor:
    """Add to the score of query i and key j the entry ``offset - i + j`` of query i's row by distance.

    That is the relative shift of Dai et al. 2019, appendix B, as a view with other strides, so that nothing is copied
    and nothing gathered. Changes ``scores_GHQS`` in place. Where i and j lie outside the row, a neighbouring row's
    entry is added; the caller hides such keys.
    """
    return _AddShifted.apply(scores_GHQS, by_distance_HGQP, offset)


def _shifted(by_distance_HGQP: Tensor, num_keys: int, offset: int) -> Tensor:
    """The view (G, H, Q, S)."""
    heads, groups, queries, distances = by_distance_HGQP.shape
    size = queries * distances
    return by_distance_HGQP.as_strided(
        (groups, heads, queries, num_keys),
        (size, groups * size, distances - 1, 1),
        by_distance_HGQP.storage_offset() + offset,
    )


class _AddShifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, by_distance: Tensor, offset: int) -> Tensor:
        ctx.mark_dirty(scores)
        ctx.shape, ctx.offset = by_distance.shape, offset
        return scores.add_(_shifted(by_distance.contiguous(), scores.shape[-1], offset))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, distances = ctx.shape[2:]
        if distances == grad.shape[-1] + 1:  # the rows of the view follow one another without gaps
            by_distance = grad.new_empty(ctx.shape)
            flat = by_distance.view(*ctx.shape[:2], queries * distances)
            flat[..., : ctx.offset] = 0
            flat[..., ctx.offset + queries * grad.shape[-1] :] = 0
        else:
            by_distance = grad.new_zeros(ctx.shape)
        _shifted(by_distance, grad.shape[-1], ctx.offset).copy_(grad)
        return grad, by_distance, None

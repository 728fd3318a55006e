"""Vectors from counts: positive pointwise mutual information, and its leading singular vectors.

Shape legend: V vocabulary, C contexts, P entries of a sparse matrix, K columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

_OVERSAMPLING = 16
_TINY = 1e-12


def positive_pmi(counts_VC: Tensor, *, smoothing: float) -> Tensor:
    """Positive pointwise mutual information in nats (Levy & Goldberg 2014), in place.

    Args:
        counts_VC: how often each context token occurs near each token.
        smoothing: exponent on the frequencies of contexts; below 1, rare contexts count less (Levy et al. 2015).
    """
    of_token_V = counts_VC.sum(1).clamp_min(_TINY)
    of_context_C = counts_VC.sum(0) ** smoothing
    of_context_C = (of_context_C / of_context_C.sum().clamp_min(_TINY)).clamp_min(_TINY)
    return counts_VC.div_(of_token_V[:, None]).div_(of_context_C).clamp_min_(1.0).log_()


def sparse_positive_pmi(places_2P: Tensor, numbers_P: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Positive pointwise mutual information of sparse counts, without smoothing; a count n is log(1 + n); sparse."""
    smoothed_P = numbers_P.log1p()
    rows, columns = (torch.zeros(n).index_add_(0, place, smoothed_P) for n, place in zip(size, places_2P, strict=True))
    expected_P = rows[places_2P[0]] * columns[places_2P[1]] / smoothed_P.sum()
    pmi_P = (smoothed_P / expected_P).clamp_min(1.0).log()
    return torch.sparse_coo_tensor(places_2P, pmi_P, size, check_invariants=False).coalesce()


def leading_vectors(matrix: Tensor, *, columns: int, seed: int, rounds: int = 2) -> Tensor:
    """The leading left singular vectors, each times the root of its singular value (Levy et al. 2015, section 3.3).

    Computed by random projection and subspace iteration (Halko, Martinsson & Tropp 2011, algorithm 4.4).

    Args:
        matrix: (V, C), dense or sparse.
        columns: K; if the matrix has fewer rows or columns, the missing vectors are 0.
        seed: seed of the projection.
        rounds: number of rounds of subspace iteration.

    Returns:
        (V, K), float32.
    """
    height, width = matrix.shape
    size = min(columns + _OVERSAMPLING, height, width)
    transposed = matrix.t()
    basis = torch.randn(width, size, generator=torch.Generator().manual_seed(seed))
    basis = torch.linalg.qr(matrix @ basis)[0]
    for _ in range(rounds):
        basis = torch.linalg.qr(transposed @ basis)[0]
        basis = torch.linalg.qr(matrix @ basis)[0]
    left, values, _ = torch.linalg.svd((transposed @ basis).t(), full_matrices=False)
    found = (basis @ left) * values.sqrt()
    kept = min(columns, size)
    return torch.nn.functional.pad(found[:, :kept], (0, columns - kept))

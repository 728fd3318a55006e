"""The logits of a loss over the vocabulary, chunk by chunk, so that they stay in cache.

Shape legend: M prediction positions, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: Reads the logits of a chunk, (m, V), given the slice of its positions; it may not change them.
ReadLogits = Callable[[slice, Tensor], None]

#: Number of logits of one chunk: 1 MiB in bfloat16, which stays in the second-level cache of a CPU.
_CHUNK_LOGITS = 1 << 19
#: The same on other devices, for which large chunks are fast: 256 MiB in bfloat16, and 512 MiB for the probabilities.
CHUNK_LOGITS_ELSEWHERE = 1 << 27


def logit_chunks(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    read_logits: ReadLogits | None = None,
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Split the positions into chunks whose logits stay in cache, or on other devices do not fill the memory.

    Yields:
        The slice of the chunk; its cross entropies and its most probable ids, (m,); its probabilities, (m, V).
    """
    accumulate = torch.promote_types(hidden_MD.dtype, torch.float32)
    size = len(targets_M)
    rows = max(1, chunk_logits(hidden_MD.device) // len(weight_VD))
    for start in range(0, size, rows):
        part = slice(start, start + rows)
        logits = torch.nn.functional.linear(hidden_MD[part], weight_VD, bias_V)
        if read_logits is not None:
            read_logits(part, logits)
        targets = targets_M[part, None]
        top, best = logits.max(-1, keepdim=True)
        probabilities = logits.softmax(-1, dtype=accumulate)
        # log p[target] = (logit - top) + log p[top], which does not underflow even for a very small p[target].
        top_log = probabilities.gather(-1, best).log_()
        losses = -(logits.gather(-1, targets).to(accumulate) - top.to(accumulate) + top_log)[:, 0]
        yield part, losses, best[:, 0], probabilities


def chunk_logits(device: torch.device) -> int:
    """Number of logits of one chunk."""
    return _CHUNK_LOGITS if device.type == "cpu" else CHUNK_LOGITS_ELSEWHERE


def subtract_targets(probabilities: Tensor, targets: Tensor) -> None:
    """Turn probabilities into the gradient of the cross entropies with respect to the logits, in place."""
    minus_one = torch.full_like(probabilities[:, :1], -1.0)
    probabilities.scatter_add_(-1, targets[:, None], minus_one)


def loss_inputs(hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The states in the dtype of autocast; and all three without gradient where none is wanted.

    ``ctx.needs_input_grad`` is also true under ``no_grad``: a validation would compute gradients and drop them.
    """
    device = hidden_MD.device.type
    if torch.is_autocast_enabled(device):
        hidden_MD = hidden_MD.to(torch.get_autocast_dtype(device))
    if torch.is_grad_enabled():
        return hidden_MD, weight_VD, bias_V
    return hidden_MD.detach(), weight_VD.detach(), None if bias_V is None else bias_V.detach()

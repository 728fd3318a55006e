"""Batches for tests of heads: sequences of given lengths and what is asked about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import pack
from lmtransfer.tasks.heads import LabelSetTargets, LabelTargets, ScoreTargets, SpanTargets, TagTargets, Targets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.transfer.heads import Head

#: Rows of targets of one sequence.
Rows = Sequence[Sequence[float]]


def asked(
    lengths: Sequence[int], rows: Sequence[Rows], *, filler: int = 0, dtype: torch.dtype = torch.int64
) -> TaskBatch:
    """Sequences of these lengths with the rows of targets of each, and ``filler`` tokens of filler after them."""
    capacity = sum(lengths) + filler if filler else None
    return TaskBatch(
        packed=pack([np.ones(length, np.int64) for length in lengths], capacity=capacity, max_length=max(lengths)),
        targets=targets_of([row for part in rows for row in part], dtype=dtype),
        target_owners_R=torch.tensor([number for number, part in enumerate(rows) for _ in part], dtype=torch.int64),
        rows=tuple(range(len(lengths))),
        keys=tuple(f"train:{number}" for number in range(len(lengths))),
    )


def targets_of(rows: Rows, *, dtype: torch.dtype = torch.int64) -> Targets[Tensor]:
    """Rows of numbers as targets: of one number a label (or a score, float32), of three a tag, of five a span.

    Rows of int8 are sets of labels.
    """
    if dtype == torch.int8:
        return LabelSetTargets(torch.tensor(rows, dtype=dtype))
    kinds: dict[int, type[Targets[Tensor]]] = {
        1: LabelTargets if dtype == torch.int64 else ScoreTargets,
        3: TagTargets,
        5: SpanTargets,
    }
    columns = max((len(row) for row in rows), default=3)
    return kinds[columns](*torch.tensor(rows, dtype=dtype).reshape(-1, columns).unbind(1))


def table(targets: Targets[np.ndarray]) -> np.ndarray:
    """The fields of targets as the columns of a table, (R, K)."""
    return np.stack([getattr(targets, field.name) for field in fields(targets)], axis=1)


def check_batch_is_its_sequences(
    head: Head, lengths: Sequence[int], rows: Sequence[Rows], *, dim: int, dtype: torch.dtype = torch.int64
) -> None:
    """Loss, count, outputs and the gradient of a batch with filler are those of its sequences one by one.

    Args:
        head: in evaluation mode, float64.
        lengths: tokens of each sequence.
        rows: what is asked about each.
        dim: width of what the head sees.
        dtype: of targets.
    """
    sizes = [1] * len(lengths) if head.per == "sequence" else list(lengths)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(sum(sizes), dim, dtype=torch.float64, generator=generator)
    whole, parts = values.clone().requires_grad_(), values.clone().requires_grad_()

    batch = asked(lengths, rows, filler=5, dtype=dtype)
    logits = head(whole)
    together = head.loss(logits, batch)
    together.sum.backward()

    total, count, outputs = 0.0, 0, []
    for length, part, own in zip(lengths, rows, parts.split(sizes), strict=True):
        single = asked([length], [part], dtype=dtype)
        loss = head.loss(head(own), single)
        loss.sum.backward(retain_graph=True)
        total, count = total + loss.sum.item(), count + loss.count
        outputs.append(head.outputs(head(own), single))
    assert together.count == head.count(batch) == count
    torch.testing.assert_close(together.sum.item(), total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(whole.grad, parts.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.outputs(logits, batch), torch.cat(outputs))


def check_half_precision(head: Head, batch: TaskBatch, hidden: Tensor) -> None:
    """Under bfloat16 autocast the logits are half precision, and loss and outputs are float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(hidden)
        loss, outputs = head.loss(logits, batch).sum, head.outputs(logits, batch)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == outputs.dtype == torch.float32
    torch.testing.assert_close(loss, head.loss(logits.float(), batch).sum)
    torch.testing.assert_close(outputs, head.outputs(logits.float(), batch))


def check_against_loop(head: Head, batch: TaskBatch, loop: Callable[[Tensor], Tensor], num_logits: int) -> None:
    """The loss and its gradient on random logits are those of a loop that takes logits.

    Args:
        head: what is tested.
        batch: of one token a sequence for heads that see sequences.
        loop: logits, float64, to the loss's sum.
        num_logits: columns of the logits.
    """
    generator = torch.Generator().manual_seed(2)
    values = 3 * torch.randn(batch.num_tokens, num_logits, dtype=torch.float64, generator=generator)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    found, expected = head.loss(ours, batch).sum, loop(theirs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)

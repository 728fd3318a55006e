"""The span head, compared with loops over all valid spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from fakes.heads import Rows, asked, check_against_loop, check_batch_is_its_sequences, check_half_precision
from support.gpu_device import gpu
from torch import Tensor, nn

from lmtransfer.transfer.heads import HeadLayers
from lmtransfer.transfer.span_head import SpanHead

Null = Literal["first", "last"]
NULLS: list[Null] = ["first", "last"]
#: An answer; none; one of one token; another kind; an empty passage; a passage that reaches the last token, and its
#: answer too.
LENGTHS = [9, 5, 12, 8, 3, 6]
ROWS: list[Rows] = [
    [[4, 6, -1, 3, 8]],
    [[-1, -1, -1, 2, 4]],
    [[5, 5, -1, 4, 11]],
    [[-1, -1, 1, 3, 7]],
    [[-1, -1, -1, 2, 2]],
    [[3, 5, -1, 2, 6]],
]
#: The same without other kinds of answer.
PLAIN: list[Rows] = [[[*row[:2], -1, *row[3:]] for row in rows] for rows in ROWS]


def _head(num_labels: int = 0, null: Null = "first", longest: int = 3) -> SpanHead:
    return SpanHead(HeadLayers(input_dim=6), num_labels=num_labels, max_answer_tokens=longest, null=null)


def _rows(num_labels: int) -> list[Rows]:
    return ROWS if num_labels else PLAIN


def _cross_entropy(logits: list[Tensor], gold: int) -> Tensor:
    return torch.log(sum(torch.exp(logit) for logit in logits)) - logits[gold]


def _loop(logits: Tensor, num_labels: int, null: Null) -> Tensor:
    total = torch.zeros((), dtype=logits.dtype)
    for tokens, [row] in zip(logits.split(LENGTHS), _rows(num_labels), strict=True):
        start, end, kind, first, stop = (int(value) for value in row)
        nothing = 0 if null == "first" else len(tokens) - 1
        allowed = sorted({*range(first, stop), nothing})
        if kind == -1:
            for column, gold in enumerate((start, end)):
                place = allowed.index(nothing if gold == -1 else gold)
                total = total + _cross_entropy([tokens[token, column] for token in allowed], place) / 2
        if num_labels:
            total = total + _cross_entropy(list(tokens[nothing, 2:]), kind + 1)
    return total


@pytest.mark.parametrize("num_labels", [0, 2])
@pytest.mark.parametrize("null", NULLS)
def test_loss_is_half_the_cross_entropies_and_that_of_the_kinds(num_labels: int, null: Null) -> None:
    head, batch = _head(num_labels, null), asked(LENGTHS, _rows(num_labels), filler=4)
    num_logits = 2 + num_labels + (num_labels > 0)
    check_against_loop(head, batch, lambda logits: _loop(logits, num_labels, null), num_logits)
    assert head.count(batch) == len(LENGTHS)


def test_only_tokens_that_may_be_answers_get_a_gradient() -> None:
    logits = torch.randn(sum(LENGTHS), 5, requires_grad=True)
    _head(2).loss(logits, asked(LENGTHS, ROWS)).sum.backward()
    first, none, _, other, empty, _ = logits.grad.split(LENGTHS)
    assert first[:, :2].any(1).nonzero()[:, 0].tolist() == [0, 3, 4, 5, 6, 7]
    assert none[:, :2].any(1).nonzero()[:, 0].tolist() == [0, 2, 3]
    assert not other[:, :2].any()
    assert not empty[:, :2].any()
    assert all(part[:, 2:].any(1).nonzero()[:, 0].tolist() == [0] for part in (first, none, other, empty))


def test_large_logits_do_no_harm() -> None:
    logits = (1e4 * torch.randn(sum(LENGTHS), 5)).requires_grad_()
    loss = _head(2).loss(logits, asked(LENGTHS, ROWS)).sum
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def _best(tokens: Tensor, first: int, stop: int, longest: int) -> tuple[float, int, int]:
    """Return score, start and end of the best span; on a tie the first, then the shortest."""
    best = (float("-inf"), -1, -1)
    for start in range(first, stop):
        for end in range(start, min(stop, start + longest)):
            score = float(tokens[start, 0] + tokens[end, 1])
            if score > best[0]:
                best = (score, start, end)
    return best


def _random_batches(*, ties: bool) -> Iterator[tuple[list[int], list[Rows], Tensor]]:
    for seed in range(15):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 20, (6,), generator=generator).tolist()
        rows: list[Rows] = []
        for length in lengths:
            first, stop = sorted(torch.randint(0, length + 1, (2,), generator=generator).tolist())
            rows.append([[-1, -1, -1, first, stop]])
        logits = torch.randn(sum(lengths), 5, dtype=torch.float64, generator=generator)
        yield lengths, rows, logits.mul(2).round() if ties else logits


@pytest.mark.parametrize("longest", [1, 3, 100])
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("ties", [False, True])
def test_outputs_are_the_best_of_all_legal_spans(longest: int, null: Null, ties: bool) -> None:
    for lengths, rows, logits in _random_batches(ties=ties):
        expected = []
        for tokens, [row] in zip(logits.split(lengths), rows, strict=True):
            score, start, end = _best(tokens, int(row[3]), int(row[4]), longest)
            nothing = tokens[0 if null == "first" else -1]
            odds = [float(nothing[3] - nothing[2]), float(nothing[4] - nothing[2])]
            expected.append([start, end, score, float(nothing[0] + nothing[1]), *odds])
        found = _head(2, null, longest).outputs(logits, asked(lengths, rows, filler=30))
        torch.testing.assert_close(found, torch.tensor(expected))


def test_a_span_stays_in_its_own_passage() -> None:
    logits = torch.zeros(8, 2)
    logits[2, 0], logits[4, 1], logits[5, 1] = 5.0, 5.0, 9.0  # the best end is in the next sequence
    found = _head(longest=4).outputs(logits, asked([4, 4], [[[-1, -1, -1, 1, 4]], [[-1, -1, -1, 1, 4]]]))
    assert found.tolist() == [[2, 2, 5, 0], [1, 1, 9, 5]]


def test_logits_that_are_no_numbers_harm_no_other_sequence() -> None:
    batch, logits = asked([4, 4], [[[-1, -1, -1, 1, 4]], [[-1, -1, -1, 1, 4]]]), torch.zeros(8, 2)
    logits[:4] = float("nan")
    found = _head().outputs(logits, batch)
    assert found[0, :2].tolist() == [-1, -1]
    assert found[0, 2:].isnan().all()
    assert found[1].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("num_labels", [0, 2])
@pytest.mark.parametrize("null", NULLS)
def test_a_batch_is_its_sequences(num_labels: int, null: Null) -> None:
    head = (
        SpanHead(HeadLayers(input_dim=6, hidden_dim=4), num_labels=num_labels, max_answer_tokens=3, null=null)
        .double()
        .eval()
    )
    nn.init.normal_(head.output.weight)
    check_batch_is_its_sequences(head, LENGTHS, _rows(num_labels), dim=6)


def test_every_parameter_gets_a_gradient() -> None:
    head = SpanHead(HeadLayers(input_dim=6, hidden_dim=4), num_labels=2, max_answer_tokens=3)
    hidden = torch.randn(sum(LENGTHS), 6, requires_grad=True)
    head.loss(head(hidden), asked(LENGTHS, ROWS)).sum.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())
    assert hidden.grad is not None
    assert hidden.grad.any()


def test_half_precision() -> None:
    check_half_precision(_head(2), asked(LENGTHS, ROWS), torch.randn(sum(LENGTHS), 6))


@pytest.mark.gpu
def test_the_gpu_is_asked_for_nothing() -> None:
    device = gpu()
    head, batch = _head(2).to(device), asked(LENGTHS, ROWS, filler=4)
    hidden = torch.randn(sum(LENGTHS), 6)
    there, moved = hidden.to(device).requires_grad_(), batch.to(device)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        logits = head.eval()(there)
        loss, outputs = head.loss(logits, moved), head.outputs(logits, moved)
        loss.sum.backward()
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    logits = logits.detach().cpu()
    torch.testing.assert_close(loss.sum.detach().cpu(), head.loss(logits, batch).sum)
    torch.testing.assert_close(outputs.detach().cpu(), head.outputs(logits, batch))

"""Heads: what all share, and the losses of each, compared with loops over sequences or words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fakes.heads import Rows, asked, check_against_loop, check_batch_is_its_sequences, check_half_precision
from torch import Tensor, nn
from torch.nn import functional

from lmtransfer.tasks.heads import ScoreTargets
from lmtransfer.transfer.heads import (
    ClassificationHead,
    Head,
    HeadLayers,
    MultiLabelHead,
    Pieces,
    RegressionHead,
    TaggingHead,
)
from lmtransfer.transfer.span_head import SpanHead

LABELS = [2, 0, 1, 2]
SETS = [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]
SCORES = [0.5, -2.0, 4.75, 0.0]


def _heads(**changes: object) -> dict[str, Head]:
    layers = HeadLayers(**{"input_dim": 64, **changes})  # type: ignore[arg-type]
    return {
        "classification": ClassificationHead(layers, num_labels=5),
        "multi_label": MultiLabelHead(layers, num_labels=5),
        "regression": RegressionHead(layers),
        "tagging": TaggingHead(layers, num_labels=5),
        "span": SpanHead(layers, num_labels=3, max_answer_tokens=4),
    }


WIDTHS = {"classification": 5, "multi_label": 5, "regression": 1, "tagging": 5, "span": 2 + 1 + 3}


@pytest.mark.parametrize("name", WIDTHS)
def test_heads_have_one_manner(name: str) -> None:
    plain, deep = _heads()[name], _heads(hidden_dim=96, activation="gelu", dropout=0.5, hidden_dropout=0.2)[name]
    assert plain.loss_name == name
    assert plain.per == ("token" if name in ("tagging", "span") else "sequence")
    assert {key: tuple(value.shape) for key, value in plain.state_dict().items()} == {
        "output.weight": (WIDTHS[name], 64),
        "output.bias": (WIDTHS[name],),
    }
    assert {key: tuple(value.shape) for key, value in deep.state_dict().items()} == {
        "hidden.weight": (96, 64),
        "hidden.bias": (96,),
        "output.weight": (WIDTHS[name], 96),
        "output.bias": (WIDTHS[name],),
    }
    hidden = torch.randn(7, 64)
    inner = functional.gelu(functional.linear(hidden, deep.hidden.weight, deep.hidden.bias))
    expected = functional.linear(inner, deep.output.weight, deep.output.bias)
    torch.testing.assert_close(deep.eval()(hidden), expected)


@pytest.mark.parametrize("name", WIDTHS)
def test_weights_start_as_published(name: str) -> None:
    torch.manual_seed(0)
    wide = _heads(input_dim=4096)[name].state_dict()
    deep = _heads(hidden_dim=256)[name].state_dict()
    assert not wide["output.bias"].any()
    assert not deep["hidden.bias"].any()
    for weight in (wide["output.weight"], deep["hidden.weight"]):
        assert weight.mean().item() == pytest.approx(0.0, abs=0.002)
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("name", WIDTHS)
def test_dropout_is_where_it_should_be(name: str) -> None:
    hidden = torch.randn(7, 64)
    assert not _heads(dropout=1.0)[name](hidden).any()
    assert not _heads(hidden_dim=8, dropout=0.0, hidden_dropout=1.0)[name](hidden).any()
    head = _heads(dropout=0.0)[name]
    torch.testing.assert_close(head(hidden), head.eval()(hidden), rtol=0, atol=0)


def _labels(logits: Tensor) -> Tensor:
    parts = [torch.log(torch.exp(row).sum()) - row[label] for row, label in zip(logits.unbind(0), LABELS, strict=True)]
    return torch.stack(parts).sum()


def _decisions(logits: Tensor) -> Tensor:
    """Return the negative log-probability of each decision, one by one."""
    chances = 1 / (1 + torch.exp(-logits))
    parts = [
        -torch.log(chance if given else 1 - chance)
        for row, labels in zip(chances.unbind(0), SETS, strict=True)
        for chance, given in zip(row.unbind(0), labels, strict=True)
    ]
    return torch.stack(parts).sum()


def _squares(logits: Tensor) -> Tensor:
    assert logits.shape == (4, 1)
    return torch.stack([(row[0] - score) ** 2 for row, score in zip(logits.unbind(0), SCORES, strict=True)]).sum()


#: For each head with one prediction per sequence: the head, the targets and their type, the loss by hand, the count.
KINDS: dict[str, tuple[Callable[..., Head], list[Any], torch.dtype, Callable[[Tensor], Tensor], int]] = {
    "labels": (partial(ClassificationHead, num_labels=3), LABELS, torch.int64, _labels, 4),
    "sets": (partial(MultiLabelHead, num_labels=3), SETS, torch.int8, _decisions, 12),
    "scores": (RegressionHead, SCORES, torch.float32, _squares, 4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_a_loop_over_sequences(kind: str) -> None:
    make, answers, dtype, loop, count = KINDS[kind]
    head = make(HeadLayers(input_dim=6))
    rows = [[answer if isinstance(answer, list) else [answer]] for answer in answers]
    batch = asked([1] * 4, rows, dtype=dtype)
    check_against_loop(head, batch, loop, head.num_logits)
    assert head.count(batch) == count
    logits = torch.randn(4, head.num_logits)
    torch.testing.assert_close(head.outputs(logits, batch), logits, rtol=0, atol=0)
    check_half_precision(head, asked([3, 1, 7, 2], rows, dtype=dtype), torch.randn(4, 6))
    deep = make(HeadLayers(input_dim=6, hidden_dim=4)).double().eval()
    nn.init.normal_(deep.output.weight)
    check_batch_is_its_sequences(deep, [3, 1, 7, 2], rows, dim=6, dtype=dtype)


def test_the_loss_of_sets_is_that_of_pytorch() -> None:
    head = MultiLabelHead(HeadLayers(input_dim=6), num_labels=3)
    batch = asked([1] * 4, [[row] for row in SETS], dtype=torch.int8)
    logits = torch.randn(4, 3)
    mean = nn.BCEWithLogitsLoss()(logits, torch.tensor(SETS).float())
    torch.testing.assert_close(head.loss(logits, batch).sum / head.count(batch), mean)


def test_it_learns_a_linear_rule() -> None:
    torch.manual_seed(0)
    head = RegressionHead(HeadLayers(input_dim=3, dropout=0.0))
    hidden = torch.randn(64, 3)
    scores = hidden @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.25
    batch = asked([1] * 64, [[[score]] for score in scores[:, 0].tolist()], dtype=torch.float32)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def mean() -> Tensor:
        optimizer.zero_grad()
        loss = head.loss(head(hidden), batch)
        (loss.sum / loss.count).backward()
        return loss.sum / loss.count

    optimizer.step(mean)
    torch.testing.assert_close(head.output.weight[0], torch.tensor([1.0, -2.0, 0.5]), atol=1e-2, rtol=0)
    torch.testing.assert_close(head.output.bias, torch.tensor([0.25]), atol=1e-2, rtol=0)


def test_regression_starts_from_the_mean_score_in_whatever_unit() -> None:
    torch.manual_seed(0)
    scores, hidden = np.array([0.0, 50.0, 100.0, 70.0], np.float32), torch.randn(4, 6)
    small, large = RegressionHead(HeadLayers(input_dim=6)).eval(), RegressionHead(HeadLayers(input_dim=6)).eval()
    large.load_state_dict(small.state_dict())
    small.begin(ScoreTargets(scores))
    large.begin(ScoreTargets(1000 * scores))
    torch.testing.assert_close(1000 * small(hidden), large(hidden))
    torch.testing.assert_close(small(torch.zeros(1, 6)), torch.tensor([[55.0]]))


#: Words of one, two and three tokens; tokens before, between and after them that no word here has; an unknown label;
#: a sequence without words, and one whose word reaches its last token.
LENGTHS = [9, 2, 12, 2, 5]
ROWS: list[Rows] = [
    [[1, 2, 0], [3, 1, 2], [4, 3, 1]],
    [],
    [[5, 1, -1], [6, 3, 2], [10, 1, 0]],
    [[0, 1, 1]],
    [[1, 1, 2], [3, 2, -1]],
]
PIECES: list[Pieces] = ["first", "last", "mean"]
#: Tokens of the first sequence that determine its words' labels.
SPEAKING: dict[Pieces, list[int]] = {"first": [1, 3, 4], "last": [2, 3, 6], "mean": [1, 2, 3, 4, 5, 6]}


def _words(logits: Tensor, pieces: Pieces) -> list[Tensor]:
    found = []
    for rows, words in zip(logits.split(LENGTHS), ROWS, strict=True):
        for first, count, _ in words:
            tokens = rows[int(first) : int(first + count)]
            chosen = {"first": tokens[0], "last": tokens[-1], "mean": sum(tokens) / len(tokens)}
            found.append(chosen[pieces])
    return found


def _loop(logits: Tensor, pieces: Pieces) -> Tensor:
    labels = [int(row[2]) for words in ROWS for row in words]
    parts = [
        torch.log(torch.exp(word).sum()) - word[label]
        for word, label in zip(_words(logits, pieces), labels, strict=True)
        if label != -1
    ]
    return torch.stack(parts).sum()


@pytest.mark.parametrize("pieces", PIECES)
def test_loss_is_the_cross_entropy_summed_over_words_with_known_labels(pieces: Pieces) -> None:
    head = TaggingHead(HeadLayers(input_dim=6), num_labels=3, pieces=pieces)
    batch = asked(LENGTHS, ROWS, filler=4)
    check_against_loop(head, batch, lambda logits: _loop(logits, pieces), 3)
    assert head.count(batch) == head.loss(torch.randn(30, 3), batch).count == 7
    logits = torch.randn(sum(LENGTHS), 3)
    torch.testing.assert_close(head.outputs(logits, asked(LENGTHS, ROWS)), torch.stack(_words(logits, pieces)))


def test_the_mean_of_logits_is_the_logit_of_the_mean_vector() -> None:
    head = TaggingHead(HeadLayers(input_dim=6), num_labels=3, pieces="mean").double().eval()
    nn.init.normal_(head.output.weight)
    hidden = torch.randn(sum(LENGTHS), 6, dtype=torch.float64)
    expected = head.output(torch.stack(_words(hidden, "mean"))).float()
    torch.testing.assert_close(head.outputs(head(hidden), asked(LENGTHS, ROWS)), expected)


@pytest.mark.parametrize("pieces", PIECES)
def test_a_batch_is_its_sequences(pieces: Pieces) -> None:
    head = TaggingHead(HeadLayers(input_dim=6, hidden_dim=4), num_labels=3, pieces=pieces).double().eval()
    nn.init.normal_(head.output.weight)
    check_batch_is_its_sequences(head, LENGTHS, ROWS, dim=6)
    check_half_precision(head.float(), asked(LENGTHS, ROWS), torch.randn(sum(LENGTHS), 6))


@pytest.mark.parametrize("pieces", PIECES)
def test_only_the_pieces_that_speak_get_a_gradient(pieces: Pieces) -> None:
    logits = torch.randn(9, 3, requires_grad=True)
    TaggingHead(HeadLayers(input_dim=6), num_labels=3, pieces=pieces).loss(logits, asked([9], ROWS[:1])).sum.backward()
    touched = logits.grad.any(1).nonzero()[:, 0].tolist()
    assert touched == SPEAKING[pieces]


@pytest.mark.parametrize("pieces", PIECES)
def test_a_batch_may_have_no_words(pieces: Pieces) -> None:
    head = TaggingHead(HeadLayers(input_dim=6), num_labels=3, pieces=pieces)
    batch, logits = asked([2, 2], [[], []]), torch.randn(4, 3, requires_grad=True)
    loss = head.loss(logits, batch)
    loss.sum.backward()
    assert (loss.sum.item(), loss.count) == (0.0, 0)
    assert not logits.grad.any()
    assert head.outputs(logits, batch).shape == (0, 3)

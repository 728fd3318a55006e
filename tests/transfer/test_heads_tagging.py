"""The tagging head, compared with loops over words."""

from __future__ import annotations

import pytest
import torch
from fakes.heads import Rows, asked, check_against_loop, check_batch_is_its_sequences, check_half_precision
from torch import Tensor, nn

from lmtransfer.transfer.heads.base import HeadLayers, Pieces
from lmtransfer.transfer.heads.tagging import TaggingHead

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

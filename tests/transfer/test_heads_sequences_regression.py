"""The regression head against a loop."""

from __future__ import annotations

import torch
from fakes.heads import asked, check_against_loop, check_batch_is_its_sequences, check_half_precision
from torch import Tensor, nn

from lmtransfer.transfer.heads.sequences import RegressionHead

SCORES = [0.5, -2.0, 4.75, 0.0]
ROWS = [[[score]] for score in SCORES]


def _loop(logits: Tensor) -> Tensor:
    assert logits.shape == (4, 1)
    return torch.stack([(row[0] - score) ** 2 for row, score in zip(logits.unbind(0), SCORES, strict=True)]).sum()


def test_loss_is_the_squared_error_summed_over_sequences() -> None:
    batch = asked([1] * 4, ROWS, dtype=torch.float32)
    check_against_loop(RegressionHead(input_dim=6), batch, _loop, 1)
    assert RegressionHead(input_dim=6).count(batch) == 4


def test_a_batch_is_its_sequences() -> None:
    head = RegressionHead(input_dim=6, hidden_dim=4).double().eval()
    nn.init.normal_(head.output.weight)
    check_batch_is_its_sequences(head, [3, 1, 7, 2], ROWS, dim=6, dtype=torch.float32)


def test_half_precision() -> None:
    batch = asked([3, 1, 7, 2], ROWS, dtype=torch.float32)
    check_half_precision(RegressionHead(input_dim=6), batch, torch.randn(4, 6))


def test_it_learns_a_linear_rule() -> None:
    torch.manual_seed(0)
    head = RegressionHead(input_dim=3, dropout=0.0)
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

"""Low-rank updates of a layer in closed form, merged, and split from the other tensors of a checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lmtransfer.models.layers.building_blocks import StackedLinear
from lmtransfer.models.layers.lora import LoraLinear, LowRankUpdate, split_updates


def test_a_layer_is_w_plus_alpha_over_r_b_a() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5)
    update = LowRankUpdate(6, 5, rank=3, alpha=12.0, dropout=0.0)
    nn.init.normal_(update.b.weight)
    input_TD = torch.randn(7, 6)
    matrix = layer.weight + 12.0 / 3 * update.b.weight @ update.a.weight
    expected = input_TD @ matrix.T + layer.bias
    updated = LoraLinear(layer, {0: update})
    torch.testing.assert_close(updated(input_TD), expected, atol=1e-5, rtol=1e-5)
    merged = updated.merge()
    assert type(merged) is nn.Linear
    torch.testing.assert_close(merged.weight, matrix)
    assert merged.bias is layer.bias


@pytest.mark.parametrize(("first", "stop"), [(0, 3), (0, 1), (1, 3), (1, 2)])
def test_of_stacked_layers_only_the_named_ones_are_updated(first: int, stop: int) -> None:
    torch.manual_seed(0)
    layer = StackedLinear(6, 4, parts=("query", "key", "value"), bias=True)
    updates = {index: LowRankUpdate(6, 4, rank=2, alpha=1.0, dropout=0.0) for index in (0, 2)}
    for update in updates.values():
        nn.init.normal_(update.b.weight)
    input_TD = torch.randn(7, 6)
    blocks = list(layer.weight.detach().clone().split(4))
    for index, update in updates.items():
        blocks[index] += 0.5 * update.b.weight.detach() @ update.a.weight.detach()
    expected = torch.cat([input_TD @ block.T for block in blocks[first:stop]], -1) + layer.bias[4 * first : 4 * stop]
    updated = LoraLinear(layer, updates)
    torch.testing.assert_close(updated.forward_slice(input_TD, first, stop), expected, atol=1e-5, rtol=1e-5)
    merged = updated.merge()
    assert isinstance(merged, StackedLinear)
    assert merged.parts == layer.parts
    torch.testing.assert_close(merged.forward_slice(input_TD, first, stop), expected, atol=1e-5, rtol=1e-5)


def test_dropout_drops_the_input_of_the_update_only() -> None:
    torch.manual_seed(0)
    update = LowRankUpdate(400, 3, rank=400, alpha=400.0, dropout=0.25)
    with torch.no_grad():
        update.a.weight.copy_(torch.eye(400))
    nn.init.ones_(update.b.weight)
    layer = nn.Linear(400, 3)
    updated = LoraLinear(layer, {0: update})
    ones = torch.ones(1, 400)
    added = (updated.train()(ones) - layer(ones)).squeeze()
    kept = added * 0.75
    torch.testing.assert_close(kept, kept.round(), atol=1e-2, rtol=0)  # the number of kept features, times 4 / 3
    assert 250 < kept[0] < 350
    torch.testing.assert_close(updated.eval()(ones) - layer(ones), torch.full((1, 3), 400.0), atol=1e-2, rtol=0)


def test_updates_that_match_no_matrix_stay_among_the_tensors() -> None:
    tensors: dict[str, Tensor] = {
        "x.weight": torch.zeros(4, 6),
        "x.updates.1.a.weight": torch.zeros(2, 6),
        "x.updates.1.b.weight": torch.zeros(4, 2),  # the matrix has one block of 4 rows, with index 0
        "x.updates.1.scale": torch.tensor(1.0),
        "y.updates.0.a.weight": torch.zeros(2, 6),
    }
    own, updates = split_updates(tensors)
    assert not updates
    assert own.keys() == tensors.keys()

"""The projected LSTM against PyTorch's LSTM and a plain loop; and the character CNN."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.objectives import elmo
from torch import Tensor, nn

from lmtransfer.data.batch import pack
from lmtransfer.models.execution import compile_blocks
from lmtransfer.models.layers import lstm as module
from lmtransfer.models.layers.char_cnn import PADDING_CHARACTER, CharacterCnn, distinct_rows
from lmtransfer.models.layers.lstm import ProjectedLstm, Recurrence, TimeMajor

LENGTHS = (3, 7, 1, 7, 5)


def lstm_of(**clips: float) -> ProjectedLstm:
    torch.manual_seed(0)
    layer = ProjectedLstm(input_dim=6, cell_dim=9, output_dim=4, **clips).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return layer


def one_sequence(layer: ProjectedLstm, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute time step by time step, with automatic differentiation."""
    weights = dict(layer.lstm.named_parameters())
    hidden, cell = state
    outputs = []
    for x in inputs:
        z = weights["weight_ih_l0"] @ x + weights["weight_hh_l0"] @ hidden
        i, f, g, o = (z + weights["bias_ih_l0"] + weights["bias_hh_l0"]).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        if layer.cell_clip is not None:
            cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        hidden = weights["weight_hr_l0"] @ (o.sigmoid() * cell.tanh())
        if layer.proj_clip is not None:
            hidden = hidden.clamp(-layer.proj_clip, layer.proj_clip)
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.4, "proj_clip": 0.3}])
@pytest.mark.parametrize("backward", [False, True])
def test_values_states_and_gradients_equal_a_loop(clips: dict[str, float], backward: bool) -> None:
    layer, order = lstm_of(**clips), TimeMajor.of(LENGTHS, backward=backward)
    inputs = torch.randn(sum(LENGTHS), 6, dtype=torch.float64, requires_grad=True)
    state = (torch.randn(5, 4, dtype=torch.float64) * 0.2, torch.randn(5, 9, dtype=torch.float64) * 0.2)
    outputs, (hidden, cells) = layer(inputs[order.order_T], order, state)
    outputs = outputs[order.restore_T]
    expected = []
    for b, part in enumerate(inputs.split(LENGTHS)):
        read = part.flip(0) if backward else part
        states, last, cell = one_sequence(layer, read, (state[0][b], state[1][b]))
        torch.testing.assert_close(hidden[b], last)
        torch.testing.assert_close(cells[b], cell)
        expected.append(states.flip(0) if backward else states)
    torch.testing.assert_close(outputs, torch.cat(expected))
    if clips:
        assert (outputs.abs() == 0.3).any()
    weights = torch.randn_like(outputs)
    leaves = [inputs, *layer.parameters()]
    ours = torch.autograd.grad((outputs * weights).sum(), leaves)
    for gradient, reference in zip(
        ours, torch.autograd.grad((torch.cat(expected) * weights).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(gradient, reference)


def test_the_exact_path_without_clipping_equals_the_fused_lstm() -> None:
    layer, order = lstm_of(), TimeMajor.of(LENGTHS)
    inputs = torch.randn(sum(LENGTHS), 6, dtype=torch.float64)
    state = (torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 9, dtype=torch.float64))
    exact = layer._exact(inputs, *state, order.batch_sizes)
    fused = layer._fused(inputs, *state, order.batch_sizes)
    for ours, theirs in zip(exact, fused, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("clip", [None, 0.6])
def test_the_gradient_is_that_of_finite_differences(clip: float | None) -> None:
    torch.manual_seed(0)
    sizes, cells, width = (3, 3, 2, 1), 5, 4
    parts = [torch.randn(sum(sizes), 4 * cells), torch.randn(3, width), torch.randn(3, cells)]
    parts += [torch.randn(4 * cells, width), torch.randn(width, cells) * 2]
    inputs = [part.double().requires_grad_(place not in (1, 2)) for place, part in enumerate(parts)]
    assert torch.autograd.gradcheck(lambda *given: Recurrence.apply(*given, sizes, clip, clip, False)[0], inputs)


def test_a_compiled_time_step_is_one_graph_for_all_ragged_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_eagerly(function: Any, **settings: Any) -> Any:
        assert settings == {"fullgraph": True, "dynamic": True}
        return compiling(function, backend="eager", **settings)

    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    module._compiled.cache_clear()
    torch.compiler.reset()
    given = np.random.default_rng(0)
    batches = [(5, 4, 3), *(-np.sort(-given.integers(2, 9, 6)) for _ in range(5))]  # three time steps, of three kinds
    for number, sizes in enumerate(batches):
        torch.manual_seed(number)
        parts = [torch.randn(sum(sizes), 12), torch.randn(sizes[0], 4), torch.randn(sizes[0], 3)]
        parts += [torch.randn(12, 4), 2 * torch.randn(4, 3)]
        leaves = [part.requires_grad_() for part in (parts[0], *parts[3:])]
        found = []
        for compiled in (True, False):
            with torch.compiler.set_stance("fail_on_recompile") if number else nullcontext():
                made = Recurrence.apply(*parts, sizes, 0.6, 0.6, compiled)
                found.append([*made, *torch.autograd.grad(made[0].square().sum(), leaves)])
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)
    module._compiled.cache_clear()


def test_only_cuda_compiles_time_steps(fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_compiled_on, "cuda") == {True}
    assert fake_cuda(_compiled_on, "cpu") == {False}


def _compiled_on(device: str) -> set[bool]:
    """Return whether the time steps of a compiled ELMo are compiled on a device."""
    found: set[bool] = set()

    class Note:
        @staticmethod
        def apply(gates: Tensor, hidden: Tensor, cells: Tensor, *others: Any) -> Any:
            found.add(others[-1])
            return gates[:, : hidden.shape[1]], hidden, cells

    encoder = elmo(cell_clip=3.0)
    compile_blocks(encoder)
    with pytest.MonkeyPatch.context() as patch, fake_tensors():
        patch.setattr(module, "Recurrence", Note)
        if device == "cuda":
            to_device(encoder)
        encoder(pack([np.arange(4, 9), np.arange(4, 7)]).to(device))
    return found


def test_bfloat16_products_stay_near_float32() -> None:
    torch.manual_seed(0)
    layer, order = ProjectedLstm(input_dim=32, cell_dim=128, output_dim=32), TimeMajor.of((48,) * 16)
    inputs = torch.randn(16 * 48, 32)
    weights = torch.randn(16 * 48, 32)
    gradients = []
    for low in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            outputs, state = layer(inputs, order)
        assert outputs.dtype == state[1].dtype == torch.float32
        gradients.append([outputs, *torch.autograd.grad((outputs * weights).sum(), list(layer.parameters()))])
    for exact, rounded in zip(*gradients, strict=True):
        assert (rounded - exact).norm() < 0.01 * exact.norm()


def test_weights_start_as_published() -> None:
    torch.manual_seed(0)
    layer = ProjectedLstm(input_dim=64, cell_dim=256, output_dim=64)
    weights = dict(layer.lstm.named_parameters())
    bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    assert torch.equal(bias, torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(256))
    bound = (6 / (128 + 1024)) ** 0.5
    for name in ("weight_ih_l0", "weight_hh_l0"):
        assert weights[name].abs().max() <= bound
        assert weights[name].std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def characters_of(words: int, places: int = 50) -> Tensor:
    """Return random words of one character up to the maximum, followed by padding."""
    rng = np.random.default_rng(0)
    spelt = np.full((words, places), PADDING_CHARACTER)
    for row in spelt:
        length = rng.integers(1, 12 if rng.random() < 0.9 else places + 1)
        row[:length] = rng.integers(1, PADDING_CHARACTER, length)
    return torch.from_numpy(spelt.astype(np.int16))


@pytest.mark.parametrize("words", [1, 40])
def test_the_character_cnn_equals_torch_convolutions_word_by_word(words: int) -> None:
    torch.manual_seed(0)
    cnn = CharacterCnn(char_dim=4, filters=[[1, 3], [3, 5], [6, 7]], num_highway=1, output_dim=8).double()
    spelt = characters_of(words)
    spelt = torch.cat([spelt, spelt.flip(0), spelt[:1]])
    ours = cnn(spelt)
    for row, word in enumerate(spelt.long()):
        letters = cnn.embedding(word).T[None]
        pooled = torch.cat([nn.functional.relu(conv(letters).amax(-1)) for conv in cnn.convolutions], dim=1)
        torch.testing.assert_close(ours[row], cnn.projection(cnn.highways[0](pooled))[0])


def test_distinct_rows_are_the_rows() -> None:
    spelt = characters_of(300)
    spelt = spelt[torch.randint(0, 300, (2000,), generator=torch.Generator().manual_seed(0))]
    rows, index = distinct_rows(spelt.numpy(), multiple=64)
    assert len(rows) % 64 == 0
    assert np.array_equal(rows[index], spelt.numpy())
    assert len(np.unique(index)) == len(torch.unique(spelt, dim=0))

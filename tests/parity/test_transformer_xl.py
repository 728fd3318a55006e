"""Our Transformer-XL against the equations of Dai et al. 2019, section 3.3, written out position by position.

Shape legend: D width, H heads, K head width; tokens are rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refuses
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.models.base import EncoderOutput, OutputPositions
from lmtransfer.models.transformer_xl import TransformerXlEncoder

DIM, HEADS, LAYERS, VOCABULARY = 24, 3, 3, 61
LENGTHS = [7, 21, 1, 12, 12]
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def _encoder(**changes: Any) -> TransformerXlEncoder:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"memory_length": 10, "dropout": 0.0, "max_length": 64} | changes
    encoder = TransformerXlEncoder(
        vocab_size=VOCABULARY, dim=DIM, num_layers=LAYERS, num_heads=HEADS, hidden_dim=40, **arguments
    )
    for parameter in encoder.parameters():  # including biases and norms, so that zeros and ones hide nothing
        parameter.data.add_(0.15 * torch.randn_like(parameter))
    return encoder.eval()


def _sinusoid(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * i / DIM) for i in range(DIM // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def _norm(x: Tensor, module: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + module.eps).sqrt() * module.weight + module.bias


def _attended(
    w: dict[str, Tensor], u: Tensor, v: Tensor, query: Tensor, asked: list[Tensor], distances: list[int]
) -> Tensor:
    """One query over the keys that it sees: sum of softmax((W_q x + u) W_k y + (W_q x + v) W_r R_d) W_v y."""
    width, heads = DIM // HEADS, []
    key_matrix, value_matrix = w["key_value"].chunk(2)
    for head in range(HEADS):
        rows = slice(head * width, (head + 1) * width)
        q = w["query"][rows] @ query
        scores = [
            ((q + u[rows]) @ (key_matrix[rows] @ y) + (q + v[rows]) @ (w["position"][rows] @ _sinusoid(d)))
            / math.sqrt(width)
            for y, d in zip(asked, distances, strict=True)
        ]
        weights = torch.stack(scores).softmax(0)
        heads.append(sum(p * (value_matrix[rows] @ y) for p, y in zip(weights, asked, strict=True)))
    return w["output"] @ torch.cat(heads)


def _reference(
    encoder: TransformerXlEncoder, tokens: np.ndarray, memory: list[list[Tensor]] | None = None
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Compute all layers for one sequence, and the new memory."""
    stack = encoder.stack
    hidden = [encoder.token_embedding.weight[int(token)] * math.sqrt(DIM) for token in tokens]
    memory = memory or [[] for _ in stack.layers]
    layers, left = [hidden], []
    for layer, past in zip(stack.layers, memory, strict=True):
        keys = past + layers[-1]
        left.append(keys[-stack.memory_length :])
        w = {name.removesuffix(".weight"): value for name, value in layer.attention.named_parameters()}
        normed = [_norm(x, layer.attention_norm) for x in keys] if layer.pre_norm else keys
        after = []
        for i, x in enumerate(layers[-1]):
            own = len(past) + i
            first = max(0, own + 1 - stack.memory_length) if stack.same_length else 0
            seen = list(range(first, own + 1))
            distances = [min(own - j, stack.clamp_length or 10**6) for j in seen]
            u, v = stack.biases.content, stack.biases.position
            attended = _attended(w, u, v, normed[own], [normed[j] for j in seen], distances)
            expand, contract = layer.feed_forward.expand, layer.feed_forward.contract

            def forward(y: Tensor, expand: Any = expand, contract: Any = contract) -> Tensor:
                return contract.weight @ torch.relu(expand.weight @ y + expand.bias) + contract.bias

            if layer.pre_norm:
                y = x + attended
                after.append(y + forward(_norm(y, layer.feed_forward_norm)))
            else:
                y = _norm(x + attended, layer.attention_norm)
                after.append(_norm(y + forward(y), layer.feed_forward_norm))
        layers.append(after)
    if stack.layers[0].pre_norm:
        layers[-1] = [_norm(x, stack.final_norm) for x in layers[-1]]
    return layers, left


def _tokens(seed: int, lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n) for n in lengths]


def _assert_layers(output: EncoderOutput, batch: PackedBatch, references: list[list[list[Tensor]]]) -> None:
    for depth, layer in enumerate(output.layers):
        for local, reference in zip(layer.split(list(batch.lengths)), references, strict=True):
            torch.testing.assert_close(local, torch.stack(reference[depth]), **CLOSE)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_hidden_states_equal_the_equations(norm: str) -> None:
    encoder = _encoder(norm=norm)
    tokens = _tokens(1, LENGTHS)
    batch = pack(tokens)
    with torch.no_grad():
        _assert_layers(encoder(batch), batch, [_reference(encoder, row)[0] for row in tokens])
        output_positions = OutputPositions.of(np.array([0, 6, 30, 52]), batch.cu_seqlens.numpy())
        torch.testing.assert_close(
            encoder(batch, output_positions=output_positions).last, encoder(batch).last[output_positions.positions_N]
        )


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [({}, [6, 6, 6]), ({"clamp_length": 5}, [12, 5, 9]), ({"same_length": True, "clamp_length": 8}, [12, 5, 9])],
)
def test_windows_with_memory_equal_the_equations(changes: dict[str, Any], lengths: list[int]) -> None:
    encoder = _encoder(**changes)
    recurrent_state: Any = None
    memories: list[list[list[Tensor]] | None] = [None] * len(lengths)
    with torch.no_grad():
        for seed in range(3):  # the memory is empty, then partly filled, then full
            tokens = _tokens(seed, [6] * len(lengths) if seed < 2 else lengths)
            batch = pack(tokens)
            output = encoder(batch, recurrent_state=recurrent_state)
            references = [_reference(encoder, row, memory) for row, memory in zip(tokens, memories, strict=True)]
            _assert_layers(output, batch, [layers for layers, _ in references])
            recurrent_state, memories = output.recurrent_state, [left for _, left in references]
            assert [tuple(rows.shape) for rows in recurrent_state] == [
                (len(lengths), min(10, 6 * seed + 6), DIM)
            ] * LAYERS
            for depth, rows in enumerate(recurrent_state):
                for local, left in zip(rows, memories, strict=True):
                    torch.testing.assert_close(local, torch.stack(left[depth]), **CLOSE)


def test_losses_and_gradients_equal_the_equations() -> None:
    encoder = _encoder()
    before, tokens = _tokens(4, [9]), _tokens(5, [8])
    recurrent_state, targets = encoder(pack(before)).recurrent_state, torch.from_numpy(_tokens(6, [8])[0])
    memory = [[row.detach() for row in of_layer] for of_layer in _reference(encoder, before[0])[1]]
    gradients = []
    for last in (
        lambda: encoder(pack(tokens), recurrent_state=recurrent_state).last,
        lambda: torch.stack(_reference(encoder, tokens[0], memory)[0][-1]),
    ):
        encoder.zero_grad()
        loss = torch.nn.functional.cross_entropy(last() @ encoder.token_embedding.weight.T, targets)
        loss.backward()
        named = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
        gradients.append({"loss": loss.detach(), **named})
    assert gradients[0].keys() == gradients[1].keys()
    assert len(gradients[0]) == len(list(encoder.parameters())) + 1
    for name, local in gradients[0].items():
        torch.testing.assert_close(local, gradients[1][name], **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def test_full_memory_is_one_long_pass() -> None:
    encoder = _encoder(memory_length=40).double()
    (tokens,) = _tokens(7, [40])
    with torch.no_grad():
        whole = encoder(pack([tokens]))
        recurrent_state, parts = None, []
        for start in (0, 8, 16, 24, 32):
            output = encoder(pack([tokens[start : start + 8]]), recurrent_state=recurrent_state)
            recurrent_state = output.recurrent_state
            parts.append(output.layers)
    for depth, layer in enumerate(whole.layers):
        torch.testing.assert_close(torch.cat([part[depth] for part in parts]), layer, atol=1e-12, rtol=1e-12)


def test_filler_has_no_memory_and_changes_none() -> None:
    encoder = _encoder()
    first, second = _tokens(8, [6, 6, 6]), _tokens(9, [6, 6, 6])
    with torch.no_grad():
        plain = encoder(pack(first))
        filled = encoder(pack(first, capacity=32, max_length=10))
        assert [tuple(rows.shape) for rows in filled.recurrent_state] == [(3, 6, DIM)] * LAYERS
        for local, other in zip(filled.recurrent_state, plain.recurrent_state, strict=True):
            torch.testing.assert_close(local, other, **CLOSE)
        after = encoder(pack(second), recurrent_state=plain.recurrent_state).last
        torch.testing.assert_close(
            encoder(pack(second, capacity=32, max_length=10), recurrent_state=filled.recurrent_state).last[:18],
            after,
            **CLOSE,
        )


def test_no_gradient_flows_into_the_memory() -> None:
    encoder = _encoder()
    first, second = _tokens(10, [8, 8]), _tokens(11, [8, 8])
    recurrent_state = encoder(pack(first)).recurrent_state
    assert not any(rows.requires_grad for rows in recurrent_state)
    given = tuple(rows.clone().requires_grad_() for rows in recurrent_state)
    output = encoder(pack(second), recurrent_state=given)
    assert not any(rows.requires_grad for rows in output.recurrent_state)
    output.last.sum().backward()
    # Rows of the embedding that only the first window used get no gradient from the second's loss.
    only_first = sorted(set(np.concatenate(first)) - set(np.concatenate(second)))
    assert only_first
    assert encoder.token_embedding.weight.grad[only_first].abs().max() == 0


def test_no_token_sees_what_comes_after() -> None:
    encoder = _encoder()
    recurrent_state = encoder(pack(_tokens(12, [10]))).recurrent_state
    (tokens,) = _tokens(13, [20])
    edited = tokens.copy()
    edited[11:] = (edited[11:] + 5) % VOCABULARY
    with torch.no_grad():
        before, after = (encoder(pack([row]), recurrent_state=recurrent_state).last for row in (tokens, edited))
    assert torch.equal(before[:11], after[:11])
    assert not torch.equal(before[11], after[11])


def test_a_memory_of_other_rows_is_refused() -> None:
    encoder = _encoder()
    recurrent_state = encoder(pack(_tokens(14, [8, 8]))).recurrent_state
    with refuses(ValueError, "2 sequences", " 3"):
        encoder(pack(_tokens(15, [8, 8, 8])), recurrent_state=recurrent_state)

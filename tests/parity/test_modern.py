"""Our modern encoder against transformers' ModernBERT with random weights: packed here, padded there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.peer_tensors import heads_to_ours, to_ours

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.interop.families.modern import IGNORED, MODERN_BERT, MODERN_FAMILY
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 40, 1, 40, 4, 33]
VOCABULARY, WIDTH, WINDOW = 157, 48, 8


def _peer(kind: str = "ModernBertModel", num_layers: int = 5, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        local_attention=WINDOW,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="eager",
        **changes,
    )
    peer = getattr(transformers, kind)(config).eval()
    for parameter in peer.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return peer


def _encoder(num_layers: int = 5, *, bias: bool = False, **changes: Any) -> ModernEncoder:
    return ModernEncoder(
        vocab_size=VOCABULARY,
        dim=WIDTH,
        num_layers=num_layers,
        num_heads=4,
        hidden_dim=64,
        max_length=64,
        window=WINDOW,
        bias=bias,
        **changes,
    ).eval()


def _padded(flat_T: torch.Tensor, fill: int = 0) -> torch.Tensor:
    padded = torch.full((len(LENGTHS), max(LENGTHS)), fill, dtype=flat_T.dtype)
    for row, part in enumerate(flat_T.split(LENGTHS)):
        padded[row, : len(part)] = part
    return padded


def _packed() -> PackedBatch:
    rng = np.random.default_rng(1)
    return pack([rng.integers(1, VOCABULARY, n) for n in LENGTHS])


def _inputs(packed: PackedBatch) -> dict[str, torch.Tensor]:
    return {"input_ids": _padded(packed.tokens_T), "attention_mask": _padded(torch.ones_like(packed.tokens_T))}


BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}


@pytest.mark.parametrize("bias", [False, True])
def test_hidden_states_equal_the_peers(bias: bool) -> None:
    peer = _peer(**(BIASES if bias else {}))
    encoder = _encoder(bias=bias)
    encoder.load_state_dict(to_ours(peer.state_dict(), MODERN_BERT, ignore=IGNORED))
    packed = _packed()
    padded = _inputs(packed)
    with torch.no_grad():
        theirs, ours = peer(**padded, output_hidden_states=True), encoder(packed)
    real = padded["attention_mask"].bool()
    layers = [*theirs.hidden_states[:-1], theirs.last_hidden_state]
    assert len(ours.layers) == len(layers) == 6
    for local, their in zip(ours.layers, layers, strict=True):
        torch.testing.assert_close(local, their[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"global_every": 1}, {"window": 2 * WINDOW}, {"local_theta": 1e3}])
def test_windows_and_angles_are_no_idle_switches(changes: dict[str, Any]) -> None:
    peer = _peer()
    published, other = (
        _encoder(),
        ModernEncoder(
            **{
                "vocab_size": VOCABULARY,
                "dim": WIDTH,
                "num_layers": 5,
                "num_heads": 4,
                "hidden_dim": 64,
                "max_length": 64,
                "window": WINDOW,
                **changes,
            }
        ).eval(),
    )
    for encoder in (published, other):
        encoder.load_state_dict(to_ours(peer.state_dict(), MODERN_BERT, ignore=IGNORED))
    with torch.no_grad():
        assert (published(_packed()).last - other(_packed()).last).abs().max() > 1e-3


def test_gradients_equal_the_peers() -> None:
    peer = _peer()  # in float32: in float64 their masks make NaN where a padded query sees nothing
    encoder = _encoder()
    encoder.load_state_dict(to_ours(peer.state_dict(), MODERN_BERT, ignore=IGNORED))
    packed = _packed()
    padded = _inputs(packed)
    weights = torch.randn(sum(LENGTHS), WIDTH)
    (encoder(packed).last * weights).sum().backward()
    (peer(**padded).last_hidden_state[padded["attention_mask"].bool()] * weights).sum().backward()
    theirs = to_ours({name: p.grad for name, p in peer.named_parameters()}, MODERN_BERT)
    ours = {name: p.grad for name, p in encoder.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert gradient is not None
        torch.testing.assert_close(gradient, theirs[name], atol=2e-4, rtol=1e-4)


def test_masked_language_model_loss_equals_the_peers() -> None:
    peer = _peer("ModernBertForMaskedLM", classifier_bias=True, norm_bias=True, attention_bias=True, mlp_bias=True)
    learner = PretrainingLearner(_encoder(bias=True), [MaskedLanguageModel(norm_eps=1e-5)]).eval()
    published = peer.state_dict()
    body = {name.removeprefix("model."): t for name, t in published.items() if name.startswith("model.")}
    head = {name: t for name, t in published.items() if not name.startswith("model.")}
    learner.encoder.load_state_dict(to_ours(body, MODERN_BERT, ignore=IGNORED))
    learner.objectives.load_state_dict(heads_to_ours(head, MODERN_FAMILY))
    packed = _packed()
    positions = np.array([1, 5, 9, 30, 48, 60, 93, 126])
    index = torch.from_numpy(positions)
    batch = PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=index,
        targets_M=packed.tokens_T[index].flip(0),
        weights_M=torch.ones(len(index)),
        uniform_M=torch.zeros(len(index)),
        num_targets=len(index),
        labels={},
        output_positions=OutputPositions.of(positions, packed.cu_seqlens.numpy()),
        read_index={"masked": None},
        keys=(),
    )
    labels = torch.full_like(packed.tokens_T, -100)
    labels[index] = batch.targets_M
    with torch.no_grad():
        losses, _ = learner.losses(batch)
        theirs = peer(**_inputs(packed), labels=_padded(labels, fill=-100))
    torch.testing.assert_close(losses["mlm"].sum / losses["mlm"].count, theirs.loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_layers", [4, 5])  # the last one sees everything, or a window
@pytest.mark.parametrize("changes", [{}, {"query_key_norm": True, "normalise_first_input": True}])
def test_reads_compute_the_same_states_and_gradients_as_everything(num_layers: int, changes: dict[str, Any]) -> None:
    encoder = _encoder(num_layers, **changes).double()
    packed = _packed()
    positions = np.sort(np.random.default_rng(2).permutation(sum(LENGTHS))[:37])
    output_positions = OutputPositions.of(positions, packed.cu_seqlens.numpy())
    weights = torch.randn(37, WIDTH, dtype=torch.float64)
    gradients = []
    for last in (
        encoder(packed).last[output_positions.positions_N],
        encoder(packed, output_positions=output_positions).last,
    ):
        encoder.zero_grad()
        (last * weights).sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None] + [last.detach()])
    assert len(gradients[0]) == len(list(encoder.parameters())) + 1
    for whole, selected in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, selected, atol=1e-9, rtol=1e-9)


def test_packed_equals_one_by_one_and_nothing_leaks() -> None:
    encoder, packed = _encoder(query_key_norm=True), _packed()
    with torch.no_grad():
        states = encoder(packed).last.split(LENGTHS)
        edited = packed.tokens_T.clone()
        edited[: LENGTHS[0]] = 5
        changed = encoder(packed.with_tokens(edited)).last.split(LENGTHS)
        for tokens, expected in zip(packed.tokens_T.split(LENGTHS), states, strict=True):
            torch.testing.assert_close(encoder(pack([tokens.numpy()])).last, expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(changed[0], states[0])
    assert all(torch.equal(after, before) for after, before in zip(changed[1:], states[1:], strict=True))


def test_key_map_is_reversible() -> None:
    published = {n: t for n, t in _peer(**BIASES).state_dict().items() if not n.startswith("rotary")}
    back = to_theirs(to_ours(published, MODERN_BERT), MODERN_BERT)
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], published[name]) for name in published)

"""The layers that a head reads (one, several concatenated, or a mix), compared with vectors computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.heads import asked
from fakes.tasks import bert, gpt, labels_head, random_examples
from support.refusals import refuses
from torch import Tensor

from lmtransfer.config.component import build
from lmtransfer.errors import ConfigError
from lmtransfer.interop.exporting.onnx import DenseModel
from lmtransfer.tasks.heads import TaggingSpec
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.transfer.features import compute_features
from lmtransfer.transfer.layer_selection import OneLayer, ScalarMix, normalize_sequences
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

LENGTHS = torch.tensor([3, 1, 4])


def _layers(num: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 5) for _ in range(num)]


def test_one_layer_is_that_layer() -> None:
    assert OneLayer(index=0, num_layers=4).indices == (0,)
    assert OneLayer(index=4, num_layers=4).indices == (4,)
    assert OneLayer(index=-1, num_layers=4).indices == (4,)
    hidden = _layers(1)[0]
    assert OneLayer(index=2, num_layers=4)([hidden], LENGTHS) is hidden


@pytest.mark.parametrize("index", [5, -6])
def test_a_layer_that_is_not_there_is_refused(index: int) -> None:
    with refuses(ConfigError, f"transfer.layers={index}", " 0 ", " 4"):
        OneLayer(index=index, num_layers=4)


def test_a_new_mix_is_the_plain_mean_of_all_layers() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2)
    assert mix.indices == (0, 1, 2)
    torch.testing.assert_close(mix(layers, LENGTHS), sum(layers) / 3)


def test_the_mix_is_gamma_times_softmax_weights() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2)
    scalars = [0.5, -1.0, 2.0]
    mix.scalars.data = torch.tensor(scalars)
    mix.gamma.data = torch.tensor(1.7)
    total = sum(math.exp(s) for s in scalars)
    expected = sum(1.7 * math.exp(s) / total * layer for s, layer in zip(scalars, layers, strict=True))
    torch.testing.assert_close(mix(layers, LENGTHS), expected)


def test_normalised_sequences_have_mean_0_and_variance_1_each() -> None:
    hidden = _layers(1)[0] * 3 + 5
    parts = normalize_sequences(hidden, LENGTHS).split(LENGTHS.tolist())
    for part, raw in zip(parts, hidden.split(LENGTHS.tolist()), strict=True):
        expected = (raw - raw.mean()) / raw.std(correction=0)
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-5)


def test_a_normalised_mix_does_not_depend_on_batch_mates() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2, layer_norm=True)
    whole = mix(layers, LENGTHS)
    alone = mix([layer[:3] for layer in layers], LENGTHS[:1])
    torch.testing.assert_close(whole[:3], alone)
    scaled = mix([layer * 100 for layer in layers], LENGTHS)
    torch.testing.assert_close(whole, scaled, atol=1e-5, rtol=1e-5)


ENCODED = random_examples(24)
SOURCE = TaskSource(ENCODED)


def _learner(encoder: Any = None, **changes: Any) -> TaskLearner:
    settings: dict[str, Any] = {"freeze": "full", "layers": [0, "last"], "pooling": "mean", "dropout": 0.0}
    method = TransferMethod(**{**settings, **changes})
    return method.learner(encoder or bert(), head=labels_head(2), seed=0)


def _batch(rows: Any = range(6)) -> TaskBatch:
    return SOURCE.build(0, SOURCE.plan(0), rows)


def _by_hand(learner: TaskLearner, batch: TaskBatch, layers: list[int], pooling: str) -> Tensor:
    """Pool each layer of each sequence by itself, and concatenate the results."""
    with torch.no_grad():
        found = learner.encoder(batch.packed).layers
    starts = batch.packed.cu_seqlens[: batch.packed.num_real + 1].tolist()
    vectors = []
    for start, stop in zip(starts[:-1], starts[1:], strict=True):
        parts = []
        for number in layers:
            tokens = found[number][start:stop]
            of = {"mean": tokens.mean(0), "max": tokens.amax(0), "cls": tokens[0], "last_token": tokens[-1]}
            parts.append(of[pooling])
        vectors.append(torch.cat(parts))
    return torch.stack(vectors)


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [([0, "last"], [0, 2]), (["last", 1, 0], [2, 1, 0]), ([-1, 0], [2, 0]), ([1], [1]), (1, [1]), ("last", [2])],
)
@pytest.mark.parametrize(("make", "pooling"), [(bert, "mean"), (gpt, "last_token")])
def test_the_head_sees_the_pooled_layers_end_to_end(
    layers: Any, numbers: list[int], make: Callable[[], Any], pooling: str
) -> None:
    learner = _learner(make(), layers=layers, pooling=pooling).eval()
    expected = _by_hand(learner, _batch(), numbers, pooling)
    assert expected.shape == (6, 16 * len(numbers))
    torch.testing.assert_close(learner.head_input(_batch()), expected, atol=1e-6, rtol=1e-5)
    by_hand = expected @ learner.head.output.weight.T + learner.head.output.bias
    torch.testing.assert_close(learner.predict(_batch()), by_hand.detach(), atol=1e-5, rtol=1e-5)


def test_a_tagger_sees_both_layers_of_each_token() -> None:
    method = TransferMethod(freeze="full", layers=[0, "last"], dropout=0.0)
    learner = method.learner(bert(), head=TaggingSpec(5), seed=0).eval()
    batch = asked([9], [[[1, 2, 0], [3, 3, 1], [6, 1, 2]]])
    layers = learner.encoder(batch.packed).layers
    expected = torch.cat([layers[0][:9], layers[2][:9]], dim=1)
    torch.testing.assert_close(learner.head_input(batch), expected)


@pytest.mark.parametrize("more", [{"pooling": "attention"}, {"pooling": "bilstm", "lstm_dim": 4}])
def test_what_composes_with_weights_reads_twice_the_width(more: dict[str, Any]) -> None:
    learner = _learner(**more)
    losses, _ = learner.losses(_batch())
    losses["classification"].sum.backward()
    assert all(parameter.grad is not None for parameter in learner.composition.parameters())


def test_features_of_a_probe_are_those_of_both_layers() -> None:
    learner = _learner(freeze="frozen", standardise=True)
    table = compute_features(learner, SOURCE, folder=None)
    assert table.values.shape == (24, 32)
    expected = _by_hand(learner, _batch(), [0, 2], "mean")
    torch.testing.assert_close(table.rows(torch.arange(6).numpy()), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_padded_rows_are_read_as_packed_ones(pooling: str) -> None:
    """Padded rows are what an exported graph computes on."""
    learner = _learner(pooling=pooling).eval()
    graph = DenseModel(encoder=learner.encoder, task=learner)
    batch = _batch()
    packed = batch.packed
    lengths = packed.cu_seqlens[: packed.num_real + 1].diff().tolist()
    ids, mask, segments = (torch.zeros(len(lengths), max(lengths), dtype=torch.int64) for _ in range(3))
    start = 0
    for row, length in enumerate(lengths):
        ids[row, :length] = packed.tokens_T[start : start + length]
        segments[row, :length] = packed.segments_T[start : start + length]
        mask[row, :length] = 1
        start += length
    (logits,) = graph(ids, mask, segments)
    torch.testing.assert_close(logits, learner.logits(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [["last", 2], [-1, "last"], [2, "last", -1]])
def test_a_layer_that_is_named_twice_is_read_once(layers: list[Any]) -> None:
    one = _learner(layers="last").eval()
    torch.testing.assert_close(_learner(layers=layers).eval().predict(_batch()), one.predict(_batch()))


def test_a_layer_that_is_not_there_and_a_pooler_of_the_last_alone_are_refused() -> None:
    for layers, name in (([0, 7], "[0,7]"), ([], "[]"), (9, "9")):
        with refuses(ConfigError, f"transfer.layers={name}"):
            _learner(layers=layers)
    with refuses(ConfigError, "transfer.pooling=family", "transfer.layers=[0,last]", "pooler"):
        _learner(pooling="family")
    node = {"_target_": "lmtransfer.transfer.method.TransferMethod", "freeze": "full"}
    with refuses(ConfigError, "layers"):
        build({**node, "layers": [0, "first"]})
    assert build({**node, "layers": [0, "last"]}).layers == [0, "last"]


def _as_quick(learner: TaskLearner, method: TransferMethod) -> list[float]:
    """Return the losses of finetuning on all examples."""
    learner.arrange(_batch())
    learner.train()
    optimizer = AdamW(learner=learner, learning_rate=3e-3, lr_scales=method.lr_scales(learner))
    losses = []
    for _ in range(25):
        found, _ = learner.losses(_batch(range(24)))
        loss = found["classification"].sum / 24
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("small", [1.0, 1e-3])
def test_a_normalised_mixture_learns_whatever_the_scale_of_a_layer(small: float) -> None:
    """Layer 0 of a pre-norm encoder is as small as its embedding tables, unlike the other layers."""
    encoder = bert(norm="pre", dropout=0.0)
    with torch.no_grad():
        for table in (encoder.embeddings.token, encoder.embeddings.position, encoder.embeddings.segment):
            table.weight.mul_(small)
    settings: dict[str, Any] = {"layers": "mix", "mix_layer_norm": True, "pooling": "max", "dropout": 0.0}
    method = TransferMethod(freeze="full", head_rate=10.0, **settings)
    learner = method.learner(encoder, head=labels_head(2), seed=0)
    before = learner.reading.learned_weights()
    losses = _as_quick(learner, method)
    assert losses[-1] < 0.2 * losses[0]
    after = learner.reading.learned_weights()
    assert after != before
    assert sum(after["weights"]) == pytest.approx(1)

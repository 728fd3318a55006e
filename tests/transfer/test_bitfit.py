"""BitFit: the biases and the head are trained, and nothing else moves."""

from __future__ import annotations

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.weights import weights
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(24))
SIZES = {"vocab_size": 128, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32}


def _learner(encoder: Encoder, **changes: object) -> TaskLearner:
    learner = TransferMethod(freeze="bitfit", **changes).learner(encoder, head=labels_head(2), seed=0)  # type: ignore[arg-type]
    learner.arrange(SOURCE.build(0, SOURCE.plan(0), range(24)))
    return learner


def _moved(learner: TaskLearner) -> set[str]:
    before = {name: tensor.clone() for name, tensor in weights(learner).items()}
    optimizer = AdamW(learner=learner, learning_rate=0.05, weight_decay=0.1)
    learner.train()
    for step in range(3):
        losses, _ = learner.losses(SOURCE.build(0, SOURCE.plan(0), range(8 * step, 8 * step + 8)))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()
    learner.on_progress(1.0)
    after = weights(learner)
    assert {name for name, parameter in learner.named_parameters() if parameter.grad is not None} == {
        name for name, tensor in after.items() if not torch.equal(tensor, before[name])
    }
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("make", [bert, gpt])
def test_the_biases_and_the_head_move(make) -> None:
    learner = _learner(make(), pooling="mean")
    biases = {name for name in weights(learner) if name.endswith(".bias") and ".pooler." not in name}
    assert _moved(learner) == biases | {"head.output.weight"}


def test_the_biases_of_relative_attention_are_those_of_the_queries() -> None:
    learner = _learner(XlnetEncoder(**SIZES, num_segments=1))
    moved = _moved(learner)
    for layer in range(2):
        assert {f"encoder.stack.layers.{layer}.biases.{kind}" for kind in ("content", "position")} <= moved
    assert not any(name.endswith(("query", "same_or_different")) for name in moved)
    assert {name for name in moved if name.endswith("weight")} == {"head.hidden.weight", "head.output.weight"}


def test_the_pooler_is_part_of_the_head() -> None:
    assert "encoder.pooler.dense.weight" in _moved(_learner(bert()))


@pytest.mark.parametrize(
    "encoder", [WordEmbeddings(vocab_size=128, dim=16), ModernEncoder(**SIZES)], ids=lambda one: type(one).__name__
)
def test_an_encoder_without_biases_is_refused(encoder: Encoder) -> None:
    with refuses(ConfigError, "transfer=bitfit", type(encoder).__name__, "transfer=frozen"):
        _learner(encoder)


def test_settings_of_whole_layers_are_refused() -> None:
    with refuses(ConfigError, "transfer.layer_decay=0.5", "transfer.embedding_rate=0", "transfer.freeze=bitfit"):
        TransferMethod(freeze="bitfit", layer_decay=0.5, embedding_rate=0)

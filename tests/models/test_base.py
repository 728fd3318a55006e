"""The interface of encoders: the defaults, and the encoders inside a learner."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from fakes.tasks import bert
from support.models import KINDS, VOCABULARY, small_node
from support.nodes import build
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, encoders_in, shapes_only
from lmtransfer.models.execution import compile_blocks
from lmtransfer.models.gpt import BiGptEncoder

WB = ("weight", "bias")


class Recurrent(Encoder):
    """A minimal encoder, as a user may write it."""

    attention, family_head = "causal", FamilyHead(token="last")
    token_embedding: nn.Embedding

    def __init__(self, *, vocab_size: int, dim: int = 4, max_length: int = 8) -> None:
        super().__init__(dim=dim, num_layers=2, max_length=max_length, vocab_size=vocab_size)
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.cells = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))

    def forward(self, batch, recurrent_state=None, output_positions=None):
        self.check_length(batch)
        layers = [self.token_embedding(batch.tokens_T)]
        for cell in self.cells:
            layers.append(torch.tanh(cell(layers[-1])))
        return EncoderOutput(tuple(layers))


def test_an_encoder_that_says_nothing_can_do_nothing_special() -> None:
    encoder = Recurrent(vocab_size=9)
    assert (encoder.pooler, encoder.num_segments, encoder.generator(size=0.5)) == (None, 1, None)
    said = (encoder.reads_characters, encoder.reads_padded, encoder.compiles, encoder.has_two_streams)
    assert not any(said)
    assert set(encoder.state_dict()) == {"token_embedding.weight", *(f"cells.{i}.{n}" for i in (0, 1) for n in WB)}
    assert encoder.blocks() == list(encoder.cells)
    table, rows = encoder.input_rows(3, None)
    assert table is encoder.token_embedding
    assert rows == [3]
    encoder.token_embedding = None
    assert encoder.input_rows(3, None) is None
    with refuses(ConfigError, "memory_lengths", "Recurrent"):
        encoder.set_memory(4, clamp_length=None, same_length=False)
    with refuses(DataError, "9 tokens", "model.max_length=8"):
        encoder(pack([torch.arange(9).numpy()]))


def test_the_encoders_of_a_learner_are_the_outermost_and_each_is_there_once() -> None:
    both = BiGptEncoder(vocab_size=9, dim=16, num_layers=1, num_heads=2, hidden_dim=8)
    other = Recurrent(vocab_size=9)
    learner = nn.ModuleDict({"encoder": both, "more": nn.ModuleList([other, nn.Linear(1, 1)]), "again": other})
    assert encoders_in(learner) == [both, other]
    assert encoders_in(both) == [both]
    assert encoders_in(nn.Linear(1, 1)) == []


def test_blocks_and_embeddings_are_compiled_where_the_encoder_says_that_they_may_be() -> None:
    learner = nn.ModuleList([bert(), Recurrent(vocab_size=9)])
    compile_blocks(learner)
    compiled = [module for module in learner.modules() if module._compiled_call_impl is not None]
    assert compiled == [learner[0].embeddings, *learner[0].blocks()]


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_without_memory_tensors_have_the_same_names_and_shapes(path) -> None:
    node = small_node(path.stem)
    with shapes_only():
        skeleton = build(node, vocab_size=VOCABULARY)
    shapes = {name: tensor.shape for name, tensor in build(node, vocab_size=VOCABULARY).state_dict().items()}
    assert {name: tensor.shape for name, tensor in skeleton.state_dict().items()} == shapes
    assert all(tensor.is_meta for tensor in skeleton.parameters())
    assert nn.Linear(2, 2).weight.device == torch.device("cpu")


_SHAPES = """
import sys
from support.models import KINDS, VOCABULARY, small_node
from support.nodes import build
from lmtransfer.models.base import shapes_only
with shapes_only():
    encoders = [build(small_node(path.stem), vocab_size=VOCABULARY) for path in KINDS]
assert len(encoders) > 8
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.slow
def test_shapes_need_no_compiler() -> None:
    subprocess.run(
        [sys.executable, "-c", _SHAPES], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

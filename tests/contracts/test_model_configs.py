"""Every file of conf/model: composes, binds, builds, learns, saves and loads, and reads packed rows as one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from support.models import CONFIGS, DISTINCT, VOCABULARY, pack, rows_of, small_encoder
from support.nodes import build
from support.refusals import refuses
from torch import nn

from lmtransfer.errors import DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.training.weights import load_weights, weights

#: Standard deviation of the weights: 0.02, for most families cut at two deviations.
_CUT = 0.02 * 0.8796
_DEVIATIONS = {
    **dict.fromkeys(["bert", "roberta", "distilbert", "albert", "electra", "gpt", "gpt2", "bi_gpt", "modern"], _CUT),
    **dict.fromkeys(["transformer_xl", "xlnet"], 0.02),
}
#: Families whose pre-norm form divides what ends a branch by the root of the number of branches: 2 for two layers.
_SCALED = ("gpt", "gpt2", "bi_gpt", "modern")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_full_size_builds_and_declares_itself(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 30
    with torch.device("meta"):
        node = OmegaConf.create({"model": group_config("model", path.stem, [path.parents[1]])}).model
        encoder = build(node, vocab_size=VOCABULARY)
    assert isinstance(encoder, Encoder)
    assert encoder.dim == node.dim
    assert encoder.vocab_size == VOCABULARY
    if encoder.token_embedding is not None:
        assert encoder.token_embedding.weight.shape[0] == VOCABULARY


@pytest.mark.parametrize("path", DISTINCT, ids=lambda path: path.stem)
class TestModel:
    """One small model."""

    def test_every_module_begins_as_its_family_says(self, path: Path) -> None:
        """What a library or a base class draws on the way must not be left, nor drawn twice."""
        family = path.stem.rpartition("_")[0]
        for name, module in small_encoder(path).named_modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
                assert (module.weight == 1).all(), name
            if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
                assert len(module.bias.unique()) == 1, f"{name}: no family draws its biases"
            if isinstance(module, nn.Linear | nn.Embedding) and family in _DEVIATIONS:
                last = name.rpartition(".")[2] in ("output", "contract")
                expected = [_DEVIATIONS[family], *([_DEVIATIONS[family] / 2] if last and family in _SCALED else [])]
                deviation = module.weight.detach().std().item()
                assert any(deviation == pytest.approx(value, rel=0.1) for value in expected), f"{name}: {deviation}"

    def test_layers_have_their_shapes_and_reads_select(self, path: Path) -> None:
        encoder = small_encoder(path).eval()
        batch = pack(rows_of([9, 4, 9, 17]))
        output = encoder(batch)
        assert len(output.layers) == encoder.num_layers + 1
        assert all(layer.shape == (39, encoder.dim) for layer in output.layers)
        positions = np.array([0, 9, 12, 30, 38])
        read = encoder(batch, output_positions=OutputPositions.of(positions, batch.cu_seqlens.numpy()))
        torch.testing.assert_close(read.last, output.last[torch.from_numpy(positions)], atol=1e-5, rtol=1e-5)

    def test_packed_equals_one_by_one(self, path: Path) -> None:
        encoder = small_encoder(path).eval()
        rows = rows_of([5, 40, 1, 23, 23])
        with torch.no_grad():
            packed = encoder(pack(rows)).last.split([len(row) for row in rows])
            for row, states in zip(rows, packed, strict=True):
                torch.testing.assert_close(encoder(pack([row])).last, states, atol=1e-5, rtol=1e-5)

    def test_is_stateless_without_a_carry(self, path: Path) -> None:
        encoder = small_encoder(path).eval()
        first, other = pack(rows_of([12, 7])), pack(rows_of([30]))
        with torch.no_grad():
            before = encoder(first).last
            encoder(other)
            assert torch.equal(encoder(first).last, before)

    def test_every_parameter_that_a_forward_pass_uses_gets_a_gradient(self, path: Path) -> None:
        encoder = small_encoder(path)
        rows = rows_of([20, 33])
        segments = [(np.arange(len(row)) >= 5).astype(np.int64) for row in rows]
        output = encoder(pack(rows, segments))
        total = output.last.square().sum()
        if encoder.pooler is not None:
            total = total + encoder.pooler(output.last[:2]).square().sum()
        total.backward()
        assert all(parameter.grad is not None for parameter in encoder.parameters())

    def test_weights_save_and_load(self, path: Path, tmp_path: Path) -> None:
        encoder = small_encoder(path).eval()
        save_file({name: tensor.contiguous() for name, tensor in weights(encoder).items()}, tmp_path / "w")
        torch.manual_seed(1)
        other = small_encoder(path).eval()
        for parameter in other.parameters():
            parameter.data.normal_()
        load_weights(other, load_file(tmp_path / "w"))
        batch = pack(rows_of([11, 8]))
        assert torch.equal(encoder(batch).last, other(batch).last)

    def test_too_long_a_sequence_is_one_clear_error(self, path: Path) -> None:
        encoder = small_encoder(path)
        with refuses(DataError, "max_length=64"):
            encoder(pack(rows_of([65])))

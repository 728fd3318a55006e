"""Encoders with causal attention: against decoders of transformers, and in a batch against each row alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.nodes import build
from support.peer_tensors import to_ours
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import ConfigError
from lmtransfer.interop.families.bert import BERT, IGNORED, MEGATRON_BERT
from lmtransfer.launch.config_files import group_config
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.gpt import GptEncoder

transformers = pytest.importorskip("transformers")

LENGTHS = [7, 31, 1, 16, 16, 30]
SMALL = {"dim": 16, "num_layers": 3, "num_heads": 2, "hidden_dim": 24, "max_length": 64, "dropout": 0.0}


def _tokens() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 96, n) for n in LENGTHS]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_states_of_a_bert_read_left_to_right_are_those_of_the_peers_decoder(norm: str) -> None:
    torch.manual_seed(0)
    kind, key_map = {"post": ("Bert", BERT), "pre": ("MegatronBert", MEGATRON_BERT)}[norm]
    shape = {"vocab_size": 96, "max_position_embeddings": 40, "hidden_size": 16, "num_hidden_layers": 3}
    shape |= {"num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.2}
    peer = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape)).eval()
    decoder_config = getattr(transformers, f"{kind}Config")(**shape, is_decoder=True)
    decoder = getattr(transformers, f"{kind}Model")(decoder_config).eval()
    decoder.load_state_dict(peer.state_dict())
    ours = BertEncoder(vocab_size=96, **{**SMALL, "max_length": 40}, norm=norm).eval()  # type: ignore[arg-type]
    ours.load_state_dict(to_ours(peer.state_dict(), key_map, ignore=IGNORED))
    tokens = _tokens()
    batch = pack(tokens)
    output_positions = OutputPositions.of(np.array([0, 6, 8, 38, 50, 100]), batch.cu_seqlens.numpy())
    for attention, model in (("causal", decoder), ("bidirectional", peer)):
        ours.attend(attention)  # type: ignore[arg-type]
        with torch.no_grad():
            layers = ours(batch).layers
            for place, ids in enumerate(tokens):
                theirs = model(torch.from_numpy(ids)[None], output_hidden_states=True)
                states = [*theirs.hidden_states[:-1], theirs.last_hidden_state]
                for local, their in zip(layers, states, strict=True):
                    torch.testing.assert_close(local.split(LENGTHS)[place], their[0], atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(
                ours(batch, output_positions=output_positions).last, layers[-1][output_positions.positions_N]
            )


def _both_ways() -> list[str]:
    """Return the models in conf that support both kinds of attention, one of each class."""
    found: dict[str, str] = {}
    for path in sorted((conf_dir() / "model").glob("*.yaml")):
        encoder = _encoder(path.stem)
        if encoder.attentions:
            found.setdefault(type(encoder).__name__, path.stem)
    return list(found.values())


def _encoder(name: str) -> Encoder:
    node = OmegaConf.create(group_config("model", name, [conf_dir()]))
    changes = {key: value for key, value in SMALL.items() if key in node}
    changes |= {"embedding_dim": 8} if "embedding_dim" in node else {}
    changes |= {"window": 8, "global_every": 2} if "window" in node else {}
    torch.manual_seed(0)
    return build(OmegaConf.merge(node, changes), vocab_size=96).eval()  # type: ignore[no-any-return]


def _last(encoder: Encoder, batch: PackedBatch) -> torch.Tensor:
    with torch.no_grad():
        return encoder(batch).last


def test_every_kind_with_the_layers_of_bert_can_be_read_both_ways() -> None:
    kinds = {type(_encoder(name)).__name__ for name in _both_ways()}
    assert {"BertEncoder", "RobertaEncoder", "AlbertEncoder", "ElectraEncoder", "ModernEncoder"} <= kinds


@pytest.mark.parametrize("name", _both_ways())
def test_no_state_of_a_causal_row_depends_on_a_later_token_and_every_row_is_read_as_alone(name: str) -> None:
    encoder, tokens = _encoder(name), _tokens()
    batch = replace(pack(tokens), num_causal=3)
    mixed = _last(encoder, batch).split(LENGTHS)
    for place, ids in enumerate(tokens):
        encoder.attend("causal" if place < 3 else "bidirectional")
        torch.testing.assert_close(mixed[place], _last(encoder, pack([ids])), atol=1e-5, rtol=1e-5)
    output_positions = OutputPositions.of(np.array([0, 6, 8, 38, 50, 100]), batch.cu_seqlens.numpy())
    with torch.no_grad():
        assert torch.equal(
            encoder(batch, output_positions=output_positions).last, torch.cat(mixed)[output_positions.positions_N]
        )
    edited = [ids.copy() for ids in tokens]
    for place in (1, 4):  # a causal row, and a bidirectional one
        edited[place][10] = (edited[place][10] + 5) % 96
    after = _last(encoder, replace(pack(edited), num_causal=3)).split(LENGTHS)
    assert torch.equal(mixed[1][:10], after[1][:10])
    assert not torch.equal(mixed[1][10:], after[1][10:])
    changed = (mixed[4] != after[4]).any(1)
    assert changed[2:].all()  # the window of the modern layers is narrower than the row
    assert torch.equal(torch.cat([mixed[0], mixed[2]]), torch.cat([after[0], after[2]]))


def test_what_an_encoder_cannot_do_is_refused() -> None:
    gpt = GptEncoder(vocab_size=96, **SMALL)  # type: ignore[arg-type]
    gpt.attend("causal")
    with refuses(ConfigError, "GptEncoder", "causal", "bidirectional"):
        gpt.attend("bidirectional")

"""``pooling=family`` against the sequence classifiers of transformers, with all weights copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.peer_tensors import to_ours
from torch import Tensor

from lmtransfer.data.batch import pack
from lmtransfer.interop.families import bert, electra, roberta, xlnet
from lmtransfer.interop.families.key_map import Rewrite, linear
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.electra import ElectraEncoder
from lmtransfer.models.roberta import RobertaEncoder
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.transfer.method import TransferMethod

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 26, 2, 14, 14, 30]
SMALL: dict[str, Any] = {"dim": 48, "num_layers": 2, "num_heads": 4, "hidden_dim": 96, "max_length": 32}
THEIRS = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_labels": 3,
    "attn_implementation": "eager",
}


def _peer(kind: str, config: Any) -> Any:
    torch.manual_seed(1)
    peer = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for parameter in peer.parameters():  # biases too, so that nothing is hidden by zeros
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return peer


def _split(peer: Any, prefix: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the body and those of the head."""
    tensors = peer.state_dict()
    body = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return body, {name: value for name, value in tensors.items() if not name.startswith(prefix)}


def _compare(peer: Any, encoder: Any, weights: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> None:
    rows = _rows()
    encoder.load_state_dict(weights)
    learner = _method().learner(encoder, head=ClassificationSpec(3), seed=0).eval()
    learner.head.load_state_dict(head)
    batch = TaskBatch(pack(rows), torch.zeros(len(rows), 1), torch.arange(len(rows)), tuple(range(len(rows))), ())
    found = learner.predict(batch)
    with torch.no_grad():
        for row, logits in zip(rows, found, strict=True):
            torch.testing.assert_close(logits, peer(torch.from_numpy(row)[None]).logits[0], atol=1e-5, rtol=1e-5)
    assert (found.max(0).values - found.min(0).values).min() > 0.01  # the inputs make a difference


def _method() -> TransferMethod:
    return TransferMethod(freeze="full", pooling="family")


def _rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, 131, n) for n in LENGTHS]


def _dense_and_output(dense: str, output: str) -> list[Rewrite]:
    return [*linear("hidden", dense), *linear("output", output)]


def test_bert_has_its_pooler() -> None:
    peer = _peer("Bert", transformers.BertConfig(**THEIRS, max_position_embeddings=32))
    body, head = _split(peer, "bert.")
    weights = to_ours(body, bert.BERT, ignore=bert.IGNORED)
    _compare(peer, BertEncoder(vocab_size=131, **SMALL), weights, to_ours(head, linear("output", "classifier")))


def test_electra_has_a_dense_layer_with_gelu() -> None:
    config = transformers.ElectraConfig(**THEIRS, embedding_size=24, max_position_embeddings=32)
    peer = _peer("Electra", config)
    body, head = _split(peer, "electra.")
    encoder = ElectraEncoder(vocab_size=131, embedding_dim=24, **SMALL)
    weights = to_ours(body, electra.ELECTRA, ignore=electra.IGNORED)
    _compare(peer, encoder, weights, to_ours(head, _dense_and_output("classifier.dense", "classifier.out_proj")))


def test_roberta_has_a_dense_layer_with_tanh() -> None:
    config = transformers.RobertaConfig(
        **THEIRS, max_position_embeddings=34, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5
    )
    peer = _peer("Roberta", config)
    body, head = _split(peer, "roberta.")
    encoder = RobertaEncoder(vocab_size=131, positions_from_two=True, type_row=True, **SMALL)
    weights = to_ours(body, roberta.ROBERTA, ignore=roberta.IGNORED)
    _compare(peer, encoder, weights, to_ours(head, _dense_and_output("classifier.dense", "classifier.out_proj")))


def test_xlnet_has_a_dense_layer_with_tanh_over_the_last_token() -> None:
    config = transformers.XLNetConfig(
        vocab_size=131, d_model=48, n_layer=2, n_head=4, d_inner=96, num_labels=3, dropout=0.0
    )
    peer = _peer("XLNet", config)
    body, head = _split(peer, "transformer.")
    encoder = XlnetEncoder(vocab_size=131, memory_length=8, **SMALL)
    names = _dense_and_output("sequence_summary.summary", "logits_proj")
    _compare(peer, encoder, to_ours(body, xlnet.XLNET), to_ours(head, names))

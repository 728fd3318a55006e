"""Transformer-XL in the layout of the class TransfoXL of Hugging Face transformers 4; version 5 has no such class.

Our encoder supports only models with one embedding for all words, as opposed to adaptive embeddings, and one pair of
biases for all layers. The published WikiText-103 model has adaptive embeddings, so it is rejected.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.interop.families.family import (
    Config,
    ConfigSetting,
    ConfigTable,
    Family,
    FixedKey,
    Quirks,
    Rewrite,
    Tensors,
    linear,
)
from lmtransfer.models.transformer_xl import TransformerXlEncoder

_OURS, _THEIRS = "stack.layers.{i}", "layers.{i}"
_ATTENTION = f"{_THEIRS}.dec_attn"

#: ``transformers.TransfoXLModel``, with the fused projection of each layer split into three, and our post-norm
#: ``TransformerXlEncoder``.
TRANSFORMER_XL = [
    Rewrite("token_embedding.weight", ("word_emb.emb_layers.0.weight",)),
    Rewrite("stack.biases.content", ("r_w_bias",), "heads_out"),
    Rewrite("stack.biases.position", ("r_r_bias",), "heads_out"),
    Rewrite(f"{_OURS}.attention.query.weight", (f"{_ATTENTION}.q_net.weight",)),
    Rewrite(f"{_OURS}.attention.key_value.weight", (f"{_ATTENTION}.k_net.weight", f"{_ATTENTION}.v_net.weight")),
    Rewrite(f"{_OURS}.attention.position.weight", (f"{_ATTENTION}.r_net.weight",)),
    Rewrite(f"{_OURS}.attention.output.weight", (f"{_ATTENTION}.o_net.weight",)),
    *linear(f"{_OURS}.attention_norm", f"{_ATTENTION}.layer_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.pos_ff.CoreNet.0"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.pos_ff.CoreNet.3"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.pos_ff.layer_norm"),
]


class FusedProjection(Quirks):
    """Splits the fused projection into queries, keys and values, and drops the copies of the biases in each layer."""

    @override
    def read_tensors(self, tensors: Tensors, arguments: dict[str, Any], config: Config, notes: list[str]) -> Tensors:
        pieces: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            bias = re.fullmatch(r"layers\.\d+\.dec_attn\.(r_[wr]_bias)", name)
            if bias and bias[1] in tensors and torch.equal(tensors[bias[1]], tensor):
                continue
            if name.endswith("dec_attn.qkv_net.weight") and tensor.ndim and len(tensor) % 3 == 0:
                for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                    pieces[name.replace("qkv_net", f"{part}_net")] = piece
                continue
            pieces[name] = tensor
        return pieces


_ADAPTIVE = "lmtransfer supports one embedding for all words, but no adaptive embeddings"

TRANSFORMER_XL_FAMILY = Family(
    model_types=("transfo-xl",),
    encoder=TransformerXlEncoder,
    prefix="transformer.",
    config=ConfigTable(
        (
            ConfigSetting("dim", "d_model"),
            ConfigSetting("num_layers", "n_layer"),
            ConfigSetting("num_heads", "n_head"),
            ConfigSetting("hidden_dim", "d_inner"),
            ConfigSetting("memory_length", "mem_len", 1600, int, reads={0: 0}),
            ConfigSetting("clamp_length", "clamp_len", 1000, int, names={None: -1}, reads={0: None}),
            ConfigSetting("same_length", "same_length", True, bool),
            ConfigSetting("norm_eps", "layer_norm_epsilon", 1e-5, float),
            ConfigSetting("dropout", "dropout", 0.1, float),
            ConfigSetting("attention_dropout", "dropatt", 0.0, float, is_used=False),
        ),
        (
            FixedKey("div_val", 1, _ADAPTIVE, default=4),
            FixedKey("cutoffs", ([], None), _ADAPTIVE),
            FixedKey("untie_r", False, "in lmtransfer all layers share one pair of biases", default=True),
            FixedKey("pre_lnorm", False, "lmtransfer's Transformer-XL has an extra LayerNorm after pre-norm layers"),
            FixedKey("attn_type", 0, "lmtransfer computes only the paper's relative attention"),
        ),
        implied_values={"norm": "post", "activation": "relu"},
        assumed_values={"max_length": 512},
    ),
    key_map=TRANSFORMER_XL,
    ignored_patterns=(r"pos_emb\.inv_freq",),
    token="token_embedding.weight",
    body="TransfoXLModel",
    no_class="version 5 has no class for Transformer-XL",
    quirks=FusedProjection(),
)

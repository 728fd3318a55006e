"""XLNet in the layout of Hugging Face transformers: the key map of ``transformers.XLNetModel``.

Its projections are stored with heads apart, (in, heads, width), and its output projection is (out, heads, width).

Shape legend: D width, H heads, K head width.
"""

from __future__ import annotations

from lmtransfer.interop.key_map import Rewrite, linear

_OURS, _THEIRS = "stack.layers.{i}", "layer.{i}"
_ATTENTION = f"{_THEIRS}.rel_attn"

#: ``transformers.XLNetModel`` and our post-norm ``XlnetEncoder``.
XLNET = [
    Rewrite("token_embedding.weight", ("word_embedding.weight",)),
    Rewrite("query", ("mask_emb",), "one_row"),
    Rewrite(f"{_OURS}.attention.query.weight", (f"{_ATTENTION}.q",), "in_heads"),
    Rewrite(f"{_OURS}.attention.key_value.weight", (f"{_ATTENTION}.k", f"{_ATTENTION}.v"), "in_heads"),
    Rewrite(f"{_OURS}.attention.position.weight", (f"{_ATTENTION}.r",), "in_heads"),
    Rewrite(f"{_OURS}.attention.output.weight", (f"{_ATTENTION}.o",), "heads_out"),
    Rewrite(f"{_OURS}.biases.content", (f"{_ATTENTION}.r_w_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.position", (f"{_ATTENTION}.r_r_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.segment", (f"{_ATTENTION}.r_s_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.same_or_different", (f"{_ATTENTION}.seg_embed",), "heads_out"),
    *linear(f"{_OURS}.attention_norm", f"{_ATTENTION}.layer_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.ff.layer_1"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.ff.layer_2"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ff.layer_norm"),
]

"""GPT-2 in the layout of Hugging Face transformers: the key map of ``transformers.GPT2Model``.

Its projections are stored (in, out).
"""

from __future__ import annotations

from lmtransfer.interop.key_map import Rewrite, linear

_OURS, _THEIRS = "stack.layers.{i}", "h.{i}"


def projection(ours: str, theirs: str) -> list[Rewrite]:
    """Rewrites of a linear layer whose matrix is stored (in, out)."""
    return [
        Rewrite(f"{ours}.weight", (f"{theirs}.weight",), "in_out"),
        Rewrite(f"{ours}.bias", (f"{theirs}.bias",)),
    ]


#: Published names that hold no weights (causal masks).
IGNORED = (r"h\.\d+\.attn\.(masked_)?bias",)

#: ``transformers.GPT2Model`` and our ``GptEncoder``.
GPT2 = [
    Rewrite("embeddings.token.weight", ("wte.weight",)),
    Rewrite("embeddings.position.weight", ("wpe.weight",)),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.ln_1"),
    *projection(f"{_OURS}.attention.query_key_value", f"{_THEIRS}.attn.c_attn"),
    *projection(f"{_OURS}.attention.output", f"{_THEIRS}.attn.c_proj"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ln_2"),
    *projection(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.mlp.c_fc"),
    *projection(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.mlp.c_proj"),
    *linear("stack.final_norm", "ln_f"),
]

"""GPT in the layout of Hugging Face transformers: the key map of ``transformers.OpenAIGPTModel``.

Its projections are stored (in, out), as GPT-2's are.
"""

from __future__ import annotations

from lmtransfer.interop.gpt2 import projection
from lmtransfer.interop.key_map import Rewrite, linear

_OURS, _THEIRS = "stack.layers.{i}", "h.{i}"

#: Published names that hold no weights (causal masks, position counters).
IGNORED = (r"h\.\d+\.attn\.bias", r"position_ids")

#: ``transformers.OpenAIGPTModel`` and our post-norm ``GptEncoder``.
GPT = [
    Rewrite("embeddings.token.weight", ("tokens_embed.weight",)),
    Rewrite("embeddings.position.weight", ("positions_embed.weight",)),
    *projection(f"{_OURS}.attention.query_key_value", f"{_THEIRS}.attn.c_attn"),
    *projection(f"{_OURS}.attention.output", f"{_THEIRS}.attn.c_proj"),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.ln_1"),
    *projection(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.mlp.c_fc"),
    *projection(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.mlp.c_proj"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ln_2"),
]

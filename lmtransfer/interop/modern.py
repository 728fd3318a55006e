"""ModernBERT in the layout of Hugging Face transformers: the key maps.

The encoder's names are ours under ``ModernEncoder``; the head's names are those of the objective ``mlm``.
"""

from __future__ import annotations

from lmtransfer.interop.key_map import Rewrite, linear

_OURS, _THEIRS = "stack.layers.{i}", "layers.{i}"

#: ``transformers.ModernBertModel`` and our ``ModernEncoder`` at its defaults; the biases are there only where both
#: have them (``bias`` here; ``attention_bias``, ``mlp_bias`` and ``norm_bias`` there).
MODERN_BERT = [
    Rewrite("embeddings.token.weight", ("embeddings.tok_embeddings.weight",)),
    *linear("embeddings.norm", "embeddings.norm"),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attn_norm"),
    *linear(f"{_OURS}.attention.query_key_value", f"{_THEIRS}.attn.Wqkv"),
    *linear(f"{_OURS}.attention.output", f"{_THEIRS}.attn.Wo"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.mlp_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.mlp.Wi"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.mlp.Wo"),
    *linear("stack.final_norm", "final_norm"),
]

#: Published names that hold no weights.
IGNORED = (r"rotary_emb\..*",)

#: The head of ``transformers.ModernBertForMaskedLM`` (with ``classifier_bias`` and ``norm_bias``, as ours has both)
#: and that of our objective ``mlm``.
MLM_HEAD = [
    *linear("mlm.dense", "head.dense"),
    *linear("mlm.norm", "head.norm"),
    Rewrite("mlm.bias", ("decoder.bias",)),
]
#: Head tensors that repeat others: the output embedding is the token embedding.
TIED_HEADS = (r"decoder\.weight",)

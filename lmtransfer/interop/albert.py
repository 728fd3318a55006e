"""ALBERT in the layout of Hugging Face transformers: the key maps.

They name the tensors of the first layer, which all layers share; a published checkpoint with several groups of layers
has no twin here.
"""

from __future__ import annotations

from lmtransfer.interop.bert import EMBEDDINGS
from lmtransfer.interop.key_map import Rewrite, linear

_OURS, _THEIRS = "stack.layers.0", "encoder.albert_layer_groups.0.albert_layers.0"

#: Published names that hold no weights.
IGNORED = (r"embeddings\.position_ids",)

#: ``transformers.AlbertModel`` with one group of layers, and our post-norm ``AlbertEncoder`` with ``share="all"``.
ALBERT = [
    *EMBEDDINGS,
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *linear("projection", "encoder.embedding_hidden_mapping_in"),
    *linear(
        f"{_OURS}.attention.query_key_value",
        f"{_THEIRS}.attention.query",
        f"{_THEIRS}.attention.key",
        f"{_THEIRS}.attention.value",
    ),
    *linear(f"{_OURS}.attention.output", f"{_THEIRS}.attention.dense"),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.LayerNorm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.ffn"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.ffn_output"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.full_layer_layer_norm"),
    *linear("pooler.dense", "pooler"),
]

#: The heads of ``transformers.AlbertForPreTraining`` and those of our objectives ``mlm`` and ``sop``.
PRETRAINING_HEADS = [
    *linear("mlm.dense", "predictions.dense"),
    *linear("mlm.norm", "predictions.LayerNorm"),
    Rewrite("mlm.bias", ("predictions.bias",)),
    *linear("sop.classifier", "sop_classifier.classifier"),
]
#: Head tensors that repeat others: the output embedding is the token embedding.
TIED_HEADS = (r"predictions\.decoder\..*",)

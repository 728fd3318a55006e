"""BERT and MegatronBert in the layout of Hugging Face transformers: the key maps.

The encoder's names are ours under ``BertEncoder``; the heads' names are those of the objectives.
"""

from __future__ import annotations

from lmtransfer.interop.key_map import Rewrite, linear

#: Of BERT, and of the families that have its tables.
EMBEDDINGS = [
    Rewrite("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
    Rewrite("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
    Rewrite("embeddings.segment.weight", ("embeddings.token_type_embeddings.weight",)),
]
_OURS, _THEIRS = "stack.layers.{i}", "encoder.layer.{i}"
#: What is not norms of its layers.
BLOCKS = [
    *linear(
        f"{_OURS}.attention.query_key_value",
        f"{_THEIRS}.attention.self.query",
        f"{_THEIRS}.attention.self.key",
        f"{_THEIRS}.attention.self.value",
    ),
    *linear(f"{_OURS}.attention.output", f"{_THEIRS}.attention.output.dense"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.intermediate.dense"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.output.dense"),
]
_POOLER = linear("pooler.dense", "pooler.dense")

#: Published names that hold no weights.
IGNORED = (r"embeddings\.position_ids",)

#: ``transformers.BertModel`` and our post-norm ``BertEncoder``.
BERT = [
    *EMBEDDINGS,
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.output.LayerNorm"),
    *_POOLER,
]

#: ``transformers.MegatronBertModel`` and our pre-norm ``BertEncoder``.
MEGATRON_BERT = [
    *EMBEDDINGS,
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.ln"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ln"),
    *linear("stack.final_norm", "encoder.ln"),
    *_POOLER,
]

#: The heads of ``transformers.BertForPreTraining`` and those of our objectives ``mlm`` and ``nsp``.
PRETRAINING_HEADS = [
    *linear("mlm.dense", "cls.predictions.transform.dense"),
    *linear("mlm.norm", "cls.predictions.transform.LayerNorm"),
    Rewrite("mlm.bias", ("cls.predictions.bias",)),
    *linear("nsp.classifier", "cls.seq_relationship"),
]
#: Head tensors that repeat others: the output embedding is the token embedding.
TIED_HEADS = (r"cls\.predictions\.decoder\..*",)

"""RoBERTa in the layout of Hugging Face transformers: the key maps.

They are of a ``RobertaEncoder`` with ``positions_from_two`` and ``type_row``, whose tensors are the published ones;
``with_published_tables`` makes these of the tensors of an encoder without.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lmtransfer.interop.bert import BLOCKS, EMBEDDINGS
from lmtransfer.interop.key_map import Rewrite, linear
from lmtransfer.models.roberta import PUBLISHED_OFFSET

_POSITION, _TYPE = "embeddings.position.weight", "embeddings.segment.weight"
_OURS, _THEIRS = "stack.layers.{i}", "encoder.layer.{i}"

#: Published names that hold no weights of ours: position counters, and a pooler that pretraining does not train.
IGNORED = (r"embeddings\.position_ids", r"pooler\..*")

#: ``transformers.RobertaModel`` and our post-norm ``RobertaEncoder``.
ROBERTA = [
    *EMBEDDINGS,
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.output.LayerNorm"),
]

#: ``transformers.RobertaPreLayerNormModel`` and our pre-norm ``RobertaEncoder``.
ROBERTA_PRE_NORM = [
    *EMBEDDINGS,
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.LayerNorm"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.intermediate.LayerNorm"),
    *linear("stack.final_norm", "LayerNorm"),
]

#: The head of ``transformers.RobertaForMaskedLM`` and that of our objective ``mlm``.
MLM_HEAD = [
    *linear("mlm.dense", "lm_head.dense"),
    *linear("mlm.norm", "lm_head.layer_norm"),
    Rewrite("mlm.bias", ("lm_head.bias",)),
]
#: Head tensors that repeat others: the output embedding is the token embedding.
TIED_HEADS = (r"lm_head\.decoder\..*",)


def with_published_tables(tensors: Mapping[str, Tensor], *, offset: int = PUBLISHED_OFFSET) -> dict[str, Tensor]:
    """The tensors of an encoder without the published tables as one with them has, which computes the same.

    Args:
        tensors: of a ``RobertaEncoder`` whose positions start at 0 and which has no type row.
        offset: the position of a first token there: transformers counts from ``config.pad_token_id + 1`` on.
    """
    position = tensors[_POSITION]
    unused = position.new_zeros(offset, position.shape[1])
    return {**tensors, _POSITION: torch.cat([unused, position]), _TYPE: position.new_zeros(1, position.shape[1])}

"""RoBERTa in the layout of Hugging Face transformers, including XLM-R and CamemBERT, which have the same architecture.

The key maps describe a ``RobertaEncoder`` with ``positions_from_two`` and ``type_row``, whose tensors are those of the
published model. For an encoder without these options, ``add_published_rows`` adds the missing rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.interop.families.bert import (
    BLOCKS,
    DROPOUTS,
    EMBEDDINGS,
    FIXED,
    HIDDEN_ACT,
    IGNORED,
    NORM_EPS,
    POOLER,
    SIZES,
)
from lmtransfer.interop.families.family import (
    Config,
    ConfigTable,
    Family,
    FixedKey,
    PretrainingArchitecture,
    PretrainingHead,
    Quirks,
    Rewrite,
    TaskArchitecture,
    Tensors,
    linear,
    task_heads,
)
from lmtransfer.models.roberta import PUBLISHED_OFFSET, RobertaEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel

_POSITION, _TYPE = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
_OURS, _THEIRS = "stack.layers.{i}", "encoder.layer.{i}"

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

#: The head of ``transformers.RobertaForMaskedLM`` and the head of our objective ``mlm``.
MLM_HEAD = [
    *linear("mlm.dense", "lm_head.dense"),
    *linear("mlm.norm", "lm_head.layer_norm"),
    Rewrite("mlm.bias", ("lm_head.bias",)),
]


def add_published_rows(tensors: Mapping[str, Tensor], *, offset: int) -> dict[str, Tensor]:
    """Add the unused position rows and the type row of the published layout, which do not change the hidden states.

    Args:
        offset: published position of the first token; transformers counts from ``config.pad_token_id + 1``.
    """
    position = tensors[_POSITION]
    unused = position.new_zeros(offset, position.shape[1])
    type_row = tensors.get(_TYPE, position.new_zeros(1, position.shape[1]))
    return {**tensors, _POSITION: torch.cat([unused, position]), _TYPE: type_row}


class PositionOffset(Quirks):
    """Converts positions, which transformers counts from the padding id plus 1, and the single type row.

    Published checkpoints have padding id 1. With another padding id, as in folders that lmtransfer writes, reading
    drops the position rows that no token uses.
    """

    @override
    def read_config(self, config: Config) -> Config:
        rows, pad = config.get("max_position_embeddings"), _pad(config)
        if isinstance(rows, bool) or not isinstance(rows, int) or pad is None:
            return config
        return {**config, "max_position_embeddings": rows - pad - 1}

    @override
    def read_tensors(self, tensors: Tensors, arguments: dict[str, Any], config: Config, notes: list[str]) -> Tensors:
        offset = (_pad(config) or 0) + 1
        arguments |= {"positions_from_two": offset == PUBLISHED_OFFSET, "type_row": True}
        if offset == PUBLISHED_OFFSET or _POSITION not in tensors or not tensors[_POSITION].ndim:
            return tensors
        position = tensors[_POSITION]
        if position[:offset].any():
            notes.append(f"the first {offset} rows of the position embedding, which no token uses, are left out")
        return tensors | {_POSITION: position[offset:]}

    @override
    def write(self, body: Tensors, head: Tensors, config: dict[str, Any], *, arguments: Config, pad_id: int) -> None:
        offset = pad_id + 1
        config |= {"max_position_embeddings": arguments["max_length"] + offset, "type_vocab_size": 1}
        published = arguments["positions_from_two"]
        if published and arguments["type_row"] and offset == PUBLISHED_OFFSET:
            return
        if published and offset != PUBLISHED_OFFSET:
            body[_POSITION] = body[_POSITION][PUBLISHED_OFFSET:]
        body |= add_published_rows(body, offset=0 if published and offset == PUBLISHED_OFFSET else offset)


def _pad(config: Mapping[str, Any]) -> int | None:
    pad = config.get("pad_token_id", 1)
    return pad if isinstance(pad, int) and not isinstance(pad, bool) and pad >= 0 else None


_MLM = PretrainingHead(
    objective=MaskedLanguageModel,
    key_map=MLM_HEAD,
    repeats={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    settings=(NORM_EPS,),
    implied_values={"activation": "gelu"},
)
_SETTINGS = (*SIZES, HIDDEN_ACT, NORM_EPS, *DROPOUTS)
_FIXED = (
    *FIXED,
    FixedKey("type_vocab_size", 1, "lmtransfer's RoBERTa has no segment ids"),
)


def _family(kind: str, model_types: tuple[str, ...], prefix: str, norm: str, key_map: list[Rewrite]) -> Family:
    classifier = TaskArchitecture(
        name=f"{kind}ForSequenceClassification",
        key_map=[*linear("hidden", "classifier.dense"), *linear("output", "classifier.out_proj")],
        dropouts=("classifier_dropout",),
    )
    return Family(
        model_types=model_types,
        encoder=RobertaEncoder,
        prefix=prefix,
        config=ConfigTable(_SETTINGS, _FIXED, implied_values={"norm": norm}),
        key_map=[*key_map, *POOLER],
        ignored_patterns=IGNORED,
        body=f"{kind}Model",
        heads=(_MLM,),
        pretraining=(PretrainingArchitecture(f"{kind}ForMaskedLM", {"mlm": "logits"}),),
        tasks=task_heads(kind, classifier),
        specials={"bos_token_id": "cls", "eos_token_id": "sep"},
        quirks=PositionOffset(),
    )


ROBERTA_FAMILY = _family("Roberta", ("roberta", "xlm-roberta", "camembert"), "roberta.", "post", ROBERTA)
ROBERTA_PRE_NORM_FAMILY = _family(
    "RobertaPreLayerNorm", ("roberta-prelayernorm",), "roberta_prelayernorm.", "pre", ROBERTA_PRE_NORM
)

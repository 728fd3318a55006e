"""ALBERT in the layout of Hugging Face transformers.

All layers share the tensors of the first layer, so the key map contains only this layer. Published checkpoints with
several groups of layers are not supported.
"""

from __future__ import annotations

from lmtransfer.interop.families.bert import EMBEDDINGS, FIXED, NORM_EPS, SEGMENTS, SIZES, OneSegmentRow, activation
from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    FixedKey,
    PretrainingArchitecture,
    PretrainingHead,
    Rewrite,
    TaskArchitecture,
    linear,
    task_heads,
)
from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import SentenceOrderPrediction

_OURS, _THEIRS = "stack.layers.0", "encoder.albert_layer_groups.0.albert_layers.0"

#: Published tensors that hold no weights.
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

_MLM = [
    *linear("mlm.dense", "predictions.dense"),
    *linear("mlm.norm", "predictions.LayerNorm"),
    Rewrite("mlm.bias", ("predictions.bias",)),
]
_SOP = linear("sop.classifier", "sop_classifier.classifier")

_HIDDEN_ACT = activation("hidden_act", "gelu_new")
_ONE_GROUP = "in lmtransfer's ALBERT all layers share the weights of one layer"
_CLASSIFIER = TaskArchitecture(
    name="AlbertForSequenceClassification",
    key_map=linear("output", "classifier"),
    pooler=True,
    pooler_key_map=linear("hidden", "albert.pooler"),
    dropouts=("classifier_dropout_prob",),
)

ALBERT_FAMILY = Family(
    model_types=("albert",),
    encoder=AlbertEncoder,
    prefix="albert.",
    config=ConfigTable(
        (
            ConfigSetting("embedding_dim", "embedding_size", 128),
            *SIZES,
            SEGMENTS,
            _HIDDEN_ACT,
            NORM_EPS,
            ConfigSetting("dropout", "hidden_dropout_prob", 0.0, float),
            ConfigSetting("attention_dropout", "attention_probs_dropout_prob", 0.0, float, is_used=False),
        ),
        (*FIXED, FixedKey("num_hidden_groups", 1, _ONE_GROUP), FixedKey("inner_group_num", 1, _ONE_GROUP)),
        implied_values={"norm": "post", "share": "all"},
    ),
    key_map=ALBERT,
    ignored_patterns=IGNORED,
    alias_patterns=(r"stack\.layers\.[1-9]\d*\..*",),
    body="AlbertModel",
    heads=(
        PretrainingHead(
            objective=MaskedLanguageModel,
            key_map=_MLM,
            repeats={
                "predictions.decoder.weight": "embeddings.word_embeddings.weight",
                "predictions.decoder.bias": "predictions.bias",
            },
            settings=(_HIDDEN_ACT, NORM_EPS),
        ),
        PretrainingHead(objective=SentenceOrderPrediction, key_map=_SOP),
    ),
    pretraining=(
        PretrainingArchitecture("AlbertForPreTraining", {"mlm": "prediction_logits", "sop": "sop_logits"}, pooler=True),
        PretrainingArchitecture("AlbertForMaskedLM", {"mlm": "logits"}),
    ),
    tasks=task_heads("Albert", _CLASSIFIER, dropouts=("classifier_dropout_prob",)),
    specials={"bos_token_id": "cls", "eos_token_id": "sep"},
    quirks=OneSegmentRow(),
)

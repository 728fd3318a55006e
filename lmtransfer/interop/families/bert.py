"""BERT and MegatronBert in the layout of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lmtransfer.interop.families.family import (
    Config,
    ConfigSetting,
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
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction

#: Embedding tensors of BERT and of the families that use its tables.
EMBEDDINGS = [
    Rewrite("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
    Rewrite("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
    Rewrite("embeddings.segment.weight", ("embeddings.token_type_embeddings.weight",)),
]
_OURS, _THEIRS = "stack.layers.{i}", "encoder.layer.{i}"
#: Tensors of the layers, except their norms.
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
POOLER = linear("pooler.dense", "pooler.dense")

#: Published tensors that hold no weights.
IGNORED = (r"embeddings\.position_ids", r"embeddings\.token_type_ids")

#: ``transformers.BertModel`` and our post-norm ``BertEncoder``.
BERT = [
    *EMBEDDINGS,
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.output.LayerNorm"),
    *POOLER,
]

#: ``transformers.MegatronBertModel`` and our pre-norm ``BertEncoder``.
MEGATRON_BERT = [
    *EMBEDDINGS,
    *BLOCKS,
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attention.ln"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ln"),
    *linear("stack.final_norm", "encoder.ln"),
    *POOLER,
]

_MLM = [
    *linear("mlm.dense", "cls.predictions.transform.dense"),
    *linear("mlm.norm", "cls.predictions.transform.LayerNorm"),
    Rewrite("mlm.bias", ("cls.predictions.bias",)),
]
_NSP = linear("nsp.classifier", "cls.seq_relationship")

#: The published name of each of our activations.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
#: Our name for each other published name of these activations.
MORE_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_python": "gelu"}


def activation(key: str, default: str = "gelu") -> ConfigSetting:
    """Return the setting for the activation under a key of config.json."""
    return ConfigSetting("activation", key, default, str, ACTIVATIONS, MORE_ACTIVATIONS)


#: Size settings of all families that descend from BERT.
SIZES = (
    ConfigSetting("dim", "hidden_size"),
    ConfigSetting("num_layers", "num_hidden_layers"),
    ConfigSetting("num_heads", "num_attention_heads"),
    ConfigSetting("hidden_dim", "intermediate_size"),
    ConfigSetting("max_length", "max_position_embeddings", 512),
)
HIDDEN_ACT = activation("hidden_act")
NORM_EPS = ConfigSetting("norm_eps", "layer_norm_eps", 1e-12, float)
DROPOUTS = (
    ConfigSetting("dropout", "hidden_dropout_prob", 0.1, float),
    ConfigSetting("attention_dropout", "attention_probs_dropout_prob", 0.1, float, is_used=False),
)
SEGMENTS = ConfigSetting("num_segments", "type_vocab_size", 2)
#: Keys of BERT's format for which lmtransfer supports only one value.
FIXED = (
    FixedKey("position_embedding_type", "absolute", "lmtransfer computes absolute positions only"),
    FixedKey("is_decoder", False, "lmtransfer reads encoders only and does not compute a decoder's mask and cache"),
    FixedKey("add_cross_attention", False, "lmtransfer does not compute cross-attention"),
)


class OneSegmentRow(Quirks):
    """Adds a single-row segment embedding to the position embedding, because every token gets this row."""

    @override
    def read_tensors(self, tensors: Tensors, arguments: dict[str, Any], config: Config, notes: list[str]) -> Tensors:
        segment, position = (f"embeddings.{kind}_embeddings.weight" for kind in ("token_type", "position"))
        if arguments["num_segments"] != 1 or segment not in tensors or position not in tensors:
            return tensors
        row = tensors[segment]
        if row.shape != (1, *tensors[position].shape[1:]):
            return tensors  # check_tensors reports the wrong shape
        if row.any():
            notes.append("the only row of the segment embedding is added to the position embedding")
        return {name: tensor for name, tensor in tensors.items() if name != segment} | {
            position: tensors[position] + row
        }

    @override
    def write(self, body: Tensors, head: Tensors, config: dict[str, Any], *, arguments: Config, pad_id: int) -> None:
        if arguments["num_segments"] == 1:
            position = body["embeddings.position_embeddings.weight"]
            body["embeddings.token_type_embeddings.weight"] = position.new_zeros(1, position.shape[1])


MLM_HEAD = PretrainingHead(
    objective=MaskedLanguageModel,
    key_map=_MLM,
    repeats={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    settings=(HIDDEN_ACT, NORM_EPS),
)
NSP_HEAD = PretrainingHead(objective=NextSentencePrediction, key_map=_NSP)


_SETTINGS = (*SIZES, SEGMENTS, HIDDEN_ACT, NORM_EPS, *DROPOUTS)


def _family(kind: str, model_type: str, norm: str, key_map: list[Rewrite]) -> Family:
    pairs = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"}
    classifier = TaskArchitecture(
        name=f"{kind}ForSequenceClassification",
        key_map=linear("output", "classifier"),
        pooler=True,
        pooler_key_map=linear("hidden", "bert.pooler.dense"),
        dropouts=("classifier_dropout",),
    )
    return Family(
        model_types=(model_type,),
        encoder=BertEncoder,
        prefix="bert.",
        config=ConfigTable(_SETTINGS, FIXED, implied_values={"norm": norm}),
        key_map=key_map,
        ignored_patterns=IGNORED,
        body=f"{kind}Model",
        heads=(MLM_HEAD, NSP_HEAD),
        pretraining=(
            PretrainingArchitecture(f"{kind}ForPreTraining", pairs, pooler=True),
            PretrainingArchitecture(f"{kind}ForMaskedLM", {"mlm": "logits"}),
            PretrainingArchitecture(f"{kind}ForNextSentencePrediction", {"nsp": "logits"}, pooler=True),
        ),
        tasks=task_heads(kind, classifier),
        quirks=OneSegmentRow(),
    )


BERT_FAMILY = _family("Bert", "bert", "post", BERT)
MEGATRON_BERT_FAMILY = _family("MegatronBert", "megatron-bert", "pre", MEGATRON_BERT)

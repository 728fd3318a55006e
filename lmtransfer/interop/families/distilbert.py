"""DistilBERT in the layout of Hugging Face transformers."""

from __future__ import annotations

from lmtransfer.interop.families.bert import activation
from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    PretrainingArchitecture,
    PretrainingHead,
    Rewrite,
    TaskArchitecture,
    linear,
    task_heads,
)
from lmtransfer.models.distilbert import DistilBertEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel

_OURS, _THEIRS = "stack.layers.{i}", "transformer.layer.{i}"
#: Epsilon of all LayerNorms, which config.json does not contain.
_NORM_EPS = 1e-12

#: ``transformers.DistilBertModel`` and our ``DistilBertEncoder``.
DISTILBERT = [
    Rewrite("embeddings.token.weight", ("embeddings.word_embeddings.weight",)),
    Rewrite("embeddings.position.weight", ("embeddings.position_embeddings.weight",)),
    *linear("embeddings.norm", "embeddings.LayerNorm"),
    *linear(
        f"{_OURS}.attention.query_key_value",
        f"{_THEIRS}.attention.q_lin",
        f"{_THEIRS}.attention.k_lin",
        f"{_THEIRS}.attention.v_lin",
    ),
    *linear(f"{_OURS}.attention.output", f"{_THEIRS}.attention.out_lin"),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.sa_layer_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.ffn.lin1"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.ffn.lin2"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.output_layer_norm"),
]

_ACTIVATION = activation("activation")
_CLASSIFIER = TaskArchitecture(
    name="DistilBertForSequenceClassification",
    key_map=[*linear("hidden", "pre_classifier"), *linear("output", "classifier")],
    dropouts=("seq_classif_dropout",),
)

DISTILBERT_FAMILY = Family(
    model_types=("distilbert",),
    encoder=DistilBertEncoder,
    prefix="distilbert.",
    config=ConfigTable(
        (
            ConfigSetting("dim", "dim"),
            ConfigSetting("num_layers", "n_layers"),
            ConfigSetting("num_heads", "n_heads"),
            ConfigSetting("hidden_dim", "hidden_dim"),
            ConfigSetting("max_length", "max_position_embeddings", 512),
            _ACTIVATION,
            ConfigSetting("dropout", "dropout", 0.1, float),
            ConfigSetting("attention_dropout", "attention_dropout", 0.1, float, is_used=False),
        ),
        implied_values={"norm_eps": _NORM_EPS},
    ),
    key_map=DISTILBERT,
    ignored_patterns=(r"embeddings\.position_ids",),
    body="DistilBertModel",
    heads=(
        PretrainingHead(
            objective=MaskedLanguageModel,
            key_map=[
                *linear("mlm.dense", "vocab_transform"),
                *linear("mlm.norm", "vocab_layer_norm"),
                Rewrite("mlm.bias", ("vocab_projector.bias",)),
            ],
            repeats={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
            settings=(_ACTIVATION,),
            implied_values={"norm_eps": _NORM_EPS},
        ),
    ),
    pretraining=(PretrainingArchitecture("DistilBertForMaskedLM", {"mlm": "logits"}),),
    tasks=task_heads("DistilBert", _CLASSIFIER, dropouts=())
    | {
        "span": TaskArchitecture(
            name="DistilBertForQuestionAnswering", key_map=linear("output", "qa_outputs"), dropouts=("qa_dropout",)
        ),
    },
)

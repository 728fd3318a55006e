"""XLNet in the layout of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lmtransfer.interop.families.bert import activation
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
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.permutation_lm import PermutationLanguageModel

_OURS, _THEIRS = "stack.layers.{i}", "layer.{i}"
_ATTENTION = f"{_THEIRS}.rel_attn"

#: ``transformers.XLNetModel`` and our post-norm ``XlnetEncoder``.
XLNET = [
    Rewrite("token_embedding.weight", ("word_embedding.weight",)),
    Rewrite("query", ("mask_emb",), "one_row"),
    Rewrite(f"{_OURS}.attention.query.weight", (f"{_ATTENTION}.q",), "in_heads"),
    Rewrite(f"{_OURS}.attention.key_value.weight", (f"{_ATTENTION}.k", f"{_ATTENTION}.v"), "in_heads"),
    Rewrite(f"{_OURS}.attention.position.weight", (f"{_ATTENTION}.r",), "in_heads"),
    Rewrite(f"{_OURS}.attention.output.weight", (f"{_ATTENTION}.o",), "heads_out"),
    Rewrite(f"{_OURS}.biases.content", (f"{_ATTENTION}.r_w_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.position", (f"{_ATTENTION}.r_r_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.segment", (f"{_ATTENTION}.r_s_bias",), "heads_out"),
    Rewrite(f"{_OURS}.biases.same_or_different", (f"{_ATTENTION}.seg_embed",), "heads_out"),
    *linear(f"{_OURS}.attention_norm", f"{_ATTENTION}.layer_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.ff.layer_1"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.ff.layer_2"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ff.layer_norm"),
]


class ZeroSegments(Quirks):
    """Adds zero segment vectors if our encoder has none, because published layers always have segment vectors."""

    @override
    def write(self, body: Tensors, head: Tensors, config: dict[str, Any], *, arguments: Config, pad_id: int) -> None:
        if arguments["num_segments"] > 1:
            return
        for layer in range(arguments["num_layers"]):
            place = f"layer.{layer}.rel_attn"
            content = body[f"{place}.r_w_bias"]
            body[f"{place}.r_s_bias"] = content.new_zeros(content.shape)
            body[f"{place}.seg_embed"] = content.new_zeros(2, *content.shape)


_CLASSIFIER = TaskArchitecture(
    name="XLNetForSequenceClassification",
    key_map=[*linear("hidden", "sequence_summary.summary"), *linear("output", "logits_proj")],
    dropouts=("summary_last_dropout",),
    config={"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"},
)

XLNET_FAMILY = Family(
    model_types=("xlnet",),
    encoder=XlnetEncoder,
    prefix="transformer.",
    config=ConfigTable(
        (
            ConfigSetting("dim", "d_model"),
            ConfigSetting("num_layers", "n_layer"),
            ConfigSetting("num_heads", "n_head"),
            ConfigSetting("hidden_dim", "d_inner"),
            ConfigSetting("memory_length", "mem_len", None, int, names={0: None}, reads={0: 0}),
            ConfigSetting("clamp_length", "clamp_len", -1, int, names={None: -1}, reads={0: None}),
            activation("ff_activation"),
            ConfigSetting("norm_eps", "layer_norm_eps", 1e-12, float),
            ConfigSetting("dropout", "dropout", 0.1, float),
        ),
        (
            FixedKey("attn_type", "bi", "lmtransfer's XLNet is bidirectional"),
            FixedKey("bi_data", False, "lmtransfer does not reverse half of each batch"),
            FixedKey("same_length", False, "lmtransfer's XLNet sees all of its memory"),
            FixedKey("untie_r", True, "each layer of lmtransfer's XLNet has its own biases"),
        ),
        implied_values={"norm": "post"},
        assumed_values={"max_length": 512, "num_segments": 2},
    ),
    key_map=XLNET,
    token="token_embedding.weight",
    body="XLNetModel",
    pads_left=True,
    heads=(
        PretrainingHead(
            objective=PermutationLanguageModel,
            key_map=[Rewrite("plm.bias", ("lm_loss.bias",))],
            repeats={"lm_loss.weight": "word_embedding.weight"},
        ),
    ),
    pretraining=(PretrainingArchitecture("XLNetLMHeadModel", {"plm": "logits"}),),
    tasks=task_heads("XLNet", _CLASSIFIER, dropouts=())
    | {
        "span": TaskArchitecture(name="XLNetForQuestionAnsweringSimple", key_map=linear("output", "qa_outputs")),
    },
    specials={"bos_token_id": "cls", "eos_token_id": "sep"},
    quirks=ZeroSegments(),
)

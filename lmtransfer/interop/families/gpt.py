"""GPT-2 and GPT in the layout of Hugging Face transformers, which calls GPT OpenAIGPT."""

from __future__ import annotations

from lmtransfer.interop.families.bert import activation
from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    FixedKey,
    PretrainingArchitecture,
    PretrainingHead,
    Rewrite,
    linear,
    task_heads,
)
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.objectives.language_model import LanguageModel

_OURS, _THEIRS = "stack.layers.{i}", "h.{i}"


def projection(ours: str, theirs: str) -> list[Rewrite]:
    """Return the rewrites of a linear layer whose matrix is stored as (in, out)."""
    return [
        Rewrite(f"{ours}.weight", (f"{theirs}.weight",), "in_out"),
        Rewrite(f"{ours}.bias", (f"{theirs}.bias",)),
    ]


#: Published tensors that hold no weights (causal masks).
IGNORED = (r"h\.\d+\.attn\.(masked_)?bias",)

#: ``transformers.GPT2Model`` and our ``GptEncoder``.
GPT2 = [
    Rewrite("embeddings.token.weight", ("wte.weight",)),
    Rewrite("embeddings.position.weight", ("wpe.weight",)),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.ln_1"),
    *projection(f"{_OURS}.attention.query_key_value", f"{_THEIRS}.attn.c_attn"),
    *projection(f"{_OURS}.attention.output", f"{_THEIRS}.attn.c_proj"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ln_2"),
    *projection(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.mlp.c_fc"),
    *projection(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.mlp.c_proj"),
    *linear("stack.final_norm", "ln_f"),
]

#: Settings with the same keys in GPT and GPT-2.
SETTINGS = (
    ConfigSetting("dim", "n_embd"),
    ConfigSetting("num_layers", "n_layer"),
    ConfigSetting("num_heads", "n_head"),
    ConfigSetting("norm_eps", "layer_norm_epsilon", 1e-5, float),
    ConfigSetting("dropout", "resid_pdrop", 0.1, float, copies=("embd_pdrop",)),
    ConfigSetting("attention_dropout", "attn_pdrop", 0.1, float, is_used=False),
)
SPECIALS = {"bos_token_id": "cls", "eos_token_id": "sep"}
#: The reason why no published head for text classification corresponds to ours.
NO_BIAS = "the published classifier has no bias, but lmtransfer's classifier has one"

GPT2_FAMILY = Family(
    model_types=("gpt2",),
    encoder=GptEncoder,
    prefix="transformer.",
    config=ConfigTable(
        (
            *SETTINGS,
            ConfigSetting("max_length", "n_positions", 1024),
            ConfigSetting("hidden_dim", "n_inner", lambda config: 4 * config["n_embd"]),
            activation("activation_function", "gelu_new"),
        ),
        (
            FixedKey("add_cross_attention", False, "lmtransfer does not compute cross-attention"),
            FixedKey("scale_attn_weights", True, "lmtransfer always scales attention scores"),
            FixedKey(
                "scale_attn_by_inverse_layer_idx", False, "lmtransfer scales attention scores equally in all layers"
            ),
        ),
        implied_values={"norm": "pre"},
    ),
    key_map=GPT2,
    ignored_patterns=IGNORED,
    body="GPT2Model",
    continues_text=True,
    heads=(
        PretrainingHead(
            objective=LanguageModel,
            repeats={"lm_head.weight": "wte.weight"},
        ),
    ),
    pretraining=(PretrainingArchitecture("GPT2LMHeadModel", {"lm": "logits"}),),
    tasks=task_heads("GPT2", NO_BIAS),
    specials=SPECIALS,
)


#: Published tensors that hold no weights (causal masks, position ids).
_GPT1_IGNORED = (r"h\.\d+\.attn\.bias", r"position_ids")

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

#: OpenAIGPT's "gelu" is the tanh approximation.
_ACTIVATION = ConfigSetting(
    "activation", "afn", "gelu", str, names={"gelu_tanh": "gelu", "relu": "relu"}, reads={"gelu_new": "gelu_tanh"}
)
_NO_CLASS = "transformers has no such class"

GPT_FAMILY = Family(
    model_types=("openai-gpt",),
    encoder=GptEncoder,
    prefix="transformer.",
    config=ConfigTable(
        (*SETTINGS, ConfigSetting("max_length", "n_positions", 512), _ACTIVATION),
        implied_values={"norm": "post", "hidden_dim": lambda arguments: 4 * arguments["dim"]},
    ),
    key_map=GPT,
    ignored_patterns=_GPT1_IGNORED,
    body="OpenAIGPTModel",
    continues_text=True,
    heads=(
        PretrainingHead(
            objective=LanguageModel,
            repeats={"lm_head.weight": "tokens_embed.weight"},
        ),
    ),
    pretraining=(PretrainingArchitecture("OpenAIGPTLMHeadModel", {"lm": "logits"}),),
    tasks={"classification": NO_BIAS, "regression": NO_BIAS, "tagging": _NO_CLASS, "span": _NO_CLASS},
    specials=SPECIALS,
)

"""GPT in the layout of Hugging Face transformers, whose class is named OpenAIGPT.

Its projections are stored as (in, out), like those of GPT-2.
"""

from __future__ import annotations

from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    PretrainingArchitecture,
    PretrainingHead,
)
from lmtransfer.interop.families.gpt2 import NO_BIAS, SETTINGS, SPECIALS, projection
from lmtransfer.interop.families.key_map import Rewrite, linear
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.objectives.language_model import LanguageModel

_OURS, _THEIRS = "stack.layers.{i}", "h.{i}"

#: Published names that hold no weights (causal masks, position counters).
IGNORED = (r"h\.\d+\.attn\.bias", r"position_ids")

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

#: In transformers' OpenAIGPT, "gelu" means the tanh approximation.
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
    ignored_patterns=IGNORED,
    body="OpenAIGPTModel",
    continues_text=True,
    heads=(
        PretrainingHead(
            objective=LanguageModel,
            repeats={"lm_head.weight": "tokens_embed.weight"},
            architectures=("OpenAIGPTLMHeadModel",),
        ),
    ),
    pretraining=(PretrainingArchitecture("OpenAIGPTLMHeadModel", {"lm": "logits"}),),
    tasks={"classification": NO_BIAS, "regression": NO_BIAS, "tagging": _NO_CLASS, "span": _NO_CLASS},
    specials=SPECIALS,
)

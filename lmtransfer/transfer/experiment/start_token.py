"""The begin of a text, for encoders that were pretrained without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lmtransfer.models.base import Encoder
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer


def with_trained_start(
    weights: Mapping[str, Tensor], encoder: Encoder, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The weights of a pretrained encoder, in which [CLS] means something.

    Tasks read "[CLS] text [SEP]". Rows without a frame (``lm_lanes``, ``skipgram``, ``cbow``, ELMo's and XLNet's lanes)
    hold no [CLS], whose vector is then as random as on the first day; what such an encoder has read before every
    document is the [SEP] after the one before. So [CLS] begins as a copy of [SEP], and learns from there.

    Args:
        weights: the encoder's, by name.
        encoder: any of its kind.
        tokenizer: of the run.
        config: of the run; the weights of one that went on from another, was imported, or is no pretraining are left
            as they are.
    """
    weights = dict(weights)
    rows = (config.get("objective") or {}).get("rows") or {}
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus") or "task" in config:
        return weights
    spelt = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    begun, ended = (
        encoder.input_rows(token, None if spelt is None else spelt[token])
        for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    if begun is None or ended is None:
        return weights
    (table, starts), (_, ends) = begun, ended
    differ = [(start, end) for start, end in zip(starts, ends, strict=True) if start != end]
    key = next(f"{name}.weight" for name, module in encoder.named_modules() if module is table)
    table_VD = weights[key].clone()
    table_VD[[start for start, _ in differ]] = weights[key][[end for _, end in differ]]
    return {**weights, key: table_VD}

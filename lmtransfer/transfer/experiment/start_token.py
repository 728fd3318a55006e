"""A start vector for [CLS], for encoders that were pretrained without [CLS]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lmtransfer.models.base import Encoder
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer


def with_trained_start(
    weights: Mapping[str, Tensor], encoder: Encoder, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The weights of a pretrained encoder, in which an untrained [CLS] is a copy of [SEP].

    Tasks read "[CLS] text [SEP]". Pretraining rows without a frame (``lm_contiguous``, ``skipgram``, ``cbow``, ELMo's
    and XLNet's contiguous streams) have no [CLS], so its vector is still random. Such an encoder has read the [SEP]
    of the previous document before every document. Therefore [CLS] starts as a copy of [SEP] and is trained from there.

    Args:
        weights: weights of the encoder, by name.
        encoder: any encoder of the same config.
        tokenizer: tokenizer of the run.
        config: config of the run. The weights do not change if the run continued another run, was imported, or is not
            a pretraining run.
    """
    weights = dict(weights)
    rows = (config.get("objective") or {}).get("rows") or {}
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus") or "task" in config:
        return weights
    character_table = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    has_started, ended = (
        encoder.input_rows(token, None if character_table is None else character_table[token])
        for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    if has_started is None or ended is None:
        return weights
    (table, starts), (_, ends) = has_started, ended
    differ = [(start, end) for start, end in zip(starts, ends, strict=True) if start != end]
    key = next(f"{name}.weight" for name, module in encoder.named_modules() if module is table)
    table_VD = weights[key].clone()
    table_VD[[start for start, _ in differ]] = weights[key][[end for _, end in differ]]
    return {**weights, key: table_VD}

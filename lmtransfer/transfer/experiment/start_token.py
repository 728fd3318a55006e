"""The begin of a text, for encoders that were pretrained without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from lmtransfer.layers.char_cnn import CharacterCnn
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
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus"):
        return weights
    for name, module in cast(nn.Module, encoder).named_modules():
        key = f"{name}.weight" if module is encoder.token_embedding else f"{name}.embedding.weight"
        if module is encoder.token_embedding:
            weights[key] = _copied(weights[key], [tokenizer.sep_id], [tokenizer.cls_id])
        elif isinstance(module, CharacterCnn) and isinstance(tokenizer, CharacterTokenizer):
            start, end = (tokenizer.characters[i] for i in (tokenizer.cls_id, tokenizer.sep_id))
            differ = np.flatnonzero(start != end)
            weights[key] = _copied(weights[key], end[differ].tolist(), start[differ].tolist())
    return weights


def _copied(table_VD: Tensor, sources: list[int], targets: list[int]) -> Tensor:
    table_VD = table_VD.clone()
    table_VD[targets] = table_VD[sources]
    return table_VD

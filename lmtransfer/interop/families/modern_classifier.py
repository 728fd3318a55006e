"""A linear head as the head of ModernBERT's classifiers: a dense layer, an activation, a LayerNorm and a linear layer.

The encoder ends with a LayerNorm: its states are x = weight * n + bias, where the entries of n have mean 0, also after
averaging over tokens. The dense layer divides by the weight of that norm and makes n very small. A LayerNorm of such a
vector only divides it by sqrt(epsilon), because its variance is negligible beside epsilon. The linear layer takes both
factors back. The result is linear up to a relative error of 2^-21.

Shape legend: D width, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from lmtransfer.errors import CheckpointError

#: The activation between the dense layer and the norm must be the identity.
CONFIG: Final = {"classifier_activation": "linear"}

#: What users should know about this form of a head.
NOTE: Final = (
    "ModernBERT's classifiers have a dense layer and a norm before the last layer; here their weights make all three "
    "one linear layer, up to rounding in float32 and bfloat16, and up to about a percent in float16. To train further "
    "with transformers, start from the export of the pretrained encoder"
)

#: The entries of n become this small, relative to sqrt(epsilon); a power of two, so that scaling is exact.
_SMALL = 2.0**-10


def as_classifier(output: Mapping[str, Tensor], norm: Mapping[str, Tensor], *, eps: float) -> dict[str, Tensor]:
    """Express a linear head over normalised states.

    Args:
        output: the linear head: ``weight``, (K, D), and ``bias``, (K,).
        norm: the last LayerNorm of the encoder: ``weight``, (D,), and perhaps ``bias``, (D,).
        eps: epsilon of all LayerNorms.

    Returns:
        The tensors of ``head.dense``, ``head.norm`` and ``classifier``; with biases if ``norm`` has one.

    Raises:
        CheckpointError: an entry of the norm's weight is so small that its states cannot be divided by it.
    """
    weight_KD, bias_K, scale_D = output["weight"], output["bias"], norm["weight"]
    small = _SMALL * math.sqrt(eps)
    dense_D = small / scale_D
    if not dense_D.isfinite().all():
        raise CheckpointError(
            "the last norm of the encoder has a weight of 0, so no classifier of ModernBERT has this head"
        )
    made = {
        "head.dense.weight": torch.diag(dense_D),
        "head.norm.weight": torch.ones_like(scale_D),
        "classifier.weight": weight_KD * scale_D / _SMALL,
        "classifier.bias": bias_K,
    }
    if "bias" in norm:
        made["head.dense.bias"] = -dense_D * norm["bias"]
        made["head.norm.bias"] = torch.zeros_like(scale_D)
        made["classifier.bias"] = bias_K + weight_KD @ norm["bias"]
    return made


def from_classifier(tensors: Mapping[str, Tensor], *, eps: float) -> dict[str, Tensor]:
    """The inverse of ``as_classifier``.

    Args:
        tensors: tensors of ``head.dense``, ``head.norm`` and ``classifier``.
        eps: epsilon of all LayerNorms.

    Returns:
        ``weight``, (K, D), and ``bias``, (K,), of the linear head.
    """
    inner_KD = tensors["classifier.weight"] * tensors["head.norm.weight"] / math.sqrt(eps)
    weight_KD, bias_K = inner_KD @ tensors["head.dense.weight"], tensors["classifier.bias"]
    if "head.dense.bias" in tensors:
        bias_K = bias_K + inner_KD @ tensors["head.dense.bias"]
        bias_K = bias_K + tensors["classifier.weight"] @ tensors["head.norm.bias"]
    return {"weight": weight_KD, "bias": bias_K}

"""XLNet in the layout of Hugging Face transformers: the key map of ``transformers.XLNetModel``.

Its projections are stored with heads apart, (in, heads, width), and its output projection is (out, heads, width).

Shape legend: D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lmtransfer.interop.key_map import Rewrite, linear, to_ours, to_theirs

_OURS, _THEIRS = "stack.layers.{i}", "layer.{i}"
_ATTENTION = f"{_THEIRS}.rel_attn"

#: ``transformers.XLNetModel`` with its heads merged, and our post-norm ``XlnetEncoder``.
XLNET = [
    Rewrite("token_embedding.weight", ("word_embedding.weight",)),
    Rewrite("query", ("mask_emb",)),
    Rewrite(f"{_OURS}.attention.query.weight", (f"{_ATTENTION}.q",)),
    Rewrite(f"{_OURS}.attention.key_value.weight", (f"{_ATTENTION}.k", f"{_ATTENTION}.v")),
    Rewrite(f"{_OURS}.attention.position.weight", (f"{_ATTENTION}.r",)),
    Rewrite(f"{_OURS}.attention.output.weight", (f"{_ATTENTION}.o",)),
    Rewrite(f"{_OURS}.biases.content", (f"{_ATTENTION}.r_w_bias",)),
    Rewrite(f"{_OURS}.biases.position", (f"{_ATTENTION}.r_r_bias",)),
    Rewrite(f"{_OURS}.biases.segment", (f"{_ATTENTION}.r_s_bias",)),
    Rewrite(f"{_OURS}.biases.same_or_different", (f"{_ATTENTION}.seg_embed",)),
    *linear(f"{_OURS}.attention_norm", f"{_ATTENTION}.layer_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.ff.layer_1"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.ff.layer_2"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.ff.layer_norm"),
]


def xlnet_to_ours(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published tensors of the encoder as ours.

    Raises:
        CheckpointError: as ``to_ours``.
    """
    return to_ours({name: _merged(name, tensor) for name, tensor in tensors.items()}, XLNET)


def xlnet_to_theirs(tensors: Mapping[str, Tensor], *, num_heads: int) -> dict[str, Tensor]:
    """The inverse of ``xlnet_to_ours``.

    Raises:
        CheckpointError: as ``to_theirs``.
    """
    published = to_theirs(tensors, XLNET)
    return {name: _apart(name, tensor, num_heads) for name, tensor in published.items()}


def _merged(name: str, tensor: Tensor) -> Tensor:
    """(D, H, K) as the weight (H K, D) of a linear layer; (D, H, K) of an output as (D, H K); vectors as (H K)."""
    match name.rpartition(".")[2]:
        case "mask_emb":
            return tensor.reshape(-1)
        case "q" | "k" | "v" | "r":
            return tensor.flatten(1).T.contiguous()
        case "o" | "seg_embed":
            return tensor.flatten(1)
        case "r_w_bias" | "r_r_bias" | "r_s_bias":
            return tensor.flatten()
    return tensor


def _apart(name: str, tensor: Tensor, num_heads: int) -> Tensor:
    match name.rpartition(".")[2]:
        case "mask_emb":
            return tensor.view(1, 1, -1)
        case "q" | "k" | "v" | "r":
            return tensor.T.contiguous().unflatten(1, (num_heads, -1))
        case "o" | "seg_embed":
            return tensor.unflatten(1, (num_heads, -1))
        case "r_w_bias" | "r_r_bias" | "r_s_bias":
            return tensor.view(num_heads, -1)
    return tensor

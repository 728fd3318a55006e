"""The depth of each encoder parameter below the head, for layer-wise learning rates and gradual unfreezing.

A parameter belongs to the lowest layer whose values depend on it. This is computed from the autograd graph of one
forward pass, so it works for every encoder, whatever the names and sharing of modules. All parameters in a block have
the layer of the block's topmost parameter, because an encoder may use some of them earlier with weight 0, so that they
always have a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder


def depths_below_head(encoder: Encoder, sample: PackedBatch, *, read: Collection[int]) -> dict[str, int]:
    """Return the depth of each encoder parameter by name: 1 for the topmost layer read, the maximum for the embeddings.

    Only layers with their own parameters count, so layers that share parameters count as one (ALBERT: Lan et al. 2020).
    Parameters after the topmost block, such as a last norm, belong to that block. Parameters that no read layer depends
    on have no depth: poolers, higher layers, and parameters that only pretraining uses.

    Args:
        encoder: an encoder; its mode, flags and gradients are restored afterwards.
        sample: any batch that the encoder can read, on its device.
        read: the layers to read, from 0 (embeddings) to ``num_layers``.
    """
    parameters = dict(encoder.named_parameters())
    flags, was_training = {name: parameter.requires_grad for name, parameter in parameters.items()}, encoder.training
    encoder.requires_grad_(True).eval()
    try:
        with torch.enable_grad():
            layers = encoder(sample).layers[: max(read) + 1]
    finally:
        encoder.train(was_training)
        for name, parameter in parameters.items():
            parameter.requires_grad_(flags[name])
    visited: set[Any] = set()
    place_of: dict[int, int] = {}
    for place, layer in enumerate(layers):
        for leaf in _new_leaves(layer, visited):
            place_of.setdefault(id(leaf), place)
    in_blocks: list[int] = []
    for block in encoder.blocks():
        own = [id(parameter) for parameter in block.parameters() if id(parameter) in place_of]
        place_of.update(dict.fromkeys(own, max((place_of[leaf] for leaf in own), default=0)))
        in_blocks += own
    topmost = max((place_of[leaf] for leaf in in_blocks), default=0) or len(layers)
    place_of = {leaf: min(place, topmost) for leaf, place in place_of.items()}  # a last norm above shared layers
    places = sorted(
        {place_of[id(parameter)] for parameter in parameters.values() if id(parameter) in place_of}, reverse=True
    )
    depth = {place: number for number, place in enumerate(places, start=1)}
    return {name: depth[place_of[id(parameter)]] for name, parameter in parameters.items() if id(parameter) in place_of}


def _new_leaves(output: Tensor, visited: set[Any]) -> list[Tensor]:
    """Return the leaves of ``output``'s autograd graph, except those below nodes that were visited before."""
    leaves, stack = [], [output.grad_fn]
    while stack:
        node: Any = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack += [below for below, _ in node.next_functions]
    return leaves


def rate_scales(depths: Mapping[str, int], *, decay: float, gap: bool = False) -> dict[str, float]:
    """Return factors on the learning rate by parameter name: ``decay`` to the power of the depth.

    Args:
        depths: depths by parameter name, from ``depths_below_head``.
        decay: ratio of a layer's rate to that of the layer above it.
        gap: whether to apply one more factor between the head and the topmost layer, as in the published ELECTRA code.
    """
    return {name: decay ** (depth + gap) for name, depth in depths.items()}

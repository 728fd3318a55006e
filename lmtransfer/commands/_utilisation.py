"""The arithmetic of pretraining a token, for the share of a GPU's peak that a run reaches."""

from __future__ import annotations

from typing import cast

from torch import nn

from lmtransfer.commands._pretraining_data import PretrainingData
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.flops import training_flops_per_token


def pretraining_flops(data: PretrainingData, learner: PretrainingLearner) -> float:
    """About how much arithmetic a token of training takes, in FLOP.

    Every token passes through the encoder's matrices; only those that are predicted pass through a head and the output
    matrix. Tables that are looked up cost nothing.
    """
    encoder = data.parts.encoder
    module = cast(nn.Module, encoder)
    in_encoder = {id(parameter) for parameter in module.parameters()}
    tables = {id(table.weight) for table in module.modules() if isinstance(table, nn.Embedding)}
    everywhere = sum(p.numel() for p in module.parameters() if p.ndim > 1 and id(p) not in tables)
    heads = sum(p.numel() for p in learner.parameters() if p.ndim > 1 and id(p) not in in_encoder)
    if encoder.token_embedding is not None and any(objective.reads != "starts" for objective in data.parts.objectives):
        heads += encoder.token_embedding.weight.numel()
    length = data.stream.mean_length
    sample = 1 << 16
    share = data.parts.corruption.expected_targets(sample) / sample or 1.0  # all, where nothing is hidden
    return training_flops_per_token(
        num_weights=round(everywhere + share * heads),
        num_layers=encoder.num_layers,
        dim=encoder.dim,
        mean_length=length,
    )

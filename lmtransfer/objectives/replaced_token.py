"""Replaced-token detection (ELECTRA).

Shape legend: T tokens of a packed batch, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.objectives.base import Encode
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.generator import GeneratorObjective
from lmtransfer.training.learner import Loss


class ReplacedTokenDetection(GeneratorObjective):
    """Predicts for every token whether a small generator has replaced it (Clark et al. 2020, section 3).

    Losses: "rtd", the binary cross entropy in nats summed over all real tokens; and "rtd_accuracy". The generator's
    losses and the metrics of detecting replaced tokens are added (see ``GeneratorObjective``): a token counts as
    detected if the head gives it a probability above one half. "rtd_found" is recall times "rtd_replaced", which
    earlier versions logged.
    """

    name = "rtd"
    title = "replaced tokens"
    selection_loss = "rtd"  # the total includes the loss of the generator, but no task uses the generator

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.dense = nn.Linear(encoder.dim, encoder.dim)
        self.output = nn.Linear(encoder.dim, 1)
        self.dense.apply(truncated_normal_)
        self.output.apply(truncated_normal_)

    @override
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        return {**super().counts(batch), "rtd_found": batch.num_targets}

    @override
    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden_TD))).squeeze(-1)

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        replacements = self.replace(batch)
        is_replaced_T = replacements.is_replaced_T
        logits_T = self.token_logits(encode(replacements.packed, None).last)
        logits_T = logits_T.to(torch.promote_types(logits_T.dtype, torch.float32))
        real = batch.original.num_tokens  # filler comes last
        cross_entropies_T = nn.functional.binary_cross_entropy_with_logits(
            logits_T, is_replaced_T.to(logits_T.dtype), reduction="none"
        )
        predicted_T = logits_T.detach() > 0
        hits = (predicted_T == is_replaced_T)[:real].sum().float()
        return {
            **replacements.losses,
            **self.loss_and_accuracy(cross_entropies_T[:real].sum(), hits, real),
            **self.detection(predicted_T, replacements),
            "rtd_found": Loss((predicted_T & is_replaced_T)[:real].sum().float(), batch.num_targets, 0.0),
        }

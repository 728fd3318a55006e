"""All-tokens masked language modeling (ELECTRA's ablation).

Shape legend: T tokens of a packed batch, D width, E width of the token embedding, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative, Positive, PositiveProb
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Activation, truncated_normal_
from lmtransfer.objectives.base import Encode
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.generator import EmbeddingSharing, GeneratorObjective, GeneratorStart
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.token_prediction import vocabulary_losses
from lmtransfer.training.learner import Loss


class AllTokensMaskedLanguageModel(GeneratorObjective):
    """Predicts the original of every token, some of which a small generator has replaced (Clark et al. 2020, 3.4).

    A gate D, the sigmoid of one number per token, mixes copying the input token with a softmax over the vocabulary:
    ``p(v) = D [v is the input token] + (1 - D) softmax(v)``. The softmax has the head of ``MaskedLanguageModel``.

    Losses: "all_tokens_mlm", ``-log p(original)`` in nats summed over all real tokens; and "all_tokens_mlm_accuracy".
    For the accuracy, the prediction is the input token if the gate is at least one half, else the most probable token
    of the softmax; there is no accuracy with sampled classes. The generator's losses and the metrics of detecting
    replaced tokens are added (see ``GeneratorObjective``): a token counts as detected if the gate is below one half.

    Args:
        num_sampled: number of classes of a sampled softmax in training, for the encoder but not for the generator; see
            ``TokenPrediction``.
    """

    name = "all_tokens_mlm"
    title = "original tokens"
    selection_loss = "all_tokens_mlm"  # as for "rtd"
    vocabulary_tensors = ("generator_head.bias", "head.bias")

    def __init__(
        self,
        *,
        weight: NonNegative = 7.0,
        generator_weight: NonNegative = 1.0,
        generator_size: PositiveProb = 0.25,
        embedding_sharing: EmbeddingSharing = "tied",
        generator_start: GeneratorStart = "random",
        temperature: Positive = 1.0,
        activation: Activation = "gelu",
        norm_eps: Positive = 1e-12,
        num_sampled: Count | None = None,
    ) -> None:
        super().__init__(
            weight=weight,
            generator_weight=generator_weight,
            generator_size=generator_size,
            embedding_sharing=embedding_sharing,
            generator_start=generator_start,
            temperature=temperature,
            activation=activation,
            norm_eps=norm_eps,
        )
        self.num_sampled = num_sampled
        self.head = MaskedLanguageModel(num_sampled=num_sampled, activation=activation, norm_eps=norm_eps)
        self.head.head_reads = self.head.output_reads = "all"

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.head.bind(encoder)
        self.gate = nn.Linear(encoder.dim, 1)
        self.gate.apply(truncated_normal_)

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        replacements, real = self.replace(batch), batch.original.num_tokens  # filler comes last
        original_T, tokens_T = batch.original.tokens_T[:real], replacements.packed.tokens_T[:real]
        hidden_TD = encode(replacements.packed, None).last[:real]
        gate_T = self.gate(hidden_TD).squeeze(-1)
        hidden_TE, output_VE = self.head.transform(hidden_TD), self.tied_embedding.weight
        copies_T = gate_T.detach() >= 0
        softmax_T, best_T = vocabulary_losses(
            hidden_TE, output_VE, self.head.bias, original_T, num_sampled=self.active_num_sampled
        )
        hits = None if best_T is None else (torch.where(copies_T, tokens_T, best_T) == original_T).sum().float()
        total = copy_or_softmax(gate_T.to(softmax_T.dtype), softmax_T, tokens_T == original_T).sum()
        return {
            **replacements.losses,
            **self.loss_and_accuracy(total, hits, real),
            **self.detection(~copies_T, replacements),
        }


def copy_or_softmax(gate_T: Tensor, cross_entropies_T: Tensor, is_original_T: Tensor) -> Tensor:
    """Return ``-log(D [the input token is the original] + (1 - D) softmax(original))``, (T,), in log space."""
    written_T = logsigmoid(-gate_T) - cross_entropies_T
    return -torch.where(is_original_T, torch.logaddexp(logsigmoid(gate_T), written_T), written_T)

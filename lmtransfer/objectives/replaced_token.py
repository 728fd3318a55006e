"""ELECTRA's objectives: a small generator replaces tokens, and the encoder learns from the text with its replacements.

Shape legend: T tokens of a packed batch, M prediction positions, D width, E width of the token embedding, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative, Positive, PositiveProb
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Activation, activation_module, truncated_normal_
from lmtransfer.models.layers.cross_entropy import cross_entropy_sum_and_samples
from lmtransfer.models.layers.disentangled import disentangle, merge
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.token_prediction import vocabulary_losses
from lmtransfer.training.learner import Loss

#: How the generator and the encoder share embeddings (He et al. 2021, section 3). "tied": both use the same embeddings.
#: "disentangled": the encoder's token embedding is the generator's, without gradient, plus a difference that starts at
#: 0. "none": their embeddings are separate.
EmbeddingSharing = Literal["tied", "disentangled", "none"]
#: How the generator's layers start: random, or as copies of the encoder's layers.
GeneratorStart = Literal["random", "encoder"]


@dataclass(frozen=True, slots=True)
class Replacements:
    """A batch in which the generator's samples replace the masked tokens.

    Attributes:
        packed: the original text with the generator's samples at the masked positions, without [MASK].
    """

    packed: PackedBatch
    is_replaced_T: Tensor
    num_hidden: int
    losses: dict[str, Loss]


class GeneratorObjective(Objective):
    """Trains a generator, and trains the encoder on text with the generator's tokens (Clark et al. 2020, section 3.1).

    The generator is a smaller encoder, trained as a masked language model. Its samples replace the masked tokens of the
    original text, and the encoder (the discriminator) reads this text, which contains no [MASK]. A sample that equals
    the original token does not count as a replacement. No gradient flows through the samples, so the generator's layers
    learn only from the generator's loss. The random numbers of a sample belong to its row
    (``PretrainingBatch.uniform_M``), so losses do not depend on the batches: in evaluation they are the same at any
    batch size, and in training without dropout for any split into micro-batches.

    ``embedding_sharing`` determines how the two losses train the embeddings. With "tied", the embeddings learn from
    both losses. With "disentangled" (He et al. 2021, section 3), the generator's token embedding learns from the
    generator's loss. The encoder's token embedding is that table plus a difference, which learns only from the
    encoder's loss. A checkpoint contains the encoder's table as an ordinary table, the generator's table and the
    difference. This differs from the published code, which also disentangles positions: here, unless the embeddings are
    tied, the generator's position and segment embeddings and their norm start as copies and are then trained
    separately.

    ``generator_start=encoder`` is for an encoder that has already been trained, ideally as a masked language model, in
    an earlier phase or in ``init``. The generator then starts with copies of the encoder's layers and of its "mlm"
    head, and both are trained further. (In Clark et al. 2020, section 3.3, "two-stage", the generator is no longer
    trained.) The generator must have the same size as the encoder.

    A subclass defines ``name`` and its own loss. Losses of this class: "generator_mlm", the generator's cross entropy
    summed over masked tokens; "generator_accuracy"; and "<name>_replaced", the share of masked tokens whose sample
    differs from the original. Metrics for the detection of replaced tokens: "<name>_precision", "<name>_recall" and
    "<name>_base_rate", the share of replaced tokens among all real tokens, which is the precision of guessing.

    Args:
        weight: weight of the encoder's loss.
        generator_weight: weight of the generator's loss.
        generator_size: width of the generator divided by that of the encoder; published: 0.25 for small and large,
            0.333 for base.
        embedding_sharing: embedding sharing with the generator: tied, disentangled (He et al. 2021, DeBERTaV3, section
            3) or none.
        generator_start: random; encoder: copy the trained layers and the head "mlm" of the encoder, which needs
            generator_size=1.0.
        temperature: temperature at which the generator's tokens are sampled.
    """

    directions = ("bidirectional",)
    output_positions = "masked"
    head_reads = "all"  # this is the discriminator's head; the generator's head reads masked positions
    masked_loss = "generator_mlm"
    vocabulary_tensors: tuple[str, ...] = ("generator_head.bias",)

    def __init__(
        self,
        *,
        weight: NonNegative = 50.0,
        generator_weight: NonNegative = 1.0,
        generator_size: PositiveProb = 0.25,
        embedding_sharing: EmbeddingSharing = "tied",
        generator_start: GeneratorStart = "random",
        temperature: Positive = 1.0,
        activation: Activation = "gelu",
        norm_eps: Positive = 1e-12,
    ) -> None:
        super().__init__(weight=weight)
        key = f"objective.losses.{self.name}"
        if generator_start == "encoder" and generator_size != 1:
            raise ConfigError(
                f"{key}.generator_start=encoder copies the encoder's layers into the generator, but the generator has "
                f"{generator_size:g} of its width: use {key}.generator_size=1.0, or generator_start=random"
            )
        self.generator_weight, self.generator_size, self.temperature = generator_weight, generator_size, temperature
        self.embedding_sharing, self.generator_start = embedding_sharing, generator_start
        if generator_start == "encoder":
            self.borrowed_heads = {"generator_head": MaskedLanguageModel.name}
        self.activation = activation_module(activation)
        self.generator_head = MaskedLanguageModel(activation=activation, norm_eps=norm_eps)

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        generator = encoder.generator(
            size=self.generator_size,
            own_embeddings=self.embedding_sharing != "tied",
            copied_layers=self.generator_start == "encoder",
        )
        if generator is None:
            raise ConfigError(
                f"objective={self.name} needs a model that can create a smaller generator, but "
                f"{type(encoder).__name__} cannot: use model=electra_laptop or modern_laptop, or objective=mlm with "
                f"this model"
            )
        _ = self.tied_embedding
        self.generator = generator
        self.generator_head.bind(generator)
        if self.embedding_sharing == "disentangled":
            self.difference = disentangle(self.tied_embedding, self.generator_head.tied_embedding)
            self.vocabulary_tensors = (*self.vocabulary_tensors, "difference.weight")
            self.joint_parameters = ("generator.embeddings.token.weight", "difference.weight")

    @override
    def inner(self) -> dict[str, Objective]:
        return {"generator": self.generator_head}

    @override
    def fold_weights(self) -> None:
        merge(self.encoder)

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.original.num_tokens

    @override
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        return {
            "generator_mlm": batch.num_targets,
            "generator_accuracy": batch.num_targets,
            **super().counts(batch),
            f"{self.name}_replaced": batch.num_targets,
            f"{self.name}_base_rate": self.count(batch),
        }

    def replace(self, batch: PretrainingBatch) -> Replacements:
        """Predict the masked tokens with the generator, and replace them with its samples."""
        output_VE, bias_V = self.generator_head.tied_embedding.weight, self.generator_head.bias
        hidden_ME = self.generator_head.transform(
            batch.read("masked", self.generator(batch.inputs, output_positions=batch.output_positions))
        )
        total, hits_M, samples_M = cross_entropy_sum_and_samples(
            hidden_ME,
            output_VE,
            bias_V,
            batch.targets_M,
            batch.weights_M,
            uniform_M=batch.uniform_M,
            temperature=self.temperature,
        )

        original_T, positions = batch.original.tokens_T, batch.positions_M[: batch.num_targets]
        tokens_T = original_T.index_copy(0, positions, samples_M[: batch.num_targets])
        losses = {
            "generator_mlm": Loss(total, batch.num_targets, self.generator_weight),
            "generator_accuracy": Loss((hits_M * batch.weights_M).sum(), batch.num_targets, 0.0),
        }
        packed = batch.original.with_tokens(tokens_T)
        return Replacements(packed, tokens_T != original_T, batch.num_targets, losses)

    def detection(self, predicted_T: Tensor, replacements: Replacements) -> dict[str, Loss]:
        """Compute the metrics for the detection of replaced tokens."""
        real = replacements.packed.num_tokens
        predicted_T, is_replaced_T = predicted_T[:real], replacements.is_replaced_T[:real]  # filler comes last
        hits, predicted, replaced = (
            each.sum().float() for each in (predicted_T & is_replaced_T, predicted_T, is_replaced_T)
        )
        return {
            f"{self.name}_precision": Loss(hits, predicted, 0.0),
            f"{self.name}_recall": Loss(hits, replaced, 0.0),
            f"{self.name}_replaced": Loss(replaced, replacements.num_hidden, 0.0),
            f"{self.name}_base_rate": Loss(replaced, real, 0.0),
        }


class ReplacedTokenDetection(GeneratorObjective):
    """Predicts for every token whether a generator has replaced it (Clark et al. 2020, section 3).

    Losses: "rtd", the binary cross entropy in nats summed over all real tokens; "rtd_accuracy"; "rtd_found", which is
    recall times "rtd_replaced"; and those of ``GeneratorObjective``. A token counts as detected if the head's
    probability is above one half.
    """

    name = "rtd"
    title = "replaced tokens"
    selection_loss = "rtd"  # the total includes the generator's loss, but no task uses the generator

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


class AllTokensMaskedLanguageModel(GeneratorObjective):
    """Predicts the original token at every position after a generator has replaced some (Clark et al. 2020, 3.4).

    A gate D, the sigmoid of one number per token, mixes a copy of the input token with a softmax over the vocabulary:
    ``p(v) = D [v is the input token] + (1 - D) softmax(v)``. The softmax has the head of ``MaskedLanguageModel``.

    Losses: "all_tokens_mlm", ``-log p(original)`` in nats summed over all real tokens; "all_tokens_mlm_accuracy" (not
    with sampled classes), where the prediction is the input token if the gate is at least one half, otherwise the most
    probable token of the softmax; and those of ``GeneratorObjective``. A token counts as detected if the gate is below
    one half.

    Args:
        num_sampled: number of classes of the encoder's sampled softmax in training; see ``TokenPrediction``. The
            generator always uses the full softmax.
    """

    name = "all_tokens_mlm"
    title = "original tokens"
    selection_loss = "all_tokens_mlm"  # as in ``ReplacedTokenDetection``
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
    """Compute ``-log(D [the input token is the original] + (1 - D) softmax(original))``, (T,), in log space."""
    written_T = logsigmoid(-gate_T) - cross_entropies_T
    return -torch.where(is_original_T, torch.logaddexp(logsigmoid(gate_T), written_T), written_T)

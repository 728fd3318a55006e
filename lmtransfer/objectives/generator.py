"""The base class of objectives with a generator (ELECTRA), a small masked language model that replaces tokens.

Shape legend: T tokens of a packed batch, M prediction positions, V vocabulary, E width of the token embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from lmtransfer.config.types import NonNegative, Positive, PositiveProb
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Activation, activation_module
from lmtransfer.models.layers.cross_entropy import cross_entropy_sum_and_samples
from lmtransfer.models.layers.disentangled import disentangle, merge
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.training.learner import Loss

#: How generator and encoder share embeddings (He et al. 2021, section 3). "tied": they use the same embeddings.
#: "disentangled": the encoder's token embedding is the generator's, without gradient, plus a difference that starts at
#: 0. "none": they have separate embeddings.
EmbeddingSharing = Literal["tied", "disentangled", "none"]
#: The generator's initial layers: random, or copies of the encoder's layers at the start of the objective.
GeneratorStart = Literal["random", "encoder"]


@dataclass(frozen=True, slots=True)
class Replacements:
    """A batch with the generator's tokens.

    Attributes:
        packed: the original text with the generator's samples at the masked positions; no [MASK].
    """

    packed: PackedBatch
    is_replaced_T: Tensor
    num_hidden: int
    losses: dict[str, Loss]


class GeneratorObjective(Objective):
    """Trains a generator, and the encoder on text with the generator's tokens (Clark et al. 2020, section 3.1).

    The generator, a smaller encoder, is trained on the masked tokens as a masked language model. Its samples replace
    the masked tokens in the original text, without [MASK], and the encoder, here the discriminator, reads this text. A
    sample that equals the original token is not a replacement. No gradient flows through the samples, so the
    generator's layers learn only from the generator's loss. The random numbers of a sample belong to its row
    (``PretrainingBatch.uniform_M``), so losses do not depend on the batches: in evaluation they are the same at any
    batch size, and in training, without dropout, for any split into micro-batches.

    ``embedding_sharing`` sets how the two losses train the embeddings. With "tied", the embeddings learn from both
    losses. With "disentangled" (He et al. 2021, section 3), the generator's token embedding learns from the generator's
    loss. The encoder's token embedding is that table plus a difference, which learns only from the encoder's loss. A
    checkpoint holds the encoder's table as an ordinary table, and in addition the generator's table and the difference.
    Where we differ from the published code, which disentangles positions too: unless tied, the generator's position and
    segment embeddings and their norm begin as copies and are then separate.

    ``generator_start=encoder`` is for an encoder that is already trained, ideally as a masked language model, in an
    earlier phase or in ``init``. The generator then begins with copies of its layers and of the head "mlm", and both
    continue training from there (Clark et al. 2020, section 3.3, "two-stage"; there the generator is no longer
    trained). The generator must have the same size as the encoder.

    A subclass defines ``name`` and its own loss. Losses of this class: "generator_mlm", the generator's cross entropy
    summed over masked tokens, and "generator_accuracy"; "<name>_replaced", the share of masked tokens whose sample
    differs from the original. Metrics of detecting these replaced tokens: "<name>_precision", "<name>_recall" and
    "<name>_base_rate". The base rate is the share of replaced tokens among all real tokens, which is the precision of
    guessing.
    """

    directions = ("bidirectional",)
    output_positions = "masked"
    head_reads = "all"  # the discriminator's head; the generator's head reads masked positions
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
                f"{key}.generator_start=encoder copies the encoder's layers into the generator, which has "
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
                f"objective={self.name} needs a model that can create its own small generator, but "
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
        """Compute the metrics of detecting replaced tokens."""
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

"""What objectives with a generator share (ELECTRA): tokens that a small masked language model puts into the text.

Shape legend: T tokens of a packed batch, M prediction positions, V vocabulary, E width of the token embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.layers.disentangled import disentangle, merge
from lmtransfer.layers.feed_forward import Activation
from lmtransfer.layers.softmax_samples import sample_softmax
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.training.learner import Loss

#: How the generator's embeddings and the encoder's belong together (He et al. 2021, section 3): they are the same
#: ("tied"); the encoder's table of tokens is the generator's without its gradient, plus a difference that starts at 0
#: ("disentangled"); or nothing ties them ("none").
EmbeddingSharing = Literal["tied", "disentangled", "none"]
#: What the generator's layers begin as: random, or the encoder's as they are when the objective begins.
GeneratorStart = Literal["random", "encoder"]


@dataclass(frozen=True, slots=True)
class Replacements:
    """A batch with the generator's tokens in it.

    Attributes:
        packed: the text as it was, but for the samples at hidden tokens; no [MASK].
        replaced_T: where a token is not the original one, bool, (T,).
        num_hidden: how many tokens the generator predicted.
        losses: the generator's.
    """

    packed: PackedBatch
    replaced_T: Tensor
    num_hidden: int
    losses: dict[str, Loss]


class GeneratorObjective(Objective):
    """Has a generator, and reads what it puts into the text (Clark et al. 2020, section 3.1).

    The generator, an encoder of fewer units, is trained on the hidden tokens as a masked language model. What it
    samples there is put into the text as it was, without [MASK], and the encoder, here the discriminator, reads that; a
    sample that equals the original is no replacement. No gradient goes through the samples, so the generator's own
    layers learn from its own loss only. The randomness of a sample belongs to its row
    (``PretrainingBatch.uniform_M``), so losses do not depend on how rows are batched: the same in evaluation at any
    batch size, and in training, at dropout 0, for any cut into micro-batches.

    ``embedding_sharing`` says what the two losses do to the embeddings. Tied, the embeddings learn from both.
    Disentangled (He et al. 2021, section 3), the generator's table learns from its own loss, and the encoder's
    follows it, apart by a difference that learns from the encoder's loss only. A checkpoint holds the encoder's table
    as it is, an ordinary one, and generator's and difference beside it. Where we differ from the published code, which
    disentangles positions too: unless tied, positions, segments and norm begin as copies and are each side's own.

    ``generator_start=encoder`` is for an encoder that has learnt already, best as a masked language model, in a phase
    before or in ``init``: its layers and the head "mlm" go into the generator, so that both go on from them (Clark et
    al. 2020, section 3.3, "two-stage"; there the generator learns no more). It needs a generator of the encoder's size.

    A subclass gives its ``name`` and its own loss. Losses here: "generator_mlm", the generator's cross entropy summed
    over hidden tokens, and "generator_accuracy" beside it; "<name>_replaced", the share of the hidden tokens whose
    sample differs from the original; and of finding them "<name>_precision", "<name>_recall" and "<name>_base_rate",
    their share of all real tokens, which is the precision of guessing.

    Args:
        weight: of the discriminator's loss in the total.
        generator_weight: of the generator's.
        generator_size: width of the generator as a share of the encoder's.
        embedding_sharing: see above.
        generator_start: "random", or "encoder": see above.
        temperature: of the generator's samples.
        activation: of the dense layer in either head.
        norm_eps: LayerNorm's epsilon in the generator's head.

    Raises:
        ConfigError: a temperature that is not above 0, a size that is no share, an unknown way of sharing or of
            starting, or a generator that is to start from an encoder of another size.
    """

    directions = ("bidirectional",)
    output_positions = "masked"
    head_reads = "all"  # the discriminator's; the generator's head reads what is hidden
    masked_loss = "generator_mlm"
    vocabulary_sized: tuple[str, ...] = ("generator_head.bias",)

    def __init__(
        self,
        *,
        weight: float,
        generator_weight: float,
        generator_size: float,
        embedding_sharing: EmbeddingSharing,
        generator_start: GeneratorStart,
        temperature: float,
        activation: Activation,
        norm_eps: float,
    ) -> None:
        super().__init__(weight=weight)
        key = f"objective.losses.{self.name}"
        if temperature <= 0:
            raise ConfigError(f"{key}.temperature={temperature} is not allowed: use a number above 0 (1 is published)")
        if not 0 < generator_size <= 1:
            raise ConfigError(
                f"{key}.generator_size={generator_size} is not a share of the encoder's width: use a number above 0 "
                f"and at most 1 (published: 0.25 for small and large, 0.333 for base)"
            )
        chosen = {"embedding_sharing": embedding_sharing, "generator_start": generator_start}
        for (name, value), ways in zip(chosen.items(), (EmbeddingSharing, GeneratorStart), strict=True):
            if value not in get_args(ways):
                raise ConfigError(f"{key}.{name}={value} is not allowed: use one of {', '.join(get_args(ways))}")
        if generator_start == "encoder" and generator_size != 1:
            raise ConfigError(
                f"{key}.generator_start=encoder copies the encoder's layers into the generator, which has "
                f"{generator_size:g} of its width: use {key}.generator_size=1.0, or generator_start=random"
            )
        self.generator_weight, self.generator_size, self.temperature = generator_weight, generator_size, temperature
        self.embedding_sharing, self.generator_start = embedding_sharing, generator_start
        if generator_start == "encoder":
            self.borrowed_heads = {"generator_head": MaskedLanguageModel.name}
        self.generator_head = MaskedLanguageModel(activation=activation, norm_eps=norm_eps)

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``.

        Raises:
            ConfigError: the encoder cannot make a generator, or one of its own shape, or reads characters.
        """
        super().bind(encoder)
        generator = encoder.generator(
            size=self.generator_size,
            own_embeddings=self.embedding_sharing != "tied",
            copied_layers=self.generator_start == "encoder",
        )
        if generator is None:
            raise ConfigError(
                f"objective={self.name} needs a model that can make its own small generator, and "
                f"{type(encoder).__name__} cannot: use model=electra_laptop or modern_laptop, or objective=mlm with "
                f"this model"
            )
        _ = self.tied_embedding
        self.generator = generator
        self.generator_head.bind(generator)
        if self.embedding_sharing == "disentangled":
            self.difference = disentangle(self.tied_embedding, self.generator_head.tied_embedding)
            self.vocabulary_sized = (*self.vocabulary_sized, "difference.weight")
            self.inseparable = ("generator.embeddings.token.weight", "difference.weight")

    def inner(self) -> dict[str, Objective]:
        """See ``Objective``: the generator's."""
        return {"generator": self.generator_head}

    def settle(self) -> None:
        """See ``Objective``: an encoder's table that is a sum is added up."""
        merge(self.encoder)

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; hidden tokens for the generator, real tokens for the discriminator."""
        real = batch.original.num_tokens
        return {
            "generator_mlm": batch.num_targets,
            "generator_accuracy": batch.num_targets,
            self.name: real,
            f"{self.name}_accuracy": real,
            f"{self.name}_replaced": batch.num_targets,
            f"{self.name}_base_rate": real,
        }

    def replace(self, batch: PretrainingBatch) -> Replacements:
        """Let the generator predict the hidden tokens, and put its samples there."""
        output_VE, bias_V = self.generator_head.tied_embedding.weight, self.generator_head.bias
        hidden_ME = self.generator_head.transform(
            batch.read("masked", self.generator(batch.inputs, output_positions=batch.output_positions))
        )
        total, hits_M = cross_entropy_sum(hidden_ME, output_VE, bias_V, batch.targets_M, batch.weights_M)
        samples_M = sample_softmax(hidden_ME, output_VE, bias_V, batch.uniform_M, temperature=self.temperature)

        original_T, positions = batch.original.tokens_T, batch.positions_M[: batch.num_targets]
        tokens_T = original_T.index_copy(0, positions, samples_M[: batch.num_targets])
        losses = {
            "generator_mlm": Loss(total, batch.num_targets, self.generator_weight),
            "generator_accuracy": Loss((hits_M * batch.weights_M).sum(), batch.num_targets, 0.0),
        }
        packed = batch.original.with_tokens(tokens_T)
        return Replacements(packed, tokens_T != original_T, batch.num_targets, losses)

    def detection(self, told_T: Tensor, replacements: Replacements) -> dict[str, Loss]:
        """The metrics of finding replaced tokens.

        Args:
            told_T: which tokens are said to be replaced, bool, (T,).
            replacements: the batch.
        """
        real = replacements.packed.num_tokens
        told_T, replaced_T = told_T[:real], replacements.replaced_T[:real]  # filler comes last
        found, told, replaced = (each.sum().float() for each in (told_T & replaced_T, told_T, replaced_T))
        return {
            f"{self.name}_precision": Loss(found, told, 0.0),
            f"{self.name}_recall": Loss(found, replaced, 0.0),
            f"{self.name}_replaced": Loss(replaced, replacements.num_hidden, 0.0),
            f"{self.name}_base_rate": Loss(replaced, real, 0.0),
        }

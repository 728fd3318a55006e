"""Replaced-token detection (ELECTRA).

Shape legend: T tokens of a packed batch, M prediction positions, V vocabulary, D width, E width of the token embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.errors import ConfigError
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.layers.feed_forward import Activation, activation_module
from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.layers.softmax_samples import sample_softmax
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.training.learner import Loss


class ReplacedTokenDetection(Objective):
    """Tells of every token whether a small generator put it there (Clark et al. 2020, section 3).

    The generator, a smaller twin of the encoder over the same embeddings, is trained on the hidden tokens as a masked
    language model. What it samples there is put into the text as it was, without [MASK], and the encoder, here the
    discriminator, reads that; a sample that equals the original is no replacement. No gradient goes through the
    samples: the shared embeddings learn from both losses, the generator's own layers from its own only. The randomness
    of a sample belongs to its row (``PretrainingBatch.uniform_M``), so losses do not depend on how rows are batched:
    the same in evaluation at any batch size, and in training, at dropout 0, for any cut into micro-batches.

    Losses: "rtd", the binary cross entropy in nats summed over all real tokens, and "generator_mlm", the generator's
    cross entropy summed over hidden tokens. Beside them "rtd_accuracy" over all tokens, "generator_accuracy",
    "rtd_replaced", the share of the hidden tokens whose sample differs from the original, and "rtd_found", the share
    of them that differ and are told: the recall is their ratio.

    Args:
        weight: of the discriminator's loss in the total.
        generator_weight: of the generator's.
        generator_size: width of the generator as a share of the encoder's.
        temperature: of the generator's samples.
        activation: of the dense layer in either head.
        norm_eps: LayerNorm's epsilon in the generator's head.

    Raises:
        ConfigError: a temperature that is not above 0.
    """

    name = "rtd"
    title = "replaced tokens"
    directions = ("bidirectional",)
    reads = "masked"
    head_reads = "all"  # the discriminator's; the generator's head reads what is hidden
    chosen_by = "rtd"  # the generator's loss weighs in the total, and no task sees the generator
    masked_loss = "generator_mlm"
    vocabulary_sized = ("generator_head.bias",)

    def __init__(
        self,
        *,
        weight: float = 50.0,
        generator_weight: float = 1.0,
        generator_size: float = 0.25,
        temperature: float = 1.0,
        activation: Activation = "gelu",
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__(weight=weight)
        if temperature <= 0:
            raise ConfigError(
                f"objective.losses.rtd.temperature={temperature} is not allowed: use a number above 0 (1 is published)"
            )
        self.generator_weight, self.generator_size, self.temperature = generator_weight, generator_size, temperature
        self.generator_head = MaskedLanguageModel(activation=activation, norm_eps=norm_eps)
        self.activation = activation_module(activation)

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``.

        Raises:
            ConfigError: the encoder cannot make a smaller twin of itself, or reads characters.
        """
        super().bind(encoder)
        generator = encoder.generator(size=self.generator_size)
        if generator is None:
            raise ConfigError(
                f"objective=rtd needs a model that can make its own small generator, and {type(encoder).__name__} "
                f"cannot: use model=electra_laptop or modern_laptop, or objective=mlm with this model"
            )
        _ = self.tied_embedding
        self.generator = generator
        self.generator_head.bind(generator)
        self.dense = nn.Linear(encoder.dim, encoder.dim)
        self.output = nn.Linear(encoder.dim, 1)
        self.dense.apply(truncated_normal_)
        self.output.apply(truncated_normal_)

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """See ``Objective``; of each token being a replacement: (T, D) -> (T,)."""
        return self.output(self.activation(self.dense(hidden_TD))).squeeze(-1)

    def inner(self) -> dict[str, Objective]:
        """See ``Objective``: the generator's."""
        return {"generator": self.generator_head}

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; hidden tokens for the generator, real tokens for the discriminator."""
        return {
            "generator_mlm": batch.num_targets,
            "generator_accuracy": batch.num_targets,
            "rtd": batch.original.num_tokens,
            "rtd_accuracy": batch.original.num_tokens,
            "rtd_replaced": batch.num_targets,
            "rtd_found": batch.num_targets,
        }

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        output_VE, bias_V = self.tied_embedding.weight, self.generator_head.bias
        hidden_ME = self.generator_head.transform(batch.read("masked", self.generator(batch.inputs, reads=batch.reads)))
        generator_sum, hits_M = cross_entropy_sum(hidden_ME, output_VE, bias_V, batch.targets_M, batch.weights_M)
        samples_M = sample_softmax(hidden_ME, output_VE, bias_V, batch.uniform_M, temperature=self.temperature)

        original_T, positions = batch.original.tokens_T, batch.positions_M[: batch.num_targets]
        tokens_T = original_T.index_copy(0, positions, samples_M[: batch.num_targets])
        replaced_T = tokens_T != original_T
        logits_T = self.token_logits(encode(batch.original.with_tokens(tokens_T), None).last)
        logits_T = logits_T.to(torch.promote_types(logits_T.dtype, torch.float32))
        real = batch.original.num_tokens  # filler comes last
        cross_entropies_T = nn.functional.binary_cross_entropy_with_logits(
            logits_T, replaced_T.to(logits_T.dtype), reduction="none"
        )
        told_T = logits_T.detach() > 0
        sums = {
            "generator_mlm": generator_sum,
            "generator_accuracy": (hits_M * batch.weights_M).sum(),
            "rtd": cross_entropies_T[:real].sum(),
            "rtd_accuracy": (told_T == replaced_T)[:real].sum().float(),
            "rtd_replaced": replaced_T.sum().float(),
            "rtd_found": (told_T & replaced_T).sum().float(),
        }
        weights = {"generator_mlm": self.generator_weight, "rtd": self.weight}
        counts = self.counts(batch)
        return {kind: Loss(total, counts[kind], weights.get(kind, 0.0)) for kind, total in sums.items()}

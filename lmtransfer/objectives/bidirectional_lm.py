"""Language modeling in both directions (ELMo).

Shape legend: T tokens of a packed batch, M positions, V vocabulary, H width of one direction.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.language_model import neighbors, num_neighbors
from lmtransfer.objectives.softmax import Softmax
from lmtransfer.objectives.token_prediction import check_num_sampled, vocabulary_loss
from lmtransfer.training.learner import Loss


class OutputEmbedding(nn.Module):
    """The softmax layer that both directions share: the token embedding if its width fits, else a separate matrix.

    Args:
        encoder: the encoder whose states it reads.
        dim: width H of the states that it reads.
    """

    def __init__(self, encoder: Encoder, dim: int) -> None:
        super().__init__()
        tied = encoder.token_embedding
        self.own = None
        if tied is None or tied.embedding_dim != dim:
            self.own = nn.Embedding(encoder.vocab_size, dim)
            nn.init.normal_(self.own.weight, std=dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self._encoder = (encoder,)  # a tuple, so that PyTorch does not register the encoder here too

    @property
    def weight(self) -> Tensor:
        """The output matrix, (V, H)."""
        module = self._encoder[0].token_embedding if self.own is None else self.own
        assert module is not None
        return module.weight


class BidirectionalLanguageModel(Objective):
    """Predicts each token from the tokens before it and, separately, from those after it (Peters et al. 2018, 3.1).

    For encoders with concatenated directions. The first half of the last layer's features predicts the next token, and
    the second half predicts the previous token; both use one softmax layer. The last token of a row has no next token,
    and the first token has no previous token, unless rows are contiguous and the token beyond the edge is known.
    Losses: "bilm", the mean of the cross entropies of both directions in nats; "bilm_forward" and "bilm_backward", the
    cross entropy of each direction; "bilm_accuracy", the accuracy of both (not with sampled classes).

    Args:
        weight: weight of the loss in the total.
        num_sampled: number of classes of a sampled softmax in training (8,192 in ELMo); see ``TokenPrediction``. The
            sampled loss is ELMo's, which is lower than that of the full softmax.

    Raises:
        ConfigError: ``num_sampled`` is less than 1.
    """

    name = "bilm"
    title = "next and previous token"
    directions = ("concatenated",)
    supports_contiguous_rows = True
    predicts = "unmasked"
    vocabulary_tensors: tuple[str, ...] = ("output.bias",)

    def __init__(self, *, weight: NonNegative = 1.0, num_sampled: int | None = None) -> None:
        super().__init__(weight=weight)
        self.num_sampled = check_num_sampled(self.name, num_sampled)

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.output = OutputEmbedding(encoder, encoder.dim // 2)
        if self.output.own is not None:
            self.vocabulary_tensors = ("output.bias", "output.own.weight")

    @override
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Count the tokens, minus one per row if the tokens beyond its edges are unknown."""
        forward, backward = num_neighbors(batch, "next_token"), num_neighbors(batch, "previous_token")
        assert forward == backward, "contiguous rows know both neighbors"
        counts = {"bilm": forward, "bilm_forward": forward, "bilm_backward": backward}
        return counts if self.active_num_sampled else {**counts, "bilm_accuracy": forward + backward}

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        counts = self.counts(batch)
        last_TD = encode(batch.original, None).last
        width = last_TD.shape[1] // 2
        halves = last_TD.split([width, width], dim=1)
        forward, forward_hits = self._direction(halves[0], *neighbors(batch, "next_token"))
        backward, backward_hits = self._direction(halves[1], *neighbors(batch, "previous_token"))
        losses = {
            "bilm": Loss((forward + backward) / 2, counts["bilm"], self.weight),
            "bilm_forward": Loss(forward.detach(), counts["bilm_forward"], 0.0),
            "bilm_backward": Loss(backward.detach(), counts["bilm_backward"], 0.0),
        }
        if forward_hits is not None and backward_hits is not None:
            losses["bilm_accuracy"] = Loss(forward_hits + backward_hits, counts["bilm_accuracy"], 0.0)
        return losses

    @override
    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """Return one prediction from the token before and one from the token after."""
        last_TD = self.encoder(packed).last
        width = last_TD.shape[1] // 2
        places_M = torch.from_numpy(positions_M).to(last_TD.device)
        forward_MH = last_TD.index_select(0, places_M - 1)[:, :width]
        backward_MH = last_TD.index_select(0, places_M + 1)[:, width:]
        return [Softmax(states, self.output.weight, self.output.bias) for states in (forward_MH, backward_MH)]

    @override
    def output_weights(self) -> int:
        """Return the number of entries for both directions together."""
        return 2 * self.entries_read(self.output.weight)

    def _direction(self, hidden_TH: Tensor, targets_T: Tensor, weights_T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the sum of the losses in one direction and the number of correct predictions."""
        weight_VH, bias_V = self.output.weight, self.output.bias
        hidden_TH = hidden_TH.contiguous()
        num_sampled = self.active_num_sampled
        return vocabulary_loss(
            hidden_TH, weight_VH, bias_V, targets_T, weights_T, num_sampled=num_sampled, corrects_target=True
        )

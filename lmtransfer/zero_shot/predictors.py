"""How the heads of pretraining predict the tokens of a sequence, each from what it may see.

Shape legend: T tokens of a packed batch, M positions, H width of a direction, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, Reads
from lmtransfer.objectives.backward_lm import BackwardLanguageModel
from lmtransfer.objectives.base import tied_embedding
from lmtransfer.objectives.bidirectional_lm import BidirectionalLanguageModel
from lmtransfer.objectives.causal_lm import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.permutation_lm import PermutationLanguageModel
from lmtransfer.zero_shot.softmax import Softmax


class Predictor(Protocol):
    """Predicts tokens of packed sequences.

    Attributes:
        name: of the objective whose head it is.
        hides: whether a token must become [MASK] before it is predicted; else it is seen by none of its predictions.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def hides(self) -> bool: ...  # noqa: D102

    def predict(self, packed: PackedBatch, positions_M: np.ndarray) -> list[Softmax]:
        """What the head says of the tokens at some positions.

        Args:
            packed: the sequences, on the encoder's device.
            positions_M: indices into T, int64, ascending; no sequence's first or last token.

        Returns:
            M distributions; two times M from two directions that know nothing of one another.
        """
        ...


@dataclass(frozen=True, slots=True)
class NeighbourPredictor:
    """A language model of one direction: the state before a token (or the one after it) predicts it.

    Attributes:
        encoder: the encoder.
        objective: ``LanguageModel`` or ``BackwardLanguageModel``.
    """

    encoder: Encoder
    objective: LanguageModel | BackwardLanguageModel
    hides = False

    @property
    def name(self) -> str:
        """Of the objective."""
        return self.objective.name

    def predict(self, packed: PackedBatch, positions_M: np.ndarray) -> list[Softmax]:
        """See ``Predictor``."""
        step = -1 if self.objective.neighbour == "next_token" else 1
        states_MD = self.encoder(packed, reads=_reads(packed, positions_M + step)).last
        return [Softmax(states_MD, tied_embedding(self.objective, self.encoder).weight)]


@dataclass(frozen=True, slots=True)
class TwoWayPredictor:
    """ELMo's two language models: one predicts a token from those before it, the other from those after it.

    Attributes:
        encoder: the encoder.
        objective: the objective.
    """

    encoder: Encoder
    objective: BidirectionalLanguageModel
    hides = False

    @property
    def name(self) -> str:
        """Of the objective."""
        return self.objective.name

    def predict(self, packed: PackedBatch, positions_M: np.ndarray) -> list[Softmax]:
        """See ``Predictor``."""
        last_TD = self.encoder(packed).last
        width = last_TD.shape[1] // 2
        places_M = torch.from_numpy(positions_M).to(last_TD.device)
        forward_MH = last_TD.index_select(0, places_M - 1)[:, :width]
        backward_MH = last_TD.index_select(0, places_M + 1)[:, width:]
        output = self.objective.output
        return [Softmax(states, output.weight, output.bias) for states in (forward_MH, backward_MH)]


@dataclass(frozen=True, slots=True)
class MaskedPredictor:
    """BERT's head at a [MASK].

    Attributes:
        encoder: the encoder.
        objective: the objective.
    """

    encoder: Encoder
    objective: MaskedLanguageModel
    hides = True

    @property
    def name(self) -> str:
        """Of the objective."""
        return self.objective.name

    def predict(self, packed: PackedBatch, positions_M: np.ndarray) -> list[Softmax]:
        """See ``Predictor``."""
        states_ME = self.objective.transform(self.encoder(packed, reads=_reads(packed, positions_M)).last)
        return [Softmax(states_ME, tied_embedding(self.objective, self.encoder).weight, self.objective.bias)]


@dataclass(frozen=True, slots=True)
class TwoStreamPredictor:
    """XLNet's query at a place whose token nothing sees: all [MASK]s come last in the order, side by side.

    Attributes:
        encoder: the encoder.
        objective: the objective.
        mask_id: what stands at hidden places.
    """

    encoder: Encoder
    objective: PermutationLanguageModel
    mask_id: int
    hides = True

    @property
    def name(self) -> str:
        """Of the objective."""
        return self.objective.name

    def predict(self, packed: PackedBatch, positions_M: np.ndarray) -> list[Softmax]:
        """See ``Predictor``."""
        order_T = (packed.tokens_T == self.mask_id).long()
        states_MD = self.encoder.two_stream(packed, order_T=order_T, reads=_reads(packed, positions_M)).last
        return [Softmax(states_MD, tied_embedding(self.objective, self.encoder).weight, self.objective.bias)]


def token_predictor(learner: PretrainingLearner, *, mask_id: int) -> Predictor:
    """The predictor of the first objective that gives tokens of the text a probability.

    Args:
        learner: the encoder with its objectives.
        mask_id: the tokenizer's [MASK].

    Raises:
        ConfigError: no objective does: pairs, replaced tokens and word vectors tell nothing of it.
    """
    found = _predictors(learner, mask_id)
    if not found:
        raise ConfigError(
            f"run: its objective ({', '.join(learner.objectives)}) gives no probability of a token: give a run of "
            f"objective=lm, backward_lm, bilm, mlm or plm, or of one that mlm is a part of (such as mlm_nsp)"
        )
    return found[0]


def masked_predictor(learner: PretrainingLearner, *, mask_id: int) -> Predictor:
    """The predictor of the first objective that predicts a hidden token from both sides at once.

    Args:
        learner: the encoder with its objectives.
        mask_id: the tokenizer's [MASK].

    Raises:
        ConfigError: no objective does.
    """
    found = [predictor for predictor in _predictors(learner, mask_id) if predictor.hides]
    if not found:
        raise ConfigError(
            f"run: its objective ({', '.join(learner.objectives)}) cannot fill a [MASK]: give a run of objective=mlm "
            f"or plm, or of one that mlm is a part of (such as mlm_nsp)"
        )
    return found[0]


def _predictors(learner: PretrainingLearner, mask_id: int) -> list[Predictor]:
    found = (_predictor(learner.encoder, objective, mask_id) for objective in learner.objectives.values())
    return [predictor for predictor in found if predictor is not None]


def _predictor(encoder: Encoder, objective: nn.Module, mask_id: int) -> Predictor | None:
    match objective:
        case LanguageModel() | BackwardLanguageModel():
            return NeighbourPredictor(encoder, objective)
        case BidirectionalLanguageModel():
            return TwoWayPredictor(encoder, objective)
        case MaskedLanguageModel():
            return MaskedPredictor(encoder, objective)
        case PermutationLanguageModel():
            return TwoStreamPredictor(encoder, objective, mask_id)
    return None


def _reads(packed: PackedBatch, positions_M: np.ndarray) -> Reads:
    edges = np.append(0, np.cumsum(packed.lengths))
    return Reads.of(positions_M, edges).to(packed.tokens_T.device)

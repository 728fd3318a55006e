"""The result of counting before the heads are built: token embeddings, and the frequency of each token."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch

from lmtransfer.config.build import build
from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import token_shares
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.pretraining.counted.embeddings import CountedEmbeddings
from lmtransfer.training import distributed


@dataclass(frozen=True, slots=True)
class Start:
    """The result of counting.

    Attributes:
        num_tokens: number of counted tokens; 0 if the run has a checkpoint, which contains the embeddings.
        seconds: seconds that counting took; a budget in seconds includes them.
        shares_V: share of each token in the text, for the biases of heads; shorter than V if the last tokens never
            occur. None: biases start at 0.
    """

    num_tokens: int
    seconds: float
    shares_V: np.ndarray | None

    def fill_biases(self, objective: Objective) -> None:
        """Set an objective's biases over the vocabulary to log frequencies with mean 0.

        Args:
            objective: the objective, bound to its encoder.
        """
        if self.shares_V is None:
            return
        shares_V = np.pad(self.shares_V, (0, max(0, objective.encoder.vocab_size - len(self.shares_V))))
        log_V = np.log(np.maximum(shares_V, shares_V[shares_V > 0].min() / 2))
        for name in objective.vocabulary_sized:
            parameter = objective.get_parameter(name)
            if parameter.shape == log_V.shape:
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(log_V - log_V.mean()))


def count_first(node: Any, encoder: Encoder, store: TokenStore | MixedStore, *, seed: int, fresh: bool) -> Start:
    """Count a text and initialise an encoder's token embeddings, on the main rank; the other ranks get its weights.

    Call it before anything copies or ties the embedding table.

    Args:
        node: ``embeddings`` of the config.
        encoder: an encoder with token embeddings.
        store: the training text.
        seed: seed of the run.
        fresh: whether the run has no checkpoint yet; otherwise nothing is counted.
    """
    counted, num_tokens, start_time = cast(CountedEmbeddings, build(node)), 0, perf_counter()
    if fresh and distributed.is_main():
        table = encoder.token_embedding
        assert table is not None  # checked before any text is read
        num_tokens = counted.fill(table, store, seed=seed)
    num_tokens, seconds = distributed.from_main((num_tokens, perf_counter() - start_time if fresh else 0.0))
    return Start(num_tokens, seconds, token_shares(store) if counted.output_bias else None)

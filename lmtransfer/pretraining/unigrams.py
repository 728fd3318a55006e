"""How often each token occurs: what a masked language model knows before it uses context."""

from __future__ import annotations

import numpy as np
from omegaconf import DictConfig

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import token_shares

#: The loss of predicting masked tokens, by the objective that has it (ELECTRA's is its generator's).
_MASKED_LOSSES = {"mlm": "mlm", "rtd": "generator_mlm"}


def masked_loss(cfg: DictConfig) -> str | None:
    """The name of the loss of predicting masked tokens, or None where none are."""
    return next((loss for objective, loss in _MASKED_LOSSES.items() if objective in cfg.objective.losses), None)


def unigram_entropy(store: TokenStore | MixedStore) -> float:
    """Entropy in nats of how often each token is drawn."""
    shares = token_shares(store)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def masked_entropy(cfg: DictConfig, store: TokenStore | MixedStore) -> float | None:
    """The unigram entropy where tokens are masked and predicted, or None where they are not."""
    return None if masked_loss(cfg) is None else unigram_entropy(store)

"""Checks a pretraining config before any text is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np

from lmtransfer.config.phases import phases_of
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.base import Encoder, shapes_only
from lmtransfer.objectives.compatibility import check_order
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.mixture import CONTIGUOUS_MIXTURE
from lmtransfer.pretraining.build import parts_of_phases, parts_over
from lmtransfer.pretraining.continued import continue_from
from lmtransfer.pretraining.save_points import save_points, word_points
from lmtransfer.runs.saved_run import new_encoder
from lmtransfer.runs.training_setup import build_optimizer
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.averaging import weight_average

P = TypeVar("P", bound=PretrainSettings)

_LIKELY_SIZE = 8192


def check_pretraining(settings: P) -> P:
    """Check the settings of a pretraining before any text is read, and return what they come to.

    With ``init``, the model and the arguments of the heads are those of the continued run. Counted embeddings that a
    recipe sets are left out if the model cannot use them.
    """
    train, phases = settings.train, phases_of(settings)
    weight_average(ema_decay=train.ema_decay, average_last=train.average_last)
    save_points(train)
    word_points(train)
    without = [phase.objective_key for phase in phases if not phase.objective.losses]
    if without:
        advice = "there are no losses; choose an objective (lmtransfer list objectives)"
        raise ConfigError([f"{key}.losses: {advice}" for key in without])
    if settings.hardware.shard and len(phases) > 1:
        raise ConfigError("hardware.shard=true: a run with phases cannot be sharded; set it to false, or phases=null")
    if settings.corpus.get("parts") and any(phase.objective.rows.get("contiguous") for phase in phases):
        raise ConfigError(CONTIGUOUS_MIXTURE)
    if settings.init:
        settings = continue_from(open_saved(settings.init, key="init"), settings)
    else:
        _check_characters(settings)
    return _check_parts(settings)


def _check_characters(settings: PretrainSettings) -> None:
    model, tokenizer = settings.model.cls, settings.tokenizer.trainer.cls
    if model.reads_characters and not getattr(tokenizer, "provides_characters", False):
        raise ConfigError(
            f"tokenizer: {tokenizer.__name__} splits words into pieces, but {model.__name__} reads whole words as "
            "characters: use tokenizer=words, or keep this tokenizer with model=elmo_subword_laptop"
        )


def _check_parts(settings: P) -> P:
    """Build all parts on the meta device, which needs no memory, to check that they are valid and compatible."""
    tokenizer = cast(Tokenizer, _UntrainedTokenizer(settings.tokenizer.trainer.get("vocab_size")))
    with shapes_only():
        last = parts_over(settings.objective, new_encoder(settings.model, tokenizer, seed=0), tokenizer, {})
        settings = _with_possible_embeddings(settings, last.encoder)
        phases = phases_of(settings)
        for phase, parts in zip(phases, parts_of_phases(phases, last, tokenizer), strict=True):
            learner = PretrainingLearner(parts.encoder, list(parts.objectives))
            build_optimizer(phase.optimizer, learner)
            check_order(objectives=parts.objectives, rows=parts.rows)
            if not any(objective.weight for objective in parts.objectives):
                key = f"{phase.objective_key}.losses"
                raise ConfigError(f"{key}: every loss has weight=0, so the model learns nothing; raise a weight")
    settings.schedule.build()
    return settings


def _with_possible_embeddings(settings: P, encoder: Encoder) -> P:
    """Leave out counted embeddings that a recipe sets but the model cannot use."""
    if settings.embeddings is None:
        return settings
    problem = ""
    if settings.init:
        problem = "with init=..., the token embeddings come from the run; leave embeddings=... out"
    elif encoder.token_embedding is None and not encoder.reads_characters:
        problem = f"{type(encoder).__name__} has no table of token embeddings: use another model, or embeddings=null"
    if problem and any(key.partition(".")[0] == "embeddings" for key in settings.given):
        raise ConfigError(f"embeddings: {problem}")
    return settings.model_copy(update={"embeddings": None}) if problem else settings


class _UntrainedTokenizer:
    """A placeholder for a tokenizer that is not trained yet, for checking that the parts can be built."""

    def __init__(self, size: object) -> None:
        self.vocab_size = self.num_pieces = max(8, size) if isinstance(size, int) else _LIKELY_SIZE
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = range(4)
        self.missing_roles: Sequence[str] = ()
        self.is_special = np.arange(self.vocab_size) < 4
        self.starts_word = np.ones(self.vocab_size, dtype=bool)

    def decode(self, ids: Sequence[int]) -> str:
        """Return a capitalized word, whatever the ids."""
        return "Word"

"""Checks a pretraining config before any text is read."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.config.component import build, resolve
from lmtransfer.config.phases import Phase, complete_phases, phases_of
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.base import Encoder, shapes_only
from lmtransfer.objectives.compatibility import check_order
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.mixture import CONTIGUOUS_MIXTURE
from lmtransfer.pretraining.build import ObjectiveNodes, parts_of_phases, parts_over
from lmtransfer.pretraining.continued import command_line_keys, continue_from
from lmtransfer.pretraining.save_points import save_points, word_points
from lmtransfer.runs.saved_run import new_encoder
from lmtransfer.runs.tracking import tracker_nodes
from lmtransfer.runs.training_setup import build_optimizer
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.averaging import weight_average

_LIKELY_SIZE = 8192


def check_pretraining(cfg: DictConfig, *, primary: str) -> None:
    """Check the whole config before any work starts.

    Args:
        cfg: the config, whose phases are completed in place. With ``init``, the model and the arguments of the heads
            are replaced by those of the continued run.
    """
    complete_phases(cfg)
    phases = phases_of(cfg)
    nodes: dict[str, Set[str]] = {
        "corpus": {"data_root", "cache_dir"},
        "tokenizer": set(),
        "model": {"vocab_size"},
        **{f"{phase.objective}.{part}": {"tokenizer"} for phase in phases for part in _parts_of(cfg, phase)},
        **{phase.optimizer: {"learner", "params"} for phase in phases},
        "schedule": set(),
        **tracker_nodes(cfg),
    }
    if cfg.get("screening") is not None:
        nodes["screening"] = {"overlap_with", "cache_dir"}
    if cfg.get("embeddings") is not None:
        nodes["embeddings"] = set()
    check(cfg, primary=primary, nodes=nodes)
    train = TrainSettings.from_config(cfg.train)
    weight_average(ema_decay=train.ema_decay, average_last=train.average_last)
    save_points(train)
    word_points(train)
    nulls = [key for key in nodes if OmegaConf.select(cfg, key) is None]
    if nulls:
        raise ConfigError([f"{key}=null is not allowed: leave it out, or choose a value" for key in nulls])
    without = [phase.objective for phase in phases if not OmegaConf.select(cfg, f"{phase.objective}.losses")]
    if without:
        advice = "there are no losses; choose an objective (lmtransfer list objectives)"
        raise ConfigError([f"{key}.losses: {advice}" for key in without])
    if cfg.hardware.shard and len(phases) > 1:
        raise ConfigError("hardware.shard=true: a run with phases cannot be sharded; set it to false, or phases=null")
    contiguous = any(OmegaConf.select(cfg, f"{phase.objective}.rows.contiguous") for phase in phases)
    if cfg.corpus.get("parts") and contiguous:
        raise ConfigError(CONTIGUOUS_MIXTURE)
    if cfg.get("init"):
        continue_from(open_saved(cfg.init, key="init"), cfg)
    else:
        _check_characters(cfg)
    _check_parts(cfg)


def _parts_of(cfg: DictConfig, phase: Phase) -> list[str]:
    """Return the keys of the components in the objective of a phase, relative to the key of the objective."""
    losses = OmegaConf.select(cfg, f"{phase.objective}.losses") or {}
    return ["rows", "corruption", *(f"losses.{name}" for name in losses)]


def _check_characters(cfg: DictConfig) -> None:
    model, tokenizer = (resolve(cfg[key]._target_, key=key) for key in ("model", "tokenizer"))
    if issubclass(model, Encoder) and model.reads_characters and not getattr(tokenizer, "provides_characters", False):
        raise ConfigError(
            f"tokenizer: {tokenizer.__name__} splits words into pieces, but {model.__name__} reads whole words as "
            "characters: use tokenizer=words, or keep this tokenizer with model=elmo_subword_laptop"
        )


def _check_parts(cfg: DictConfig) -> None:
    """Build all parts on the meta device, which needs no memory, to check that they are valid and compatible."""
    tokenizer = cast(Tokenizer, _UntrainedTokenizer(cfg.tokenizer))
    with shapes_only():
        last = parts_over(ObjectiveNodes.of(cfg.objective), new_encoder(cfg.model, tokenizer, seed=0), tokenizer, {})
        _complete_embeddings(cfg, last.encoder)
        for phase, parts in zip(phases_of(cfg), parts_of_phases(cfg, last, tokenizer), strict=True):
            learner = PretrainingLearner(parts.encoder, list(parts.objectives))
            build_optimizer(OmegaConf.select(cfg, phase.optimizer), learner)
            check_order(objectives=parts.objectives, rows=parts.rows)
            if not any(objective.weight for objective in parts.objectives):
                raise ConfigError(
                    f"{phase.objective}.losses: every loss has weight=0, so the model learns nothing; raise a weight"
                )
    build(cfg.schedule)


def _complete_embeddings(cfg: DictConfig, encoder: Encoder) -> None:
    """Set ``embeddings`` to null if a recipe sets it but the model cannot use counted embeddings."""
    if cfg.get("embeddings") is None:
        return
    problem = ""
    if cfg.get("init"):
        problem = "with init=..., the token embeddings come from the run; leave embeddings=... out"
    elif encoder.token_embedding is None and not encoder.reads_characters:
        problem = f"{type(encoder).__name__} has no table of token embeddings: use another model, or embeddings=null"
    if problem and any(key.partition(".")[0] == "embeddings" for key in command_line_keys()):
        raise ConfigError(f"embeddings: {problem}")
    if problem:
        cfg.embeddings = None


class _UntrainedTokenizer:
    """A placeholder for a tokenizer that is not trained yet, for checking that the parts can be built."""

    def __init__(self, node: DictConfig) -> None:
        size = node.get("vocab_size")
        self.vocab_size = self.num_pieces = max(8, size) if isinstance(size, int) else _LIKELY_SIZE
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = range(4)
        self.missing_roles: Sequence[str] = ()
        self.is_special = np.arange(self.vocab_size) < 4
        self.starts_word = np.ones(self.vocab_size, dtype=bool)

    def decode(self, ids: Sequence[int]) -> str:
        """Return a capitalized word, whatever the ids."""
        return "Word"

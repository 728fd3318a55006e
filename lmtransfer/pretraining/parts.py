"""The parts of a pretraining: encoder, rows, corruption and objectives of a config.

They are checked before any text is read. They get random weights, or the weights of the run that is continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lmtransfer.config.build import build
from lmtransfer.config.check import check
from lmtransfer.config.in_short import expand_overlap, expand_parts
from lmtransfer.config.phases import Phase, complete_phases, phases_of
from lmtransfer.config.schema import TrainSettings
from lmtransfer.config.target import resolve
from lmtransfer.errors import ConfigError
from lmtransfer.importing.opening import open_saved
from lmtransfer.interop.added_tokens import resized_weights
from lmtransfer.layers.lora import merged_tensors
from lmtransfer.models.base import Encoder
from lmtransfer.models.token_vectors import TokenVectors
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.corruption.base import Corruption
from lmtransfer.objectives.fit import check_fit, check_order
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.objectives.rows.mixed import CONTIGUOUS_MIXTURE
from lmtransfer.pretraining.continued import given_keys, go_on_from
from lmtransfer.pretraining.save_points import save_points
from lmtransfer.runs.saved import SavedRun, hold_encoder, new_encoder
from lmtransfer.runs.tracking import tracker_nodes
from lmtransfer.runs.training import averaging, build_optimizer
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.weights import load_weights, read_weights

_LIKELY_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Parts:
    """Encoder, rows, corruption and objectives.

    Attributes:
        encoder: the encoder, with random weights or those of ``init``.
        rows: cuts text into rows.
        corruption: masks or replaces tokens.
        objectives: the losses with their heads.
        heads: weights of the heads of ``init`` by name (``mlm.dense.weight``), for ``continued.take_heads``.
    """

    encoder: Encoder
    rows: Rows
    corruption: Corruption
    objectives: Sequence[Objective]
    heads: Mapping[str, Tensor] = field(default_factory=dict)


def check_pretraining(cfg: DictConfig, *, primary: str) -> None:
    """Check the whole config before any work.

    Args:
        cfg: the config; its phases are completed in place. With ``init``, its model becomes the model of the continued
            run, and its losses get the head arguments of that run.
        primary: name of the command.

    Raises:
        ConfigError: all problems at once.
    """
    expand_parts(cfg)
    expand_overlap(cfg)
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
    averaging(train)
    save_points(train)
    nulls = [key for key in nodes if OmegaConf.select(cfg, key) is None]
    if nulls:
        raise ConfigError([f"{key}=null is not allowed: leave it out, or choose a value" for key in nulls])
    without = [phase.objective for phase in phases if not OmegaConf.select(cfg, f"{phase.objective}.losses")]
    if without:
        choose = "lists no loss; choose an objective (lmtransfer list objectives)"
        raise ConfigError([f"{key}.losses: {choose}" for key in without])
    contiguous = any(OmegaConf.select(cfg, f"{phase.objective}.rows.contiguous") for phase in phases)
    if cfg.corpus.get("parts") and contiguous:
        raise ConfigError(CONTIGUOUS_MIXTURE)
    if cfg.get("init"):
        go_on_from(open_saved(cfg.init, key="init"), cfg)
    else:
        _check_characters(cfg)
    _check_parts(cfg)


def _parts_of(cfg: DictConfig, phase: Phase) -> list[str]:
    """The keys of the components of a phase's objective, relative to the objective's key."""
    losses = OmegaConf.select(cfg, f"{phase.objective}.losses") or {}
    return ["rows", "corruption", *(f"losses.{name}" for name in losses)]


def _check_characters(cfg: DictConfig) -> None:
    """Raise if the model reads characters and the tokenizer gives none."""
    model, tokenizer = (resolve(cfg[key]._target_, key=key) for key in ("model", "tokenizer"))
    if issubclass(model, Encoder) and model.reads_characters and not getattr(tokenizer, "provides_characters", False):
        raise ConfigError(
            f"tokenizer: {tokenizer.__name__} splits words into pieces, but {model.__name__} reads whole words as "
            "characters: use tokenizer=words, or model=elmo_subword_laptop with this tokenizer"
        )


def build_parts(cfg: DictConfig, tokenizer: Tokenizer) -> Parts:
    """Build encoder, rows, corruption and objectives.

    Raises:
        ConfigError: parts that do not fit one another.
        CheckpointError: ``init`` has no weights that fit.
    """
    heads: dict[str, Tensor] = {}
    if cfg.get("init"):
        hold_encoder(open_saved(cfg.init, key="init"))
    encoder = new_encoder(cfg.model, tokenizer, seed=cfg.seed)
    if cfg.get("init"):
        heads = _load_encoder(encoder, open_saved(cfg.init, key="init"), tokenizer, cfg)
    parts = _parts(cfg.objective, encoder, tokenizer, heads)
    _check_mask(parts, tokenizer)
    return parts


def build_phases(cfg: DictConfig, tokenizer: Tokenizer) -> list[Parts]:
    """Build the parts of each phase: one encoder; consecutive phases with the same losses share their objectives.

    Raises:
        ConfigError: parts that do not fit one another.
        CheckpointError: ``init`` has no weights that fit.
    """
    last = build_parts(cfg, tokenizer)
    return _all_phases(cfg, last, tokenizer)


def _all_phases(cfg: DictConfig, last: Parts, tokenizer: Tokenizer) -> list[Parts]:
    """The parts of every phase, given the parts of the last phase."""
    phases, found = phases_of(cfg), [last]
    for phase, after in reversed(list(zip(phases, phases[1:], strict=False))):
        try:
            parts = _of_phase(cfg, phase, last, tokenizer)
        except ConfigError as error:
            raise ConfigError([f"phases.{phase.name}: {problem}" for problem in error.problems]) from error
        if losses_of(cfg, phase) == losses_of(cfg, after):
            parts = replace(parts, objectives=found[0].objectives, encoder=found[0].encoder)
        found.insert(0, parts)
    return found


def _of_phase(cfg: DictConfig, phase: Phase, last: Parts, tokenizer: Tokenizer) -> Parts:
    """The parts of a phase before the last; objectives without attention train the encoder's token embeddings only."""
    node, encoder = OmegaConf.select(cfg, phase.objective), last.encoder
    directions = {direction for loss in node.losses.values() for direction in _directions(loss)}
    if directions == {"none"} and encoder.attention != "none":
        encoder = TokenVectors(encoder)
    if phase.after is not None and encoder.token_embedding is None:
        raise ConfigError(f"embedding_after: {type(encoder).__name__} has no table of token embeddings; leave it out")
    parts = _parts(node, encoder, tokenizer, last.heads)
    _check_mask(parts, tokenizer)
    return parts


def _directions(loss: DictConfig) -> Sequence[str]:
    objective = resolve(loss._target_)
    return objective.directions if issubclass(objective, Objective) else ()


def losses_of(cfg: DictConfig, phase: Phase) -> object:
    """The losses of a phase as plain values."""
    return OmegaConf.to_container(OmegaConf.select(cfg, phase.objective).losses, resolve=True)


def _check_mask(parts: Parts, tokenizer: Tokenizer) -> None:
    if parts.corruption.uses_mask and "mask" in tokenizer.missing_roles:
        raise ConfigError(
            "objective.corruption replaces tokens by [MASK], but the tokenizer has no such token: use an objective "
            "that masks no tokens (objective=lm)"
        )


def _parts(objective: DictConfig, encoder: Encoder, tokenizer: Tokenizer, heads: Mapping[str, Tensor]) -> Parts:
    """Build rows, corruption and objectives, and check that they fit the encoder and one another."""
    parts = Parts(
        encoder=encoder,
        rows=build(objective.rows, tokenizer=tokenizer),
        corruption=build(objective.corruption, tokenizer=tokenizer),
        objectives=[build(node, tokenizer=tokenizer) for node in objective.losses.values()],
        heads=heads,
    )
    check_fit(encoder=encoder, objectives=parts.objectives, rows=parts.rows, corruption=parts.corruption)
    return parts


def _check_parts(cfg: DictConfig) -> None:
    """Build all parts on the meta device, without memory for weights, to check that they can be built and fit.

    Raises:
        ConfigError: a part cannot be built or does not fit; raised before any text is read.
    """
    tokenizer = cast(Tokenizer, _UntrainedTokenizer(cfg.tokenizer))
    with torch.device("meta"):
        last = _parts(cfg.objective, new_encoder(cfg.model, tokenizer, seed=0), tokenizer, {})
        _complete_embeddings(cfg, last.encoder)
        for phase, parts in zip(phases_of(cfg), _all_phases(cfg, last, tokenizer), strict=True):
            learner = PretrainingLearner(parts.encoder, list(parts.objectives))
            build_optimizer(OmegaConf.select(cfg, phase.optimizer), learner)
            check_order(objectives=parts.objectives, rows=parts.rows)
            if not any(objective.weight for objective in parts.objectives):
                raise ConfigError(
                    f"{phase.objective}.losses: every loss has weight=0, so the model learns nothing; raise one of them"
                )
    build(cfg.schedule)


def _complete_embeddings(cfg: DictConfig, encoder: Encoder) -> None:
    """Set ``embeddings`` to null if a recipe sets it and the model cannot use it.

    Raises:
        ConfigError: the command line sets it, and the model cannot use it.
    """
    if cfg.get("embeddings") is None:
        return
    problem = ""
    if cfg.get("init"):
        problem = "with init= the token embeddings come from the run; leave it out"
    elif encoder.token_embedding is None and not encoder.reads_characters:
        problem = f"{type(encoder).__name__} has no table of token embeddings: use another model, or embeddings=null"
    if problem and any(key.partition(".")[0] == "embeddings" for key in given_keys()):
        raise ConfigError(f"embeddings: {problem}")
    if problem:
        cfg.embeddings = None


def _load_encoder(encoder: Encoder, saved: SavedRun, tokenizer: Tokenizer, cfg: DictConfig) -> dict[str, Tensor]:
    """Load a run's weights into the encoder, resized if words were added; returns the weights of the run's heads."""

    def learner_of(vocab_size: int) -> PretrainingLearner:
        nodes = cfg.objective.losses.values()
        return PretrainingLearner(
            build(cfg.model, vocab_size=vocab_size), [build(node, tokenizer=tokenizer) for node in nodes]
        )

    tensors = merged_tensors(read_weights(saved.checkpoint()))
    tensors = resized_weights(tensors, base=saved.tokenizer, tokenizer=tokenizer, module_of=learner_of)
    encoder_tensors, heads = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in ("encoder.", "objectives.")
    )
    load_weights(encoder, encoder_tensors, source=str(saved.path))
    return heads


def parts_over(objective: DictConfig, encoder: Encoder, tokenizer: Tokenizer, heads: Mapping[str, Tensor]) -> Parts:
    """Build the parts of an objective for an existing encoder.

    Args:
        objective: its config node, with rows, corruption and losses.
        encoder: the encoder.
        tokenizer: the tokenizer of the text.
        heads: weights of heads by name, for ``continued.take_heads``.

    Raises:
        ConfigError: parts that do not fit one another, or the encoder.
    """
    parts = _parts(objective, encoder, tokenizer, heads)
    _check_mask(parts, tokenizer)
    return parts


def learned(saved: SavedRun, config: DictConfig) -> tuple[Parts, PretrainingLearner]:
    """The parts of a pretraining run, and its learner with the trained weights.

    Args:
        saved: the run.
        config: its config; ``init`` is null.

    Raises:
        RunDirectoryError: a component of the run cannot be built.
        CheckpointError: the checkpoint is incomplete, or does not fit the config.
    """
    model, folder = saved.model_node, saved.checkpoint()
    for part in ("rows", "corruption"):
        saved.component(f"objective.{part}", "tokenizer")
    losses = [saved.component(f"objective.losses.{name}", "tokenizer") for name in saved.config["objective"]["losses"]]
    tensors = read_weights(folder)

    def made() -> PretrainingLearner:
        objectives = [build(node, tokenizer=saved.tokenizer) for node in losses]
        return PretrainingLearner(new_encoder(model, saved.tokenizer, seed=0), objectives)

    saved.hold_against(made, tensors, checkpoint=folder, keys="model and objective")
    parts = build_parts(config, saved.tokenizer)
    learner = PretrainingLearner(parts.encoder, list(parts.objectives))
    load_weights(learner, tensors, source=str(folder))
    return parts, learner


class _UntrainedTokenizer:
    """A placeholder for a tokenizer that is not trained yet: it has the right size, and each piece is one word.

    It cannot encode. Parts are built with it to check that they can be built.

    Args:
        node: ``cfg.tokenizer``.
    """

    def __init__(self, node: DictConfig) -> None:
        size = node.get("vocab_size")
        self.vocab_size = self.num_pieces = max(8, size) if isinstance(size, int) else _LIKELY_SIZE
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = range(4)
        self.missing_roles: Sequence[str] = ()
        self.is_special = np.arange(self.vocab_size) < 4
        self.starts_word = np.ones(self.vocab_size, dtype=bool)

    def decode(self, ids: Sequence[int]) -> str:
        """Always the same word with a capital letter."""
        return "Word"

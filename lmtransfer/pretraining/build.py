"""The encoder, rows, corruption and objectives of a pretraining run, with random weights or the weights of ``init``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lmtransfer.config.component import Node, build, resolve
from lmtransfer.config.phases import Phase, phases_of
from lmtransfer.config.plain import to_plain
from lmtransfer.errors import ConfigError
from lmtransfer.interop.added_tokens import extend_weights
from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.lora import merge_saved_updates
from lmtransfer.models.word_embeddings import TokenVectors
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import Corruption
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.saved_run import SavedRun, new_encoder, read_encoder
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.weights import load_weights, read_weights


@dataclass(frozen=True, slots=True)
class ObjectiveNodes:
    """The components of an objective."""

    rows: Node[Rows]
    corruption: Node[Corruption]
    losses: Mapping[str, Node[Objective]]

    @classmethod
    def of(cls, values: Any, key: str = "objective") -> ObjectiveNodes:
        """Return the components in the node of an objective."""
        plain, _ = to_plain(values, key)
        losses: dict[str, Node[Objective]] = {
            name: Node(loss, f"{key}.losses.{name}") for name, loss in plain["losses"].items()
        }
        return cls(Node(plain["rows"], f"{key}.rows"), Node(plain["corruption"], f"{key}.corruption"), losses)

    @classmethod
    def of_run(cls, saved: SavedRun) -> ObjectiveNodes:
        """Return the components of a run's objective, checked."""
        losses = {
            name: saved.component(f"objective.losses.{name}", "tokenizer")
            for name in saved.config["objective"]["losses"]
        }
        rows, corruption = (saved.component(f"objective.{part}", "tokenizer") for part in ("rows", "corruption"))
        return cls(rows, corruption, losses)


@dataclass(frozen=True, slots=True)
class PretrainingParts:
    """The encoder, rows, corruption and objectives, and the weights of the heads from ``init``."""

    encoder: Encoder
    rows: Rows
    corruption: Corruption
    objectives: Sequence[Objective]
    heads: Mapping[str, Tensor] = field(default_factory=dict)


def build_parts(cfg: DictConfig, tokenizer: Tokenizer) -> PretrainingParts:
    """Build the parts of a run; with ``init``, load the weights of the encoder and return those of the heads."""
    heads: dict[str, Tensor] = {}
    if cfg.get("init"):
        read_encoder(open_saved(cfg.init, key="init"))
    encoder = new_encoder(cfg.model, tokenizer, seed=cfg.seed)
    if cfg.get("init"):
        heads = _load_encoder(encoder, open_saved(cfg.init, key="init"), tokenizer, cfg)
    return parts_over(ObjectiveNodes.of(cfg.objective), encoder, tokenizer, heads)


def build_phases(cfg: DictConfig, tokenizer: Tokenizer) -> list[PretrainingParts]:
    """Build the parts of each phase; all share the encoder, and phases with equal losses in a row share objectives."""
    last = build_parts(cfg, tokenizer)
    return parts_of_phases(cfg, last, tokenizer)


def parts_of_phases(cfg: DictConfig, last: PretrainingParts, tokenizer: Tokenizer) -> list[PretrainingParts]:
    """Build the parts of all phases, given those of the last phase."""
    phases, of_phases = phases_of(cfg), [last]
    for phase, after in reversed(list(zip(phases, phases[1:], strict=False))):
        try:
            parts = _of_phase(cfg, phase, last, tokenizer)
        except ConfigError as error:
            raise ConfigError([f"phases.{phase.name}: {problem}" for problem in error.problems]) from error
        if losses_of(cfg, phase) == losses_of(cfg, after):
            parts = replace(parts, objectives=of_phases[0].objectives, encoder=of_phases[0].encoder)
        of_phases.insert(0, parts)
    return of_phases


def _of_phase(cfg: DictConfig, phase: Phase, last: PretrainingParts, tokenizer: Tokenizer) -> PretrainingParts:
    """Build the parts of a phase other than the last; word-vector objectives train only the token embeddings."""
    node, encoder = OmegaConf.select(cfg, phase.objective), last.encoder
    directions = {direction for loss in node.losses.values() for direction in _directions(loss)}
    if directions == {"none"} and encoder.attention != "none":
        encoder = TokenVectors(encoder)
    if phase.after is not None and encoder.token_embedding is None:
        raise ConfigError(f"embedding_after: {type(encoder).__name__} has no table of token embeddings; leave it out")
    return parts_over(ObjectiveNodes.of(node, phase.objective), encoder, tokenizer, last.heads)


def _directions(loss: DictConfig) -> Sequence[str]:
    objective = resolve(loss._target_)
    return objective.directions if issubclass(objective, Objective) else ()


def losses_of(cfg: DictConfig, phase: Phase) -> object:
    """Return the losses of a phase as plain values."""
    return OmegaConf.to_container(OmegaConf.select(cfg, phase.objective).losses, resolve=True)


def parts_over(
    objective: ObjectiveNodes, encoder: Encoder, tokenizer: Tokenizer, heads: Mapping[str, Tensor]
) -> PretrainingParts:
    """Build the parts of an objective for an existing encoder, and check that all are compatible."""
    parts = PretrainingParts(
        encoder=encoder,
        rows=objective.rows.build(tokenizer=tokenizer),
        corruption=objective.corruption.build(tokenizer=tokenizer),
        objectives=[node.build(tokenizer=tokenizer) for node in objective.losses.values()],
        heads=heads,
    )
    check_compatible(encoder=encoder, objectives=parts.objectives, rows=parts.rows, corruption=parts.corruption)
    if parts.corruption.uses_mask and "mask" in tokenizer.missing_roles:
        raise ConfigError(
            "objective.corruption replaces tokens with [MASK], but the tokenizer has no such token: use an objective "
            "that masks no tokens (objective=lm)"
        )
    return parts


def _load_encoder(encoder: Encoder, saved: SavedRun, tokenizer: Tokenizer, cfg: DictConfig) -> dict[str, Tensor]:
    """Load the weights of a run into the encoder, resized for added words; return the weights of the run's heads."""

    def learner_of(vocab_size: int) -> PretrainingLearner:
        nodes = cfg.objective.losses.values()
        return PretrainingLearner(
            build(cfg.model, vocab_size=vocab_size), [build(node, tokenizer=tokenizer) for node in nodes]
        )

    tensors = merge_saved_updates(read_weights(saved.checkpoint()))
    tensors = extend_weights(tensors, base=saved.tokenizer, tokenizer=tokenizer, module_of=learner_of)
    encoder_tensors, heads = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in ("encoder.", "objectives.")
    )
    load_weights(encoder, encoder_tensors, source=str(saved.path))
    return heads


def load_learner(saved: SavedRun, *, trained: bool = True) -> tuple[PretrainingParts, PretrainingLearner]:
    """Load the parts of a pretraining run, and its learner.

    Args:
        trained: whether the learner has the trained weights; otherwise it has the random weights of the run's seed.
    """
    model, folder = saved.model_node, saved.checkpoint()
    objective = ObjectiveNodes.of_run(saved)
    tensors, seed = read_weights(folder), saved.config["seed"]

    def build_learner() -> PretrainingLearner:
        objectives = [node.build(tokenizer=saved.tokenizer) for node in objective.losses.values()]
        return PretrainingLearner(new_encoder(model, saved.tokenizer, seed=0), objectives)

    saved.check_fit(build_learner, tensors, checkpoint=folder, keys="model and objective")
    parts = parts_over(objective, new_encoder(model, saved.tokenizer, seed=seed), saved.tokenizer, {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "heads"))
        learner = PretrainingLearner(parts.encoder, list(parts.objectives))
    if trained:
        load_weights(learner, tensors, source=str(folder))
    return parts, learner

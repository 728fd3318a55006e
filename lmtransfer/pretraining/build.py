"""The encoder, rows, corruption and objectives of a pretraining run, with random weights or the weights of ``init``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lmtransfer.config.phases import Phase
from lmtransfer.config.settings import ObjectiveSettings, PretrainSettings
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
class PretrainingParts:
    """The encoder, rows, corruption and objectives, and the weights of the heads from ``init``."""

    encoder: Encoder
    rows: Rows
    corruption: Corruption
    objectives: Sequence[Objective]
    heads: Mapping[str, Tensor] = field(default_factory=dict)


def objective_of(saved: SavedRun) -> ObjectiveSettings:
    """Return the objective of a run, whose components are checked."""
    node = saved.config["objective"]
    rows, corruption = (saved.component(f"objective.{part}", "tokenizer") for part in ("rows", "corruption"))
    losses = {name: saved.component(f"objective.losses.{name}", "tokenizer") for name in node["losses"]}
    return ObjectiveSettings.model_construct(**{**node, "rows": rows, "corruption": corruption, "losses": losses})


def build_parts(settings: PretrainSettings, tokenizer: Tokenizer) -> PretrainingParts:
    """Build the parts of a run; with ``init``, load the weights of the encoder and return those of the heads."""
    heads: dict[str, Tensor] = {}
    if settings.init:
        read_encoder(open_saved(settings.init, key="init"))
    encoder = new_encoder(settings.model, tokenizer, seed=settings.seed)
    if settings.init:
        heads = _load_encoder(encoder, open_saved(settings.init, key="init"), tokenizer, settings)
    return parts_over(settings.objective, encoder, tokenizer, heads)


def parts_of_phases(phases: Sequence[Phase], last: PretrainingParts, tokenizer: Tokenizer) -> list[PretrainingParts]:
    """Build the parts of each phase, given those of the last phase.

    All phases share the encoder, and phases with equal losses in a row share objectives.
    """
    of_phases = [last]
    for phase, after in reversed(list(zip(phases, phases[1:], strict=False))):
        try:
            parts = _of_phase(phase, last, tokenizer)
        except ConfigError as error:
            raise ConfigError([f"phases.{phase.name}: {problem}" for problem in error.problems]) from error
        if phase.objective.losses == after.objective.losses:
            parts = replace(parts, objectives=of_phases[0].objectives, encoder=of_phases[0].encoder)
        of_phases.insert(0, parts)
    return of_phases


def _of_phase(phase: Phase, last: PretrainingParts, tokenizer: Tokenizer) -> PretrainingParts:
    """Build the parts of a phase other than the last; word-vector objectives train only the token embeddings."""
    encoder = last.encoder
    directions = {direction for loss in phase.objective.losses.values() for direction in loss.cls.directions}
    if directions == {"none"} and encoder.attention != "none":
        encoder = TokenVectors(encoder)
    if phase.after is not None and encoder.token_embedding is None:
        raise ConfigError(f"embedding_after: {type(encoder).__name__} has no table of token embeddings; leave it out")
    return parts_over(phase.objective, encoder, tokenizer, last.heads)


def parts_over(
    objective: ObjectiveSettings, encoder: Encoder, tokenizer: Tokenizer, heads: Mapping[str, Tensor]
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


def _load_encoder(
    encoder: Encoder, saved: SavedRun, tokenizer: Tokenizer, settings: PretrainSettings
) -> dict[str, Tensor]:
    """Load the weights of a run into the encoder, resized for added words; return the weights of the run's heads."""

    def learner_of(vocab_size: int) -> PretrainingLearner:
        losses = settings.objective.losses.values()
        return PretrainingLearner(
            settings.model.build(vocab_size=vocab_size), [loss.build(tokenizer=tokenizer) for loss in losses]
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
    objective = objective_of(saved)
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

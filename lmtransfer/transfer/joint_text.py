"""The text of joint training: corpus and objective, read once for all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from lmtransfer.config.plain import resolve_config
from lmtransfer.data.stream import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.continued import InheritedHeads, inherit_heads
from lmtransfer.pretraining.parts import PretrainingParts, parts_over
from lmtransfer.pretraining.text import Text, absolute_corpus, read_text
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.labels import objective_label
from lmtransfer.runs.saved import SavedRun
from lmtransfer.runs.trust import check_same_text
from lmtransfer.tokenizers.base import characters_of
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import read_weights
from lmtransfer.transfer.method import TextShare

_HEADS = "objectives."


@dataclass(frozen=True, slots=True)
class JointText:
    """Text and objective of joint training.

    Attributes:
        share: weight of the text's loss, text tokens per step, and the share of the budget with text.
        text: the corpus as token ids.
        objective: config node of rows, corruption and losses.
        heads: weights of the pretraining run's heads by name (``mlm.dense.weight``); empty if the heads are new.
    """

    share: TextShare
    text: Text
    objective: DictConfig
    heads: Mapping[str, Tensor]

    def with_run_heads(self, run: SavedRun) -> JointText:
        """Return the same text, with the heads of the run that training starts from."""
        tensors = read_weights(run.checkpoint())
        heads = {name.removeprefix(_HEADS): tensor for name, tensor in tensors.items() if name.startswith(_HEADS)}
        return replace(self, heads=heads)

    def parts(self, encoder: Encoder) -> PretrainingParts:
        """Return the objective's parts for an encoder.

        Raises:
            ConfigError: the objective does not fit the encoder, or a step has less text than one row.
        """
        if encoder.attention == "none":
            raise ConfigError(
                f"transfer=joint: {type(encoder).__name__} has static word vectors, which cannot use the context that "
                "joint training teaches; set transfer=full"
            )
        parts = parts_over(self.objective, encoder, self.text.tokenizer, self.heads)
        if self.share.tokens < parts.rows.max_length:
            raise ConfigError(
                f"transfer.text_tokens={self.share.tokens}: must not be less than the length of a text row "
                f"(objective.max_length={parts.rows.max_length}); set {parts.rows.max_length} or more"
            )
        return parts

    def learner(
        self, parts: PretrainingParts, *, seed: int, keep_heads: bool
    ) -> tuple[PretrainingLearner, InheritedHeads]:
        """Return the objectives' learner, and which of their heads have weights from the pretraining run.

        Args:
            parts: the parts for an encoder that is on its device and has its initial weights.
            seed: the only seed that new heads depend on; torch's generator is restored afterwards.
            keep_heads: whether to load the pretraining run's heads; otherwise all heads are new, as in a control.
        """
        device = next(parts.encoder.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "heads"))
            task_attention = parts.encoder.attention
            learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(device)
            if parts.encoder.attention != task_attention:
                raise ConfigError(
                    f"transfer=joint: {objective_label(self.objective)} needs {parts.encoder.attention} attention, but "
                    f"the task uses the encoder with {task_attention} attention; choose another objective, or set "
                    f"transfer.attention={parts.encoder.attention}"
                )
        return learner, inherit_heads(learner, parts.heads if keep_heads else {})

    def loaded_heads(self, encoder: Encoder) -> InheritedHeads:
        """Return which heads a run loads from pretraining; the encoder must not be used afterwards."""
        return self.learner(self.parts(encoder), seed=0, keep_heads=True)[1]

    def stream(
        self, parts: PretrainingParts, *, hardware: Hardware, micro_batch_tokens: int | None, seed: int
    ) -> PlannedStream:
        """Return the training text as this rank's steps, with rows in random order.

        Rows are independent, even if pretraining read them as contiguous text with a memory.

        Args:
            parts: rows and corruption.
            hardware: device, and number of processes that build batches.
            micro_batch_tokens: tokens in one forward pass; None for all tokens of a step.
            seed: seed of order, rows and masks.
        """
        store, text_seed = self.text.prepared.train, derive_seed(seed, "text")
        parts.corruption.observe(store)
        source = PretrainingSource(
            store=store,
            rows=parts.rows,
            corruption=parts.corruption,
            seed=text_seed,
            output_positions=collect_output_positions(parts.objectives),
            few_shapes=hardware.device.type == "cpu",
            characters=characters_of(self.text.tokenizer),
        )
        stream = PlannedStream(
            source,
            seed=text_seed,
            batch_tokens=self.share.tokens,
            micro_batch_tokens=micro_batch_tokens,
            num_workers=hardware.num_workers,
            rank=process_group.rank(),
            world_size=process_group.world_size(),
            pin_memory=hardware.device.type == "cuda",
        )
        if hardware.compile:
            source.capacity = stream.capacity(parts.rows.max_length)
        return stream

    def __str__(self) -> str:
        share = self.share
        until = "" if share.until == 1 else f", until {100 * share.until:g} % of the budget is used"
        return (
            f"text with labels: {self.text.corpus.name}, {objective_label(self.objective)}, {share.tokens:,} tokens "
            f"per step with weight {share.weight:g}{until}"
        )


def user_nodes(cfg: DictConfig) -> dict[str, set[str]]:
    """Return the user's components of corpus and objective, each with the arguments that the command adds."""
    objective, nodes = cfg.get("objective"), dict[str, set[str]]()
    if cfg.get("corpus") is not None:
        nodes["corpus"] = {"data_root", "cache_dir"}
    if OmegaConf.is_dict(objective) and OmegaConf.is_dict(objective.get("losses")):
        for part in ("rows", "corruption", *(f"losses.{name}" for name in objective.losses)):
            nodes[f"objective.{part}"] = {"tokenizer"}
    return nodes


def read_joint_text(cfg: DictConfig, source: SavedRun, share: TextShare, *, cache_dir: Path) -> JointText:
    """Read the user's corpus and objective, or those of the run that training starts from.

    Args:
        cfg: the command's config, to which corpus and objective are written.
        source: the run that training starts from, or the run whose tokenizer is used.
        cache_dir: folder of the tokenized text.

    Raises:
        ConfigError: the run has no objective or no corpus, and the user sets none.
        RunDirectoryError: the run is not trusted, and the corpus that it names is not the one it was trained on.
        DataError: the text is missing.
    """
    key = "init" if cfg.get("init") else "tokenizer_from"
    nodes = {part: resolve_config(cfg)[part] for part in ("corpus", "objective") if cfg.get(part) is not None}
    own: dict[str, Any] = {part: source.config.get(part) for part in ("corpus", "objective")}
    data_root = cfg.data_root or source.data_root
    problems = []
    if not (nodes.get("objective") or own["objective"] or {}).get("losses"):
        problems.append(
            f"transfer=joint: {key}={cfg[key]} has no pretraining objective; set an objective, such as objective=mlm, "
            "whose heads start at random, or choose transfer=full"
        )
    if "corpus" not in nodes and own["corpus"] is None:
        problems.append(
            f"transfer=joint: the training text of {key}={cfg[key]} is unknown; set a text, such as corpus=text "
            "corpus.path=my/texts, or choose transfer=full"
        )
    if problems:
        raise ConfigError(problems)
    if "objective" not in nodes:
        for part in ("rows", "corruption", *(f"losses.{name}" for name in own["objective"]["losses"])):
            source.component(f"objective.{part}", "tokenizer")  # raises an error if the component is invalid
    if "corpus" not in nodes and not source.trusted:
        check_same_text(source.config, source.directory, data_root=data_root)
    screening = source.config.get("screening") if "corpus" not in nodes and source.trusted else None
    nodes = own | nodes
    nodes["corpus"] = absolute_corpus(nodes["corpus"])
    config = OmegaConf.create(
        {
            **nodes,
            "screening": screening,
            "init": source.reference,
            "tokenizer": None,
            "data_root": data_root,
            "cache_dir": str(cache_dir),
        }
    )
    with open_dict(cfg):
        cfg.corpus, cfg.objective = config.corpus, config.objective
    return JointText(share, read_text(config), config.objective, {})

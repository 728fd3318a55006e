"""Joint training: a task's labels and a pretraining objective on text, over one encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.settings import ObjectiveSettings, TransferSettings
from lmtransfer.config.sources import with_absolute_paths
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.build import PretrainingParts, objective_of, parts_over
from lmtransfer.pretraining.continued import InheritedHeads, inherit_heads
from lmtransfer.pretraining.text import Text, build_corpus, check_same_text, read_text
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.tokenizers.base import characters_of
from lmtransfer.training import process_group
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.update import StepResult
from lmtransfer.training.weights import read_weights
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TextShare

_HEADS = "objectives."


@dataclass(frozen=True, slots=True)
class JointText:
    """Text and objective of joint training; ``heads`` holds the pretraining run's head weights, if any."""

    share: TextShare
    text: Text
    objective: ObjectiveSettings
    heads: Mapping[str, Tensor]

    def with_run_heads(self, run: SavedRun) -> JointText:
        """Return a copy with the heads of the run that training starts from."""
        tensors = read_weights(run.checkpoint())
        heads = {name.removeprefix(_HEADS): tensor for name, tensor in tensors.items() if name.startswith(_HEADS)}
        return replace(self, heads=heads)

    def parts(self, encoder: Encoder) -> PretrainingParts:
        """Return the objective's parts for an encoder."""
        if encoder.attention == "none":
            raise ConfigError(
                f"transfer=joint: {type(encoder).__name__} has static word vectors, which cannot use the context that "
                "joint training teaches; set transfer=full"
            )
        parts = parts_over(self.objective, encoder, self.text.tokenizer, self.heads)
        if self.share.tokens < parts.rows.max_length:
            raise ConfigError(
                f"transfer.text_tokens={self.share.tokens} must not be less than the length of a text row "
                f"(objective.max_length={parts.rows.max_length}); set {parts.rows.max_length} or more"
            )
        return parts

    def learner(
        self, parts: PretrainingParts, *, seed: int, keep_heads: bool
    ) -> tuple[PretrainingLearner, InheritedHeads]:
        """Return the objectives' learner, and which of its heads come from the run; the other heads are new."""
        device = next(parts.encoder.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "heads"))
            task_attention = parts.encoder.attention
            learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(device)
            if parts.encoder.attention != task_attention:
                raise ConfigError(
                    f"transfer=joint: {'+'.join(self.objective.losses)} needs {parts.encoder.attention} attention, but "
                    f"the task uses the encoder with {task_attention} attention; choose another objective, or set "
                    f"transfer.attention={parts.encoder.attention}"
                )
        return learner, inherit_heads(learner, parts.heads if keep_heads else {})

    def loaded_heads(self, encoder: Encoder) -> InheritedHeads:
        """Return which heads a training run takes from pretraining; the encoder must not be used afterwards."""
        return self.learner(self.parts(encoder), seed=0, keep_heads=True)[1]

    def stream(
        self, parts: PretrainingParts, *, hardware: Hardware, micro_batch_tokens: int | None, seed: int
    ) -> PlannedStream:
        """Return the training text as this rank's steps, with rows in random order.

        Rows are independent, even if pretraining read them as contiguous text with a memory.
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
            f"text with labels: {self.text.corpus.name}, {'+'.join(self.objective.losses)}, {share.tokens:,} tokens "
            f"per step with weight {share.weight:g}{until}"
        )


def read_joint_text(
    settings: TransferSettings, source: SavedRun, share: TextShare, *, cache_dir: Path
) -> tuple[JointText, TransferSettings]:
    """Read the text and the objective that the settings name, falling back to those of the run ``source``.

    Also return the settings with both.
    """
    key, run = "init" if settings.init else "tokenizer_from", settings.init or settings.tokenizer_from
    data_root = settings.data_root or source.data_root
    corpus_node, objective = settings.corpus, settings.objective
    problems = []
    if not (objective.losses if objective else (source.config.get("objective") or {}).get("losses")):
        problems.append(
            f"transfer=joint: {key}={run} has no pretraining objective; set an objective, such as objective=mlm, "
            "whose heads then start from random weights, or choose transfer=full"
        )
    if corpus_node is None and source.config.get("corpus") is None:
        problems.append(
            f"transfer=joint: the training text of {key}={run} is unknown; set a corpus, such as corpus=text "
            "corpus.path=my/texts, or choose transfer=full"
        )
    if problems:
        raise ConfigError(problems)
    objective = objective or objective_of(source)
    screening = None
    if corpus_node is None:
        corpus_node = source.component("corpus", "data_root", "cache_dir")
        if not source.trusted:
            check_same_text(source, data_root=data_root)
        elif source.config.get("screening") is not None:
            screening = source.component("screening", "overlap_with", "cache_dir")
    corpus_node = replace(corpus_node, values=with_absolute_paths(corpus_node.values))
    corpus = build_corpus(corpus_node, screening, data_root=data_root, cache_dir=cache_dir)
    text = read_text(corpus, source.tokenizer, cache_dir=cache_dir, max_length=objective.max_length)
    settings = settings.model_copy(update={"corpus": corpus_node, "objective": objective})
    return JointText(share, text, objective, {}), settings


class JointStream(BatchStream):
    """The task stream's steps, each extended by the micro-batches of the text stream's step with the same number.

    Step k depends only on k and on ``reads_text``, which is called before each step. Losses, metrics and dropout of the
    task's micro-batches are the same as without text. After a step without text, no later step has text.
    """

    def __init__(self, task: BatchStream, text: BatchStream, *, reads_text: Callable[[], bool]) -> None:
        self.task, self.text, self.reads_text = task, text, reads_text

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.task.steps_per_epoch

    @override
    def steps(self, start: int = 0) -> Iterator[Step]:
        text: Iterator[Step] | None = None
        for step in self.task.steps(start):
            if not self.reads_text():
                text = None  # ends the text's workers
                yield step
                continue
            text = text or self.text.steps(step.number)
            text_step = next(text)
            yield replace(
                step,
                micro_batches=(*step.micro_batches, *text_step.micro_batches),
                other_keys=[("text", *text_step.key(place)) for place in range(len(text_step.micro_batches))],
                fillers=[*step.fillers, *(len(step.micro_batches) + place for place in text_step.fillers)],
            )

    @override
    def set_micro_batch_tokens(self, tokens: int) -> None:
        self.task.set_micro_batch_tokens(tokens)
        self.text.set_micro_batch_tokens(tokens)


class LastLosses(Callback):
    """Stores the latest value of every loss, keyed by name, because the text's losses end before training does."""

    name = "last_losses"

    def __init__(self) -> None:
        self.losses: dict[str, float] = {}

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        self.losses.update(outcome.losses)
        return ()

    @override
    def state_dict(self) -> dict[str, Any]:
        return dict(self.losses)

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = {str(name): float(value) for name, value in state.items()}


class JointLearner(Learner):
    """The task's loss on batches of labeled examples, and the objectives' losses on batches of text."""

    def __init__(self, task: TaskLearner, text: PretrainingLearner, share: TextShare) -> None:
        super().__init__()
        if task.encoder is not text.encoder:
            raise ValueError("the task and the objectives must have the same encoder")
        self.task, self.text, self.share = task, text, share
        self.reads_text = True

    def arrange(self, sample: TaskBatch) -> None:
        """Arrange the task's learner; encoder parameters that only the text objectives use are trained too."""
        encoder, pooler = self.task.encoder, self.task.encoder.pooler
        self.task.arrange(sample)
        unread = set()
        if pooler is not None and not any(objective.uses_pooler for objective in self.text.objective_list()):
            unread = {id(parameter) for parameter in pooler.parameters()}
        for name, parameter in encoder.named_parameters():
            if name not in self.task.depths and id(parameter) not in unread:
                parameter.requires_grad_(True)

    @override
    def on_progress(self, fraction: float) -> None:
        """Read text until its share of the budget is used up."""
        self.task.on_progress(fraction)
        self.reads_text = fraction < self.share.until - 1e-9

    @override
    def counts(self, batch: TaskBatch | PretrainingBatch) -> Mapping[str, float]:
        return self.text.counts(batch) if isinstance(batch, PretrainingBatch) else self.task.counts(batch)

    def losses(self, batch: TaskBatch | PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """Return the task's loss, or the objectives' losses times the text weight; rows of text are independent."""
        if not isinstance(batch, PretrainingBatch):
            return self.task.losses(batch)
        losses, _ = self.text.losses(batch)
        return {name: replace(loss, weight=loss.weight * self.share.weight) for name, loss in losses.items()}, None

    @override
    def parts(self) -> Mapping[str, nn.Module]:
        """Return the model (the task's learner) and the objectives, which only training needs."""
        return {"model": self.task, "objectives": self.text.objectives}

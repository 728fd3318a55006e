"""The labelled data of a probe or finetuning command: read and tokenised once for all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.base import Encoder
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.subsets import training_parts
from lmtransfer.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    """The examples of ``TaskData.train`` that a run uses, as indices.

    Attributes:
        train: examples to train on.
        held_out: examples that choose a checkpoint or a rate; empty if the dev split chooses or nothing is chosen.
    """

    train: np.ndarray
    held_out: np.ndarray


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data of all runs of one command.

    Attributes:
        train: the training examples that at least one seed uses.
        parts: for each seed, its examples with a held-out part to choose by.
        whole: for each seed, all its examples for training, for runs that choose nothing.
        evaluation: the scored split.
        choosing: the dev split, if it chooses checkpoint and rate; None if a held-out part does.
        split: name of the scored split.
    """

    train: EncodedExamples
    parts: dict[int, Parts]
    whole: dict[int, Parts]
    evaluation: EncodedExamples
    choosing: EncodedExamples | None
    split: str


def read_task_data(task: Task, tokenizer: Tokenizer, encoder: Encoder, *, seeds: Sequence[int], split: str) -> TaskData:
    """Read the training split and the scored split, and encode the examples that are used.

    Args:
        task: the task.
        tokenizer: the run's tokenizer.
        encoder: the encoder; sets the longest input.
        seeds: the seeds of all runs; each samples its own subset.
        split: the split to score.

    Raises:
        DataError: a split is missing or malformed, or has examples without gold labels.
        ConfigError: the task's settings do not fit its data or the encoder.
    """
    if split == "train":
        raise ConfigError(
            "split=train: the same examples cannot be used for training and scoring; choose another split"
        )
    task.check_windows(_longest(task, encoder))  # before anything is read
    scored = encode_split(task, task.examples(split), tokenizer, encoder, split=split)
    choosing = None
    if task.dev_from_train is None and split == "dev":
        choosing = scored
    elif task.dev_from_train is None:
        choosing = encode_split(task, task.examples("dev"), tokenizer, encoder, split="dev")
    examples = task.examples("train")
    _check_hidden(examples, "train")
    class_indices = np.array([example.class_index for example in examples])
    groups = [example.group for example in examples]
    parts: dict[int, Parts] = {}
    whole: dict[int, Parts] = {}
    for seed in seeds:
        for target, fraction in ((parts, task.dev_from_train), (whole, None)):
            chosen = training_parts(
                class_indices, num_train=task.num_train, dev_from_train=fraction, seed=seed, groups=groups
            )
            target[seed] = Parts(*chosen)
    used = np.unique(np.concatenate([part.train for part in whole.values()]))
    train = encode_split(task, [examples[row] for row in used], tokenizer, encoder, split="train")

    def placed(part: Parts) -> Parts:
        return Parts(np.searchsorted(used, part.train), np.searchsorted(used, part.held_out))

    return TaskData(
        train=train,
        parts={seed: placed(part) for seed, part in parts.items()},
        whole={seed: placed(part) for seed, part in whole.items()},
        evaluation=scored,
        choosing=choosing,
        split=split,
    )


def encode_split(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, encoder: Encoder, *, split: str
) -> EncodedExamples:
    """Encode examples that all have gold labels.

    Raises:
        DataError: an example has no gold label.
        ConfigError: ``task.max_length`` is more than the encoder can read.
    """
    _check_hidden(examples, split)
    return encode_examples(task, examples, tokenizer, encoder)


def encode_examples(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, encoder: Encoder) -> EncodedExamples:
    """Encode examples, with or without gold answers.

    Raises:
        ConfigError: ``task.max_length`` is more than the encoder can read, or leaves no space for text.
    """
    return task.encode(examples, tokenizer, max_length=_longest(task, encoder), num_segments=encoder.num_segments)


def _longest(task: Task, encoder: Encoder) -> int:
    """Most tokens of an input."""
    if task.max_length is not None and task.max_length > encoder.max_length:
        raise ConfigError(
            f"task.max_length={task.max_length} is too long: the encoder reads at most {encoder.max_length} tokens; "
            "use this number or less, or null"
        )
    return task.max_length or encoder.max_length


def _check_hidden(examples: Sequence[Example], split: str) -> None:
    hidden = sum(not example.has_gold for example in examples)
    if hidden:
        raise DataError(
            f"split {split}: {hidden} of {len(examples)} examples have no gold answer (-1, as in published test sets), "
            "so the split cannot be used for training or scoring; choose another split"
        )


def task_notes(task: Task) -> list[str]:
    """The irregularities that a task found while reading its splits, one line for each kind and split."""
    return [
        f"{task.name}, {split}: {kind}: {count:,} (first at {met.first[kind]})"
        for split, met in task.notes.items()
        for kind, count in met.counts.items()
    ]

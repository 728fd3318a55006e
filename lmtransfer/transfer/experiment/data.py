"""The labeled data of a probe or finetuning command, read and tokenized once for all its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.base import Encoder
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.subsets import FOLDS, fold_of, train_and_held_out
from lmtransfer.tokenizers.base import Tokenizer

#: The seed and the fold (or None) that determine which examples a run uses.
Draw = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class RunExamples:
    """The examples of ``TaskData.train`` that a run uses, as indices.

    Attributes:
        held_out: examples by which a checkpoint or a learning rate is chosen; empty if the dev split is used instead,
            or if there is nothing to choose.
        scored: the fold to score; None to score the evaluation split.
    """

    train: np.ndarray
    held_out: np.ndarray
    scored: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data of all runs of one command.

    Attributes:
        parts: examples of each seed (and fold), some of them held out to choose a checkpoint or a learning rate.
        whole: examples of each seed (and fold), all for training, for runs that choose nothing.
        evaluation: the scored split; with folds, or if nothing is scored, the whole training split.
        notes: messages about scored examples whose texts are also in the training split.
        choosing: the dev split, if checkpoint and rate are chosen by it; None if they are chosen by a held-out part.
        split: the name of the scored split; "" if nothing is scored.
    """

    train: EncodedExamples
    parts: dict[Draw, RunExamples]
    whole: dict[Draw, RunExamples]
    evaluation: EncodedExamples
    choosing: EncodedExamples | None
    split: str
    notes: tuple[str, ...] = ()

    @property
    def is_scored(self) -> bool:
        """Whether runs are scored."""
        return bool(self.split)

    def join_outputs(self, outputs: Mapping[Draw, np.ndarray]) -> np.ndarray:
        """Join the outputs (rows, K) for the examples that each draw scores, in the order of ``evaluation``."""
        encoded = self.evaluation
        values = np.zeros((len(encoded.targets), next(iter(outputs.values())).shape[1]), dtype=np.float32)
        for draw, own in outputs.items():
            scored = self.whole[draw].scored
            scored = np.arange(len(encoded.examples)) if scored is None else scored
            values[encoded.target_rows(encoded.sequences_of(scored))] = own
        return values

    def examples_in_use(self, draw: Draw) -> np.ndarray:
        """Return the examples of ``train`` that a run, or all folds of its seed, are trained or scored on."""
        part = self.whole[draw]
        return part.train if part.scored is None else np.arange(len(self.train.examples))


def read_task_data(task: Task, tokenizer: Tokenizer, encoder: Encoder, *, seeds: Sequence[int], split: str) -> TaskData:
    """Read the training split and, unless there are folds, the scored split; encode the examples in use.

    Args:
        split: the split to score; "" if nothing is scored.
    """
    if split == "train":
        raise ConfigError(
            "split=train: the same examples cannot be used for training and scoring; choose another split"
        )
    task.check_windows(_longest(task, encoder))  # before any data is read
    if task.folds is not None:
        return _read_folds(task, task.folds, tokenizer, encoder, seeds=seeds)
    scored = encode_split(task, task.examples(split), tokenizer, encoder, split=split) if split else None
    choosing = None
    if task.dev_from_train is None and split == "dev":
        choosing = scored
    elif task.dev_from_train is None and split:
        choosing = encode_split(task, task.examples("dev"), tokenizer, encoder, split="dev")
    examples = task.examples("train")
    _check_gold(examples, "train")
    held_out = {split: scored, "dev": choosing}
    notes = (
        repeated_texts(examples, encoded.examples, split=name)
        for name, encoded in held_out.items()
        if encoded is not None
    )
    class_indices = np.array([example.class_index for example in examples])
    groups = [example.group for example in examples]
    parts: dict[Draw, RunExamples] = {}
    whole: dict[Draw, RunExamples] = {}
    for seed in seeds:
        for target, fraction in ((parts, task.dev_from_train), (whole, None)):
            division = train_and_held_out(
                class_indices, num_train=task.num_train, dev_from_train=fraction, seed=seed, groups=groups
            )
            target[seed, None] = RunExamples(*division)
    rows_in_use = np.unique(np.concatenate([part.train for part in whole.values()]))
    train = encode_split(task, [examples[row] for row in rows_in_use], tokenizer, encoder, split="train")

    def placed(part: RunExamples) -> RunExamples:
        return RunExamples(np.searchsorted(rows_in_use, part.train), np.searchsorted(rows_in_use, part.held_out))

    return TaskData(
        train=train,
        parts={draw: placed(part) for draw, part in parts.items()},
        whole={draw: placed(part) for draw, part in whole.items()},
        evaluation=train if scored is None else scored,
        choosing=choosing,
        split=split,
        notes=tuple(filter(None, notes)),
    )


def all_labeled(task: Task, data: TaskData, tokenizer: Tokenizer, encoder: Encoder, *, seed: int) -> TaskData:
    """Return all labeled examples for training, and none to score: the training split, followed by the dev split."""
    train = data.train
    if task.folds is None and "dev" in task.splits:
        known = data.evaluation if data.split == "dev" else data.choosing
        dev = task.examples("dev") if known is None else known.examples
        _check_gold(dev, "dev")
        train = encode_examples(task, [*train.examples, *dev], tokenizer, encoder)
    every = np.arange(len(train.examples))
    whole: dict[Draw, RunExamples] = {(seed, None): RunExamples(every, every[:0])}
    return TaskData(train=train, parts={}, whole=whole, evaluation=train, choosing=None, split="")


def repeated_texts(train: Sequence[Example], examples: Sequence[Example], *, split: str) -> str | None:
    """Return a message with the number of examples whose texts equal those of a training example; None without any."""
    seen = {example.content for example in train}
    count = sum(example.content in seen for example in examples)
    if not count:
        return None
    what = "all" if count == len(examples) else f"{count:,} of the"
    verb = "is" if count == 1 and len(examples) > 1 else "are"
    return (
        f"{what} {len(examples):,} examples of split {split} {verb} also in the training split (same texts), so the "
        f"score {'only' * (count == len(examples)) or 'also'} measures what the model has memorized"
    )


def _read_folds(task: Task, folds: int, tokenizer: Tokenizer, encoder: Encoder, *, seeds: Sequence[int]) -> TaskData:
    examples = task.examples("train")
    train = encode_split(task, examples, tokenizer, encoder, split="train")
    class_indices = np.array([example.class_index for example in examples])
    groups = [example.group for example in examples]
    parts: dict[Draw, RunExamples] = {}
    whole: dict[Draw, RunExamples] = {}
    for seed in seeds:
        division = fold_of(class_indices, groups, folds=folds, seed=seed, names=task.labels)
        for fold in range(folds):
            rest, scored = np.flatnonzero(division != fold), np.flatnonzero(division == fold)
            whole[seed, fold] = RunExamples(rest, rest[:0], scored)
            train_rows, held_out_rows = train_and_held_out(
                class_indices[rest],
                num_train=None,
                dev_from_train=task.dev_from_train,
                seed=seed,
                groups=[groups[row] for row in rest],
            )
            parts[seed, fold] = RunExamples(rest[train_rows], rest[held_out_rows], scored)
    return TaskData(train=train, parts=parts, whole=whole, evaluation=train, choosing=None, split=FOLDS)


def encode_split(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, encoder: Encoder, *, split: str
) -> EncodedExamples:
    """Encode examples that all have gold labels."""
    _check_gold(examples, split)
    return encode_examples(task, examples, tokenizer, encoder)


def encode_examples(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, encoder: Encoder) -> EncodedExamples:
    """Encode examples, with or without gold answers."""
    return task.encode(examples, tokenizer, max_length=_longest(task, encoder), num_segments=encoder.num_segments)


def _longest(task: Task, encoder: Encoder) -> int:
    if task.max_length is not None and task.max_length > encoder.max_length:
        raise ConfigError(
            f"task.max_length={task.max_length}: the encoder reads at most {encoder.max_length} tokens; set at most "
            "this value, or null"
        )
    return task.max_length or encoder.max_length


def _check_gold(examples: Sequence[Example], split: str) -> None:
    hidden = sum(not example.has_gold for example in examples)
    if hidden:
        raise DataError(
            f"split {split}: {hidden} of {len(examples)} examples have no gold answer (-1, as in published test sets), "
            "so this split cannot be used for training or scoring; choose another split"
        )


def task_notes(task: Task) -> list[str]:
    """Return notes on irregular data in a task's splits, one line per kind and split."""
    return [
        f"{task.name}, {split}: {kind}: {count:,} (first at {notes.first[kind]})"
        for split, notes in task.notes.items()
        for kind, count in notes.counts.items()
    ]

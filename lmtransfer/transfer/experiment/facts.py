"""What is known at the end of a probe or finetuning command, for its closing lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmtransfer.config import paths
from lmtransfer.config.component import arguments_of
from lmtransfer.reporting.what_now import Invocation, TransferFacts, Vocabulary
from lmtransfer.runs.result import JointResult
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.base import Task
from lmtransfer.tokenizers.base import CharacterTokenizer
from lmtransfer.tokenizers.fit import ignores_case, pieces_per_word
from lmtransfer.transfer.experiment.settings import Setting


def transfer_facts(
    result: JointResult, setting: Setting, *, source: SavedRun, seed: int, invocation: Invocation
) -> TransferFacts:
    """Collect the facts.

    Args:
        source: the run that the command starts from.
        seed: the first seed, whose training examples are counted.
    """
    task, data = setting.task, setting.data
    rows = data.whole[setting.draws(seed)[0]].train
    targets = data.train.targets_of(data.train.sequences_of(rows))
    reads_characters = isinstance(setting.tokenizer, CharacterTokenizer)  # and so the words behind [UNK]
    unknown = float((data.train.tokens_T == setting.tokenizer.unk_id).mean())
    return TransferFacts(
        invocation=invocation,
        result=result.values(),
        vocabulary=Vocabulary(
            pieces_per_word=pieces_per_word(setting.tokenizer, _texts(setting)),
            unknown_share=0.0 if reads_characters else unknown,
            ignores_case=ignores_case(setting.tokenizer),
            pretrain=tuple(_words_of_corpus(source.config)) if source.trusted else (),
        ),
        sizes={"train": len(data.train.examples), data.split: len(data.evaluation.examples)},
        label_counts=dict(task.head.counts(targets, task.labels)),
        limits=(task.max_length or setting.max_length, setting.max_length),
        capitals=task.capitals(data.train.examples),
        can_balance="class_weights" in arguments_of(type(task))
        and getattr(task.settings, "class_weights", None) is None,
        can_fold=can_fold(task),
        splits=task.splits,
    )


def can_fold(task: Task) -> bool:
    """Whether a task can be cross-validated."""
    return "folds" in arguments_of(type(task))


def _texts(setting: Setting) -> Iterator[str]:
    for example in setting.data.train.examples:
        yield from setting.task.texts(example)


def _words_of_corpus(config: Mapping[str, Any]) -> Sequence[str]:
    """Return the words that choose the corpus of a pretraining run again; none for a corpus of another kind."""
    corpus = config.get("corpus") or {}
    name, path = corpus.get("name"), corpus.get("path")
    if config.get("init") or "task" in config or not isinstance(name, str):
        return ()
    if name == "text" and isinstance(path, str):
        return ("corpus=text", f"corpus.path={path}")
    return (f"corpus={name}",) if name in paths.group_options("corpus", [paths.conf_dir()]) else ()

"""What a model will see of a labelled task: its splits in numbers, and examples with what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from omegaconf import DictConfig
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lmtransfer.config.build import build
from lmtransfer.config.check import check
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.importing.opening import open_saved
from lmtransfer.inspection.numbers import check_numbers
from lmtransfer.inspection.tables import titled
from lmtransfer.runs.saved import new_encoder
from lmtransfer.system.console import Console
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.transfer.experiment.data import encode_examples, noted

#: Ids that are named where something is wrong with examples.
_NAMED = 5


def inspect_task(cfg: DictConfig) -> None:
    """Print everything; nothing is written.

    Raises:
        ConfigError: with every problem of the config.
        DataError: a split that is malformed, or none that can be read.
    """
    check(cfg, primary="inspect", nodes={"task": {"data_root", "cache_dir"}})
    check_numbers(cfg)
    if not cfg.get("init"):
        raise ConfigError("init: give the run directory whose tokenizer reads the task (init=runs/pretrain/<name>)")
    source = open_saved(cfg.init, key="init")
    encoder = new_encoder(source.model_node, source.tokenizer, seed=0)
    task: Task = build(cfg.task, data_root=cfg.data_root, cache_dir=cfg.cache_dir)
    if getattr(task, "zero_shot", False):
        raise ConfigError(f"task={task.name}: is scored without training, so that there are no labels to inspect")
    console = Console(highlight=False)
    seen: dict[str, str] = {}
    for split in task.splits:
        try:
            examples = task.examples(split)
        except DataError as error:
            if split == "train" or len(task.splits) == 1:
                raise
            console.print(f"split {split}: {error}", markup=False, soft_wrap=True)
            continue
        encoded = encode_examples(task, examples, source.tokenizer, encoder)
        console.print(split_table(task, split, encoded, source.tokenizer))
        for line in remarks(encoded, split, seen):
            console.print(Text(f"note: {line}", style="yellow"), soft_wrap=True)
        if split == task.splits[0]:
            _print_examples(console, task, encoded, source.tokenizer, number=cfg.rows)
    for line in noted(task):
        console.print(Text(f"note: {line}", style="yellow"), soft_wrap=True)


def split_table(task: Task, split: str, encoded: EncodedExamples, tokenizer: Tokenizer) -> Table:
    """A split in numbers."""
    table = titled(f"task {task.name}, split {split}")
    num = len(encoded.examples)
    hidden = sum(not example.has_gold for example in encoded.examples)
    table.add_row("examples", f"{num:,}", f"{hidden:,} without gold answer" if hidden else "")
    if len(encoded) != num:
        table.add_row("sequences", f"{len(encoded):,}", "an example longer than the limit is cut into windows")
    marks = ", ".join(f"{value:,.0f}" for value in np.quantile(encoded.lengths, [0, 0.25, 0.5, 0.75, 0.99, 1]))
    table.add_row("length", f"{encoded.lengths.mean():,.1f}", f"tokens; shortest, quartiles, 99 %, longest: {marks}")
    table.add_row("cut", f"{encoded.num_truncated:,}", "examples that lose tokens to max_length")
    unknown = float((encoded.tokens_T == tokenizer.unk_id).mean())
    table.add_row("unknown", f"{unknown:.3%}", "of the tokens are [UNK]")
    for name, count in _answer_counts(task, encoded):
        table.add_row(name, f"{count:,}", f"{count / max(1, _num_answers(encoded)):.1%}")
    if task.head.kind == "span":
        reachable = num - hidden - len(encoded.unreachable)
        table.add_row("reachable", f"{reachable:,}", "gold answers that these tokens can give exactly")
    return table


def _num_answers(encoded: EncodedExamples) -> int:
    return len(encoded.targets.values)


def _answer_counts(task: Task, encoded: EncodedExamples) -> Iterator[tuple[str, int]]:
    if task.head.kind in ("classification", "tagging"):
        values = encoded.targets.values[:, -1]
        for index, name in enumerate(task.labels):
            yield name, int((values == index).sum())
    elif task.head.kind == "span":
        for index, name in enumerate(task.labels):
            yield name, int((encoded.targets.values[:, 2] == index).sum())


def remarks(encoded: EncodedExamples, split: str, seen: dict[str, str]) -> Iterator[str]:
    """What a user should know about a split.

    Args:
        encoded: the split.
        split: its name.
        seen: a text of each split read so far, by digest of its tokens; grows.
    """
    if encoded.unreachable:
        names = ", ".join(encoded.unreachable[:_NAMED])
        more = len(encoded.unreachable) - _NAMED
        yield (
            f"{len(encoded.unreachable):,} gold answers cannot be given exactly on these tokens: {names}"
            f"{f' and {more:,} more' if more > 0 else ''}"
        )
    own: set[bytes] = set()
    copies = 0
    shared: dict[str, int] = {}
    pieces = np.split(encoded.tokens_T, encoded.offsets[1:-1])
    for tokens in pieces:
        key = tokens.tobytes()
        if key in own:
            copies += 1
            continue
        own.add(key)
        other = seen.get(key.hex())
        if other is not None:
            shared[other] = shared.get(other, 0) + 1
    seen.update({key.hex(): split for key in own if key.hex() not in seen})
    if copies:
        yield f"{copies:,} sequences are copies of others of this split"
    for other, count in shared.items():
        yield f"{count:,} sequences are in split {other} too: what is learnt by heart there looks like skill here"


def _print_examples(
    console: Console, task: Task, encoded: EncodedExamples, tokenizer: Tokenizer, *, number: int
) -> None:
    for place in np.linspace(0, len(encoded) - 1, min(number, len(encoded))).astype(int).tolist():
        start, stop = encoded.offsets[place], encoded.offsets[place + 1]
        targets = encoded.targets.values[encoded.targets.rows_of(np.array([place]))]
        example = encoded.examples[encoded.owners[place]]
        console.print(Text(f"\n  {example.id}: {stop - start} tokens; {_asked(task, targets)}", style="dim"))
        console.print(Padding(_tokens(encoded.tokens_T[start:stop], targets, task, tokenizer), (0, 0, 0, 4)))
    console.print()


def _asked(task: Task, targets: np.ndarray) -> str:
    kind = task.head.kind
    if kind == "regression":
        return f"score {targets[0, 0]:g}"
    if kind == "classification":
        return "label hidden" if targets[0, 0] < 0 else f"label {task.labels[int(targets[0, 0])]}"
    if kind == "tagging":
        return f"{len(targets)} words"
    if targets[0, 2] >= 0:
        return f"answer: {task.labels[int(targets[0, 2])]}"
    return "no answer here" if targets[0, 0] < 0 else f"answer: tokens {targets[0, 0]} to {targets[0, 1]}"


def _tokens(tokens: Sequence[int] | np.ndarray, targets: np.ndarray, task: Task, tokenizer: Tokenizer) -> Text:
    """The pieces, with what is asked of them: an answer in bold, a tag behind its word."""
    kind, text = task.head.kind, Text()
    tags = {int(row[0]): int(row[2]) for row in targets} if kind == "tagging" else {}
    answer = range(0)
    if kind == "span" and targets[0, 0] >= 0:
        answer = range(int(targets[0, 0]), int(targets[0, 1]) + 1)
    for place, token in enumerate(int(token) for token in tokens):
        style = "bold green" if place in answer else "dim" if tokenizer.is_special[token] else ""
        text.append(tokenizer.piece(token), style=style)
        if tags.get(place, 0) > 0:
            text.append(f"/{task.labels[tags[place]]}", style="bold green")
        text.append(" ")
    return text

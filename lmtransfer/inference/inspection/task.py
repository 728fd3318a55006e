"""A labeled task as the model sees it: statistics of its splits, and examples with their labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lmtransfer.config.component import Node
from lmtransfer.config.settings import InspectSettings
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.inspection.tables import describe_lengths, table_with_title
from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.saved_run import new_encoder
from lmtransfer.system.console import Console
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.transfer.experiment.data import encode_examples, task_notes

#: Maximum number of example ids in a note.
_MAX_IDS = 5


def inspect_task(settings: InspectSettings, node: Node[Task], console: Console) -> None:
    """Print statistics and examples of each split of a task; write nothing."""
    if not settings.init:
        raise ConfigError("init: set the run whose tokenizer reads the task, such as init=runs/pretrain/<name>")
    source = open_saved(settings.init, key="init")
    encoder = new_encoder(source.model_node, source.tokenizer, seed=0)
    task = node.build(data_root=settings.data_root, cache_dir=settings.cache_dir)
    if task.zero_shot:
        raise ConfigError(f"task={task.name}: this task is scored without training, so it has no labels to inspect")
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
            _print_examples(console, task, encoded, source.tokenizer, count=settings.rows)
    for line in task_notes(task):
        console.print(Text(f"note: {line}", style="yellow"), soft_wrap=True)


def split_table(task: Task, split: str, encoded: EncodedExamples, tokenizer: Tokenizer) -> Table:
    """Tabulate the statistics of a split."""
    table = table_with_title(f"task {task.name}, split {split}")
    num = len(encoded.examples)
    hidden = sum(not example.has_gold for example in encoded.examples)
    table.add_row("examples", f"{num:,}", f"{hidden:,} without a gold answer" if hidden else "")
    if len(encoded) != num:
        table.add_row("sequences", f"{len(encoded):,}", "an example has several: windows or choices")
    table.add_row("length", *describe_lengths(encoded.lengths))
    table.add_row("cut", f"{encoded.num_truncated:,}", "examples truncated to max_length")
    unknown = float((encoded.tokens_T == tokenizer.unk_id).mean())
    table.add_row("unknown", f"{unknown:.3%}", "of the tokens are [UNK]")
    for name, count in task.head.counts(encoded.targets, task.labels):
        table.add_row(name, f"{count:,}", f"{count / max(1, len(encoded.targets)):.1%}")
    if task.head.may_be_unreachable:
        reachable = num - hidden - len(encoded.unreachable_ids)
        table.add_row("reachable", f"{reachable:,}", "gold answers that these tokens represent exactly")
    return table


def remarks(encoded: EncodedExamples, split: str, seen: dict[str, str]) -> Iterator[str]:
    """Yield notes for the user about a split.

    Args:
        seen: the first split with each text, by the text's tokens in hexadecimal; the texts of this split are added.
    """
    if encoded.unreachable_ids:
        names = ", ".join(encoded.unreachable_ids[:_MAX_IDS])
        more = len(encoded.unreachable_ids) - _MAX_IDS
        yield (
            f"{len(encoded.unreachable_ids):,} gold answers cannot be represented exactly by these tokens: {names}"
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
        yield f"{copies:,} sequences are copies of other sequences in this split"
    for other, count in shared.items():
        yield f"{count:,} sequences are also in split {other}: a model that memorized them there scores too high here"


def _print_examples(
    console: Console, task: Task, encoded: EncodedExamples, tokenizer: Tokenizer, *, count: int
) -> None:
    for place in np.linspace(0, len(encoded) - 1, min(count, len(encoded))).astype(int).tolist():
        start, stop = encoded.offsets[place], encoded.offsets[place + 1]
        targets = encoded.targets_of(np.array([place]))
        example = encoded.examples[encoded.owners[place]]
        expected_answer, marks = task.head.expected_answer(targets, task.labels), task.head.marks(targets, task.labels)
        console.print(Text(f"\n  {example.id}: {stop - start} tokens; {expected_answer}", style="dim"))
        console.print(Padding(_tokens(encoded.tokens_T[start:stop], marks, tokenizer), (0, 0, 0, 4)))
    console.print()


def _tokens(tokens: np.ndarray, marks: Mapping[int, str], tokenizer: Tokenizer) -> Text:
    """Render the pieces: an answer in bold, and each tag after its word."""
    text = Text()
    for place, token in enumerate(tokens.tolist()):
        in_answer = marks.get(place) == ""
        style = "bold green" if in_answer else "dim" if tokenizer.is_special[token] else ""
        text.append(tokenizer.piece(token), style=style)
        if marks.get(place):
            text.append(marks[place], style="bold green")
        text.append(" ")
    return text

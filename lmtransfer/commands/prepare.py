"""Train a tokenizer on a corpus, tokenize the corpus, and print its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lmtransfer.config.settings import PrepareSettings
from lmtransfer.data.token_cache import (
    PreparationProgress,
    PreparedCorpus,
    ShareOfBlocks,
    prepare,
    prepare_share,
    tokenizer_for,
)
from lmtransfer.inference.inspection.tables import parts_table, table_with_title
from lmtransfer.pretraining.text import build_corpus, examples_of, findings_table, screened_parts
from lmtransfer.system.console import Console
from lmtransfer.system.machine import cache_folder
from lmtransfer.tokenizers.base import Tokenizer

_HIGH_UNKNOWN_RATE = 0.01
_MANY_ACCENTS = 0.02  # share of words


def run(settings: PrepareSettings) -> None:
    """Prepare a corpus and print its statistics."""
    console = Console(highlight=False)
    cache_dir = cache_folder(settings.cache_dir)
    corpus = build_corpus(settings.corpus, settings.screening, data_root=settings.data_root, cache_dir=cache_dir)
    trainer = settings.tokenizer.build()
    for name, part in screened_parts(corpus).items():
        with console.status(f"screening {name}"):
            table = findings_table(name, part)
        console.print(table)
        for line in examples_of(part):
            console.print(line, soft_wrap=True)
    with console.status(f"tokenizer for {corpus.name}"):
        tokenizer = tokenizer_for(corpus, trainer, cache_dir=cache_dir)
    if settings.shard is not None:
        with preparing_line(console, corpus.name) as on_progress:
            share = prepare_share(
                corpus,
                tokenizer,
                ShareOfBlocks.of(settings.shard),
                cache_dir=cache_dir,
                num_workers=settings.num_workers,
                on_progress=on_progress,
            )
        console.print(
            f"shard {settings.shard} of {corpus.name}: {share.num_own:,} of {share.num_blocks:,} blocks are complete, "
            f"{share.num_reused:,} of them from an earlier run"
        )
        console.print("next, when all shards are complete: the same command without shard", soft_wrap=True)
        return
    with preparing_line(console, corpus.name) as on_progress:
        prepared = prepare(
            corpus, tokenizer, cache_dir=cache_dir, num_workers=settings.num_workers, on_progress=on_progress
        )
    console.print(statistics_table(corpus.name, prepared, tokenizer))
    parts = parts_table(prepared, tokenizer)
    if parts is not None:
        console.print(parts)
    for line in remarks_on(prepared, tokenizer):
        console.print(line, soft_wrap=True)
    console.print(f"\nstored in {prepared.folder}", soft_wrap=True)
    console.print("next: lmtransfer pretrain with the same corpus and tokenizer settings", soft_wrap=True)


@contextmanager
def preparing_line(console: Console, name: str) -> Iterator[Callable[[PreparationProgress], None]]:
    """Show a progress line if the console is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"tokenizing {name}", total=None, done="")

        def on_progress(state: PreparationProgress) -> None:
            reused = f", {state.num_reused_blocks} blocks reused" if state.num_reused_blocks else ""
            progress.update(
                task,
                total=None if state.fraction is None else 1.0,
                completed=state.fraction or 0.0,
                done=f"{state.documents:,} documents, {state.tokens:,} tokens{reused}",
            )

        yield on_progress


def statistics_table(name: str, prepared: PreparedCorpus, tokenizer: Tokenizer) -> Table:
    """Build a table with statistics of the corpus and its tokens."""
    statistics = prepared.statistics
    table = table_with_title(f"corpus {name}")
    share = statistics.validation_tokens / statistics.tokens
    table.add_row("documents", f"{statistics.documents:,}", f"{statistics.duplicate_documents:,} exact duplicates")
    table.add_row("validation", f"{statistics.validation_documents:,}", f"documents, {share:.2%} of the tokens")
    table.add_row("sentences", f"{statistics.sentences:,}", f"longest: {statistics.longest_sentence_tokens:,} tokens")
    table.add_row("words", f"{statistics.words:,}", f"{statistics.text_bytes / 1e6:,.1f} MB of text")
    table.add_row("tokens", f"{statistics.tokens:,}", f"{statistics.tokens / max(1, statistics.words):.2f} per word")
    table.add_row("unknown", f"{statistics.unknown_rate:.3%}", "of the tokens")
    table.add_row("vocabulary", f"{tokenizer.num_pieces:,}", _trained_on(tokenizer))
    when = "read from the cache" if prepared.from_cache else "tokenized now"
    table.add_row("seconds", f"{statistics.seconds:,.1f}", when)
    return table


def remarks_on(prepared: PreparedCorpus, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield warnings about the corpus that its statistics do not make obvious."""
    statistics = prepared.statistics
    for kind, note in statistics.notes.items():
        yield f"unusual: {kind}: {note['count']:,} (first at {note['first']})"
    if statistics.unknown_rate > _HIGH_UNKNOWN_RATE:
        yield f"many unknown tokens ({statistics.unknown_rate:.1%}): {tokenizer.unknown_advice}"
    lost = tokenizer.training.get("lost_accents") or {"share": 0}
    if lost["share"] > _MANY_ACCENTS:
        yield (
            f"lower-casing removes the accents of {lost['share']:.0%} of the words "
            f"({' becomes '.join(lost['example'])}): tokenizer.lowercase=false keeps them"
        )
    if prepared.validation.num_tokens == 0:
        yield "no text is held out: the corpus has a single sentence, or corpus.validation_fraction is 0"


def _trained_on(tokenizer: Tokenizer) -> str:
    counts = tokenizer.training
    if "pieces_used" not in counts:
        return ""
    text = f"pieces, trained on {counts['pieces_used']:,} of {counts['pieces_seen']:,} lines"
    return f"{text} ({counts['lines_split']:,} cut)" if counts["lines_split"] else text

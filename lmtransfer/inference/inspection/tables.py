"""The tables of ``inspect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
from rich import box
from rich.table import Table

from lmtransfer.config.settings import TrainSettings
from lmtransfer.data.token_cache import PreparedCorpus
from lmtransfer.data.token_frequencies import part_shares
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.inference.inspection.cost import StepCost
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.row_display import RowCounts
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.flops import peak_of

#: Maximum number of sentences or documents, spread over the corpus, whose lengths are measured.
_LENGTHS = 100_000


def table_with_title(title: str) -> Table:
    """Create a table with three columns: name, value, remark."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    return table


def corpus_table(name: str, prepared: PreparedCorpus, tokenizer: Tokenizer) -> Table:
    """Tabulate the statistics of a single corpus (not a mixture)."""
    statistics, train = prepared.statistics, cast(TokenStore, prepared.train)
    table = table_with_title(f"corpus {name}")
    held_out = f"{prepared.validation.num_documents:,} more are held out for validation"
    table.add_row("documents", f"{train.num_documents:,}", held_out)
    share = statistics.duplicate_documents / max(1, statistics.documents)
    table.add_row("duplicates", f"{statistics.duplicate_documents:,}", f"copies of earlier documents ({share:.2%})")
    table.add_row("tokens", f"{train.num_tokens:,}", f"{statistics.tokens / max(1, statistics.words):.2f} per word")
    table.add_row("unknown", f"{statistics.unknown_rate:.3%}", "of the tokens are [UNK]")
    rare = f"pieces, of which {_rare_pieces(train, tokenizer):,} are rare or never occur"
    table.add_row("vocabulary", f"{tokenizer.num_pieces:,}", rare)
    documents = train.sentence_starts[train.document_starts]
    for what, starts in (("sentences", train.sentence_starts), ("documents", documents)):
        table.add_row(f"{what}' length", *_lengths(starts))
    return table


def _rare_pieces(store: TokenStore, tokenizer: Tokenizer, *, tokens: int = 1_000_000, rare: int = 3) -> int:
    """Count the non-special pieces that occur fewer than ``rare`` times in the first ``tokens`` tokens."""
    counts = np.bincount(store.tokens(0, min(tokens, store.num_tokens)), minlength=tokenizer.num_pieces)
    ordinary = counts[: tokenizer.num_pieces][~tokenizer.is_special[: tokenizer.num_pieces]]
    return int((ordinary < rare).sum())


def _lengths(starts: np.ndarray) -> tuple[str, str]:
    places = np.unique(np.linspace(0, len(starts) - 2, min(len(starts) - 1, _LENGTHS)).astype(np.int64))
    return describe_lengths(starts[places + 1] - starts[places])


def describe_lengths(lengths: np.ndarray) -> tuple[str, str]:
    """Return the mean and the quantiles of lengths in tokens, as table cells."""
    marks = ", ".join(f"{value:,.0f}" for value in np.quantile(lengths, [0, 0.25, 0.5, 0.75, 0.99, 1]))
    return f"{lengths.mean():,.1f}", f"tokens; shortest, quartiles, 99 %, longest: {marks}"


def parts_table(prepared: PreparedCorpus, tokenizer: Tokenizer) -> Table | None:
    """Build a table with one line per part of a mixture; None for a single corpus."""
    if not isinstance(prepared.train, MixedStore):
        return None
    shares = part_shares(prepared.train, tokenizer)
    table = Table(
        title=f"parts, sampled {prepared.train.sampling}",
        title_justify="left",
        title_style="bold",
        caption="sampled: share of an epoch's tokens; passes: number of passes over a part in an epoch; pieces: "
        "share of the vocabulary that makes up 99.9 % of a part's tokens; own: share of the vocabulary that is more "
        "frequent in this part than in any other",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("part", no_wrap=True)
    for heading in ("tokens", "of all", "sampled", "passes", "per word", "unknown", "pieces", "own"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, part in prepared.parts.items():
        part_share, statistics = shares[name], part.statistics
        table.add_row(
            name,
            f"{statistics.tokens:,}",
            f"{part_share.share:.1%}",
            f"{part_share.sampled:.1%}",
            f"{part_share.passes:.2f}",
            f"{statistics.tokens / max(1, statistics.words):.2f}",
            f"{statistics.unknown_rate:.3%}",
            f"{part_share.vocabulary:.1%}",
            f"{part_share.own:.1%}",
        )
    return table


def rates_table(
    lengths: np.ndarray, counts: RowCounts, rows: Rows, *, epoch: int, steps: int, train: TrainSettings
) -> Table:
    """Tabulate the rows of an epoch and their measured masking rates."""
    table = table_with_title(f"rows of epoch {epoch}")
    table.add_row("rows", f"{len(lengths):,}", type(rows).__name__)
    table.add_row("tokens", f"{lengths.sum(dtype=np.int64):,}", f"{counts.num_special / counts.tokens:.1%} are special")
    marks = ", ".join(f"{value:.0f}" for value in np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1]))
    table.add_row("length", f"{lengths.mean():.1f}", f"shortest, quartiles, longest: {marks}")
    budget = f"{train.batch_tokens:,} tokens" if train.batch_tokens else f"{train.batch_examples:,} rows"
    table.add_row("steps", f"{steps:,}", f"per epoch, each of at most {budget}")
    if counts.num_hidden:
        remark = f"of all tokens ({counts.rows:,} rows counted; special tokens among them: {counts.num_special_hidden})"
        table.add_row("hidden", f"{counts.num_hidden / counts.tokens:.2%}", remark)
        for what, number in (
            ("[MASK]", counts.num_masked),
            ("another token", counts.num_replaced),
            ("unchanged", counts.num_unchanged),
        ):
            table.add_row("", f"{number / counts.num_hidden:.1%}", f"of the masked tokens: {what}")
    for name, meanings in rows.label_names.items():
        values = counts.labels[name]
        for value, meaning in enumerate(meanings):
            table.add_row(f"{name} {value}", f"{values[value] / counts.rows:.1%}", f"of the rows: {meaning}")
    return table


def packing_table(batch: PretrainingBatch, counts: Mapping[str, int]) -> Table:
    """Tabulate the rows, tokens and predictions of one forward pass."""
    table = table_with_title("first forward pass: rows end to end, without padding")
    lengths = batch.inputs.lengths
    table.add_row("rows", f"{batch.inputs.num_real:,}", f"of {min(lengths)} to {max(lengths)} tokens")
    table.add_row("tokens", f"{batch.num_tokens:,}", "")
    num_outputs = batch.num_tokens if batch.output_positions is None else len(batch.output_positions.positions_N)
    table.add_row("last layer", f"{num_outputs:,}", "positions at which it is computed")
    for name, count in counts.items():
        if not name.endswith(("_accuracy", "_replaced", "_found")):
            table.add_row(name, f"{count:,}", "predictions; the loss is their mean")
    return table


def parameter_table(name: str, counts: Mapping[str, int], *, frozen: int) -> Table:
    """Tabulate the parameters by part."""
    table = table_with_title(f"parameters of {name}")
    for part, count in counts.items():
        table.add_row(part, f"{count:,}", "")
    if frozen:
        table.add_row("not trained", f"{frozen:,}", "the pooler, which no objective uses")
    return table


def cost_table(cost: StepCost, *, tokens: int, steps: int, pass_tokens: int, train: TrainSettings) -> Table:
    """Tabulate estimated memory and time.

    Args:
        tokens: number of tokens in an epoch.
        steps: number of steps in an epoch.
        pass_tokens: number of tokens in a forward pass.
    """
    table = table_with_title("estimate from a few steps without compilation")
    fixed = cost.peak_bytes(0)
    parts = ("weights", cost.weight_bytes), ("gradients", cost.gradient_bytes), ("optimizer", cost.state_bytes)
    table.add_row("memory", _format_size(fixed), ", ".join(f"{name} {_format_size(size)}" for name, size in parts))
    table.add_row(
        "", _format_size(cost.peak_bytes(pass_tokens)), f"with the activations of {pass_tokens:,} tokens in a pass"
    )
    seconds = cost.step_seconds(tokens / steps)
    table.add_row("speed", f"{tokens / steps / seconds:,.0f}", f"tokens/s; {1e3 * seconds:,.0f} ms per step")
    table.add_row("an epoch", format_duration(seconds * steps), f"{steps:,} steps")
    budget = _budget_steps(train, seconds=seconds, tokens=tokens / steps, steps=steps)
    if budget is not None:
        amounts = f"{budget:,.0f} steps, {budget * tokens / steps / 1e6:,.1f}M tokens, {budget / steps:,.2f} epochs"
        table.add_row("this budget", format_duration(seconds * budget), amounts)
    return table


#: Estimated share of a GPU's peak rate that training reaches.
_UTILIZATION = 0.4


def gpu_table(
    train: TrainSettings, *, tokens: float, steps: int, flops: float, memory: Callable[[int], int]
) -> Table | None:
    """Tabulate the time that GPUs need for the budget; None if the budget is a duration.

    Args:
        tokens: number of tokens in an epoch.
        steps: number of steps in an epoch.
        flops: training FLOP per token.
        memory: peak memory of training in bytes, as a function of the number of tokens in a forward pass.
    """
    if (
        train.seconds is not None
        or (budget := _budget_steps(train, seconds=1.0, tokens=tokens / steps, steps=steps)) is None
    ):
        return None
    table = table_with_title(f"this budget on a GPU, estimated at {_UTILIZATION:.0%} of its peak rate")
    num_tokens = budget * tokens / steps
    tokens_text = f"{num_tokens:,.3g}" if num_tokens < 1e6 else f"{num_tokens / 1e6:,.0f}M"
    table.add_row("tokens", tokens_text, f"{flops / 1e6:,.3g} MFLOP each")
    table.add_row("in all", f"{num_tokens * flops:.2e}", "FLOP")
    for gpu in ("A100", "H100"):
        table.add_row(f"one {gpu}", format_duration(num_tokens * flops / (_UTILIZATION * peak_of(gpu))), "")
    assert train.batch_tokens is not None
    pass_tokens = min(train.batch_tokens, train.micro_batch_tokens or train.batch_tokens)
    table.add_row("memory", _format_size(memory(pass_tokens)), f"with {pass_tokens:,} tokens in a forward pass")
    return table


def _budget_steps(train: TrainSettings, *, seconds: float, tokens: float, steps: int) -> float | None:
    """Return the number of steps in the budget, given a step's seconds and tokens and the number of steps per epoch."""
    budgets = (
        (train.steps, 1.0),
        (train.tokens, 1 / tokens),
        (train.epochs, float(steps)),
        (train.seconds, 1 / seconds),
    )
    return next((amount * factor for amount, factor in budgets if amount is not None), None)


def format_duration(seconds: float) -> str:
    """Format a duration in a readable unit."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _format_size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e10 else f"{num_bytes / 1e6:,.0f} MB"

"""The messages of pretraining before the first and after the last step."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from lmtransfer.config.budget import KINDS
from lmtransfer.config.revisions import count_text, with_revision
from lmtransfer.pretraining.build import PretrainingParts
from lmtransfer.pretraining.counted_embeddings import Start
from lmtransfer.pretraining.phases import Pretraining
from lmtransfer.pretraining.text import Text
from lmtransfer.runs.result import RunResult
from lmtransfer.system.console import Console
from lmtransfer.system.printable import count, format_metric, short_path

#: Minimum share of the output matrices in the FLOP, and vocabulary size that must be exceeded, for a note.
_LARGE_SHARE, _SMALL_VOCABULARY = 0.6, 8192
#: Number of sampled classes that this note suggests.
_SAMPLED = 4096


def opening_message(path: Path, pretraining: Pretraining) -> str:
    """Return a message that states the model, losses, corpus, budget, hardware and run directory."""
    text, phases, average = pretraining.text, pretraining.phases, pretraining.average
    encoder = phases[-1].parts.encoder
    parameters = sum(p.numel() for p in encoder.parameters())
    names = _losses(phases[-1].parts)
    if len(phases) > 1:
        names = ", then ".join(f"{_losses(phase.parts)} ({phase.name}, {100 * phase.share:.3g} %)" for phase in phases)
    budgets = ((kind, getattr(pretraining.train, kind)) for kind in KINDS)
    kind, value = next((kind, value) for kind, value in budgets if value is not None)
    budget = f"{value} {kind}" if isinstance(value, str) else f"{value:g} {kind if value != 1 else kind[:-1]}"
    averaged = "" if average is None else f"\nthe average of the weights is validated and saved ({average})"
    return (
        f"pretraining {type(encoder).__name__} ({parameters / 1e6:.1f}M parameters) with {names} on "
        f"{text.corpus.name} ({text.prepared.train.num_tokens / 1e6:.1f}M tokens, a vocabulary of "
        f"{text.tokenizer.num_pieces:,}) for {budget}, on {pretraining.hardware}"
        f"{averaged}\nrun: {path}"
    )


def counting_message(start: Start, *, budget: float | None) -> str:
    """Return a message on counted embeddings; ``budget`` is in seconds and includes counting."""
    tokens, seconds = f"{count(start.num_tokens)} tokens", start.seconds
    if start.vectors_VP is None:
        message = f"token embeddings start from counts of {tokens}; counting took {seconds:.1f} s"
    else:
        message = (
            f"word vectors start from counts of {tokens}: the first layer reproduces {100 * start.explained:.0f} % of "
            f"their variance from characters; this took {seconds:.1f} s"
        )
    if start.cut:
        return f"{message}; the rest of the text is not counted, to leave half of train.seconds={budget:g} for training"
    if budget is None or seconds < budget / 2:
        return message
    return (
        f"{message}\nwarning: this is {100 * seconds / budget:.0f} % of train.seconds={budget:g}: raise train.seconds, "
        "count less with embeddings=counted or embeddings.max_tokens, or use random embeddings with embeddings=null"
    )


def large_output_note(share: float, text: Text) -> str | None:
    """Suggest a sampled softmax or a smaller vocabulary if the output matrix takes most of the computation."""
    num_pieces = text.tokenizer.num_pieces
    if share < _LARGE_SHARE or num_pieces <= _SMALL_VOCABULARY:
        return None
    return (
        f"predicting {num_pieces:,} pieces takes {100 * share:.0f} % of the computation; steps are faster with a "
        f"sampled softmax (objective.losses.<loss>.num_sampled={_SAMPLED}) or a vocabulary of {_SMALL_VOCABULARY:,} "
        f"pieces (tokenizer.vocab_size={_SMALL_VOCABULARY})"
    )


def _losses(parts: PretrainingParts) -> str:
    return " + ".join(objective.name for objective in parts.objectives)


def print_closing(path: Path, result: RunResult, *, console: Console) -> None:
    """Print the result as a table."""
    table = Table(box=None, show_header=False)
    of_parts: dict[str, dict[str, float]] = {}
    for name, value in result.metrics.items():
        loss, _, part = name.partition("/")
        if part:
            of_parts.setdefault(part, {})[loss] = value
        else:
            table.add_row(f"validation {name}", f"{value:.4f}")
    if "unigram_entropy" in result.more:
        table.add_row(
            "unigram entropy",
            f"{result.more['unigram_entropy']:.4f}  (an MLM loss well below this means that the model uses context)",
        )
    if result.more["checkpoint_step"] != result.more["steps"]:
        table.add_row(
            "measured at", f"step {result.more['checkpoint_step']:,}, the best checkpoint, from which transfer starts"
        )
    if averaged := result.more.get("weights"):
        table.add_row("weights", averaged)
    if started := result.more.get("phases"):
        table.add_row("phases", ", ".join(f"{phase['name']} from step {phase['step'] + 1:,}" for phase in started))
    if revisions := result.more.get("revisions"):
        last = with_revision(short_path(path), revisions[-1])
        table.add_row("revisions", f"{', '.join(map(count_text, revisions))} tokens; start from one with init={last}")
    if "words" in result.more:
        table.add_row("words", f"{result.more['words']:,} read; the text has {result.more['text_words']:,}")
    table.add_row("steps, tokens", f"{result.more['steps']:,}, {result.tokens:,} ({result.more['epochs']:.2f} epochs)")
    if result.tokens_per_second is not None:
        speed = f"{result.tokens_per_second:,.0f} tokens/s over {result.seconds:,.0f} s, with evaluation and saving"
        table.add_row("speed", speed)
    console.print(table)
    if of_parts:
        names = list(dict.fromkeys(name for losses in of_parts.values() for name in losses))
        table = Table("validation", *names, box=None)
        for part, losses in of_parts.items():
            table.add_row(part, *(f"{losses[name]:.4f}" if name in losses else "" for name in names))
        console.print(table)


def print_seeds_closing(result: RunResult, *, console: Console) -> None:
    """Print a table with one row per seed."""
    metric = result.main_metric
    if metric:
        table = Table("seed", f"validation {metric}", box=box.SIMPLE_HEAD)
        for seed in result.more["seeds"]:
            table.add_row(str(seed["seed"]), format_metric(seed["metrics"][metric], metric))
        deviation, mean = result.more["deviation"], format_metric(result.more["mean"], metric)
        table.add_row(
            "mean", mean if deviation is None else f"{mean} +- {format_metric(deviation, metric)}", style="bold"
        )
        console.print(table)

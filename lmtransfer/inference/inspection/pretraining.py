"""A corpus as the model sees it: rows with their masked positions, their packing, and the cost of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from rich.padding import Padding
from rich.text import Text as Styled

from lmtransfer.config.settings import InspectSettings
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_cache import PreparedCorpus
from lmtransfer.inference.inspection.cost import (
    StepCost,
    estimate_gpu_memory,
    measurable_rows,
    measure,
    parameter_counts,
)
from lmtransfer.inference.inspection.tables import (
    corpus_table,
    cost_table,
    gpu_table,
    packing_table,
    parameter_table,
    parts_table,
    rates_table,
)
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.row_display import RowCounts, RowView, count_rows, row_views
from lmtransfer.objectives.rows.base import RowPlan, Rows
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.build import PretrainingParts, build_parts
from lmtransfer.pretraining.text import Text, findings_table, read_training_text, screened_parts
from lmtransfer.pretraining.utilization import learning_flops
from lmtransfer.randomness import derive_seed, permutation
from lmtransfer.runs.training_setup import build_optimizer, prepare_encoders
from lmtransfer.system.console import Console
from lmtransfer.tokenizers.base import Tokenizer, characters_of
from lmtransfer.training.hardware import Hardware, setup

_META = "\u2581"
_STYLES = {"masked": "bold red", "replaced": "bold yellow", "kept": "bold cyan", "special": "dim", "plain": ""}

#: The meaning of the marks.
LEGEND = Styled.assemble(
    ("{film}", _STYLES["masked"]),
    " masked, shown as [MASK]  ",
    ("{film>dog}", _STYLES["replaced"]),
    " masked, replaced by another token  ",
    ("{film=}", _STYLES["kept"]),
    " masked, unchanged  film|s one word of two tokens",
)
#: The same for rows without masked positions.
PLAIN_LEGEND = Styled("film|s one word of two tokens")
#: The meaning of the characters in a strip.
STRIP_LEGEND = Styled.assemble(
    "one character per token: . visible  ",
    ("#", _STYLES["masked"]),
    " masked  ",
    ("|", _STYLES["special"]),
    " special",
)


def render_row(view: RowView, tokenizer: Tokenizer) -> Styled:
    """Render the tokens of a row with marks; the texts of a pair are two paragraphs."""
    text = Styled()
    for place, token in enumerate(view.original.tolist()):
        if place and view.segments[place] != view.segments[place - 1]:
            text.append("\n")
        elif place and (tokenizer.starts_word[token] or tokenizer.is_special[token]):
            text.append(" ")
        elif place:
            text.append("|", style="dim")
        text.append_text(_token(view, place, tokenizer))
    return text


def render_strip(view: RowView, tokenizer: Tokenizer) -> Styled:
    """Render a row as a strip: one character per token."""
    text = Styled()
    for token, is_hidden in zip(view.original.tolist(), view.is_hidden.tolist(), strict=True):
        if is_hidden:
            text.append("#", style=_STYLES["masked"])
        elif tokenizer.is_special[token]:
            text.append("|", style=_STYLES["special"])
        else:
            text.append(".")
    return text


def _token(view: RowView, place: int, tokenizer: Tokenizer) -> Styled:
    original, input_token = int(view.original[place]), int(view.inputs[place])
    name = _piece(original, tokenizer)
    if not view.is_hidden[place]:
        return Styled(name, style=_STYLES["special" if tokenizer.is_special[original] else "plain"])
    if input_token == tokenizer.mask_id:
        return Styled(f"{{{name}}}", style=_STYLES["masked"])
    if input_token == original:
        return Styled(f"{{{name}=}}", style=_STYLES["kept"])
    return Styled(f"{{{name}>{_piece(input_token, tokenizer)}}}", style=_STYLES["replaced"])


def _piece(token: int, tokenizer: Tokenizer) -> str:
    """Return the piece without its mark for the start of a word; the mark alone becomes an underscore."""
    return tokenizer.piece(token).removeprefix(_META) or "_"


#: Number of rows built at a time for counting.
_COUNT_GROUP = 64
_MANY_DUPLICATES, _MANY_UNKNOWN = 0.01, 0.01
_FEW_STEPS = 20
#: A pass's memory is estimated from this number of rows and from twice as many; the second value limits their length.
_FEW_ROWS, _SHORT_ROW = 4, 128
#: If the mean row length is below this share of the maximum, the user gets a note.
_SHORT = 0.5


def inspect_pretraining(settings: InspectSettings, console: Console) -> None:
    """Print what a model sees of the corpus, and the cost of training; write nothing but the corpus cache."""
    train, epoch = settings.train, settings.epoch
    hardware = setup(**settings.hardware.model_dump())
    with Console(stderr=True).status("reading the corpus"):
        text = read_training_text(settings)
    parts = build_parts(settings, text.tokenizer)
    parts.corruption.observe(text.prepared.train)
    learner = _learner(parts, seed=settings.seed, hardware=hardware)
    source = _source(settings, text, parts, parts.rows)
    stream = PlannedStream(
        source, seed=settings.seed, batch_tokens=train.batch_tokens, micro_batch_tokens=train.micro_batch_tokens
    )
    plan, steps = source.plan(epoch), stream.steps_in(epoch)
    counts = _count_rows(source, plan, text.tokenizer, epoch=epoch, seed=settings.seed, sample=settings.sample)
    first_step = sum(stream.steps_in(earlier) for earlier in range(epoch))
    batch = cast(PretrainingBatch, next(stream.steps(first_step)).micro_batches[0])

    for name, part in screened_parts(text.corpus).items():
        console.print(findings_table(name, part))
    for name, prepared in (text.prepared.parts or {text.corpus.name: text.prepared}).items():
        console.print(corpus_table(name, prepared, text.tokenizer))
    parts_of_mixture = parts_table(text.prepared, text.tokenizer)
    if parts_of_mixture is not None:
        console.print(parts_of_mixture)
    _print_rows(console, batch, text.tokenizer, parts.rows, count=settings.rows)
    console.print(rates_table(plan.lengths, counts, parts.rows, epoch=epoch, steps=steps, train=train))
    console.print(packing_table(batch, learner.counts(batch)))
    _print_strips(console, batch, text.tokenizer, count=settings.strips)
    frozen = sum(p.numel() for p in learner.parameters() if not p.requires_grad)
    console.print(parameter_table(type(parts.encoder).__name__, parameter_counts(learner), frozen=frozen))
    console.print(f"computes on {hardware}", soft_wrap=True)
    share = parts.corruption.expected_targets(1 << 16) / (1 << 16) or 1.0
    token_flops = learning_flops(learner, mean_length=float(plan.lengths.mean()), target_share=share)
    gpus = gpu_table(
        train,
        tokens=int(plan.lengths.sum(dtype=np.int64)),
        steps=steps,
        flops=token_flops,
        memory=lambda tokens: estimate_gpu_memory(
            learner, _two_sizes(settings, text, parts), tokens=tokens, device=hardware.device, seed=settings.seed
        ),
    )
    if gpus is not None:
        console.print(gpus)
    if settings.measure:
        cost = _measure_cost(settings, learner, source, plan, batch, hardware)
        tokens, pass_tokens = int(plan.lengths.sum(dtype=np.int64)), batch.num_tokens
        console.print(cost_table(cost, tokens=tokens, steps=steps, pass_tokens=pass_tokens, train=train))
    for line in _remarks(text.prepared, text.tokenizer, plan.lengths, counts, parts.rows, steps=steps):
        console.print(Styled(f"note: {line}", style="yellow"), soft_wrap=True)


def _learner(parts: PretrainingParts, *, seed: int, hardware: Hardware) -> PretrainingLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "heads"))
        learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(hardware.device)
    prepare_encoders(learner, replace(hardware, compile=False))  # compilation takes longer than all measured steps
    return learner


def _count_rows(
    source: PretrainingSource, plan: RowPlan, tokenizer: Tokenizer, *, epoch: int, seed: int, sample: int
) -> RowCounts:
    rows = permutation(len(plan.lengths), seed, "sample")[:sample]
    batches = (
        source.build(epoch, plan, rows[start : start + _COUNT_GROUP]) for start in range(0, len(rows), _COUNT_GROUP)
    )
    return count_rows((view for batch in batches for view in row_views(batch)), tokenizer)


def _print_rows(console: Console, batch: PretrainingBatch, tokenizer: Tokenizer, rows: Rows, *, count: int) -> None:
    views = list(row_views(batch))
    # Rows in the batch are sorted by length, so take some of each length.
    places = np.linspace(0, len(views) - 1, min(count, len(views))).astype(int).tolist()
    if not places:
        return
    console.print(Styled(f"{len(places)} rows of the first batch", style="bold"))
    console.print(LEGEND if batch.num_targets else PLAIN_LEGEND, soft_wrap=True)
    for view in (views[place] for place in places):
        names = rows.label_names
        labels = ", ".join(f"{key} {value}: {names[key][value]}" for key, value in view.labels.items() if key in names)
        hidden = f", {view.is_hidden.sum()} of them masked" if batch.num_targets else ""
        heading = f"{view.key}: {len(view.original)} tokens{hidden}"
        console.print(Styled(f"\n  {heading}{'; ' if labels else ''}{labels}", style="dim"), soft_wrap=True)
        console.print(Padding(render_row(view, tokenizer), (0, 0, 0, 4)))
    console.print()


def _print_strips(console: Console, batch: PretrainingBatch, tokenizer: Tokenizer, *, count: int) -> None:
    views = list(row_views(batch))[:count]
    if views and batch.num_targets:
        console.print(STRIP_LEGEND, soft_wrap=True)
        for view in views:
            console.print(Padding(render_strip(view, tokenizer), (0, 0, 0, 4)))


def _source(settings: InspectSettings, text: Text, parts: PretrainingParts, rows: Rows) -> PretrainingSource:
    return PretrainingSource(
        store=text.prepared.train,
        rows=rows,
        corruption=parts.corruption,
        seed=settings.seed,
        output_positions=collect_output_positions(parts.objectives),
        characters=characters_of(text.tokenizer),
    )


def _two_sizes(settings: InspectSettings, text: Text, parts: PretrainingParts) -> list[PretrainingBatch]:
    """Build two small batches of short rows, the second with more rows.

    On a GPU, the memory that the backward pass needs per token does not depend on the length of the rows; on other
    devices it is larger in long rows.
    """
    length = min(_SHORT_ROW, parts.rows.max_length)
    short = settings.objective.rows.replace(max_length=length).build(tokenizer=text.tokenizer)
    source = _source(settings, text, parts, short)
    plan = source.plan(0)
    sizes = (min(number, len(plan.lengths)) for number in (_FEW_ROWS, 2 * _FEW_ROWS))
    return [source.build(0, plan, range(size)) for size in sizes]


def _measure_cost(
    settings: InspectSettings,
    learner: PretrainingLearner,
    source: PretrainingSource,
    plan: RowPlan,
    batch: PretrainingBatch,
    hardware: Hardware,
) -> StepCost:
    """Measure with rows of all lengths in the epoch: as many as fit in a forward pass, or fewer on a slow device."""
    number = measurable_rows(batch, learner, hardware.device)
    by_length = np.argsort(plan.lengths, kind="stable")
    rows = by_length[np.linspace(0, len(by_length) - 1, min(number, len(by_length))).astype(int)]
    with Console(stderr=True).status("measuring a few training steps"):
        return measure(
            learner,
            build_optimizer(settings.optimizer, learner),
            source.build(settings.epoch, plan, rows),
            hardware=hardware,
            seed=settings.seed,
        )


def _remarks(
    prepared: PreparedCorpus, tokenizer: Tokenizer, lengths: np.ndarray, counts: RowCounts, rows: Rows, *, steps: int
) -> Iterator[str]:
    """Yield notes for the user on what stands out in the numbers: one sentence each, with advice."""
    statistics = prepared.statistics
    for kind, note in statistics.notes.items():
        yield f"{kind}: {note['count']:,} (first at {note['first']})"
    if statistics.duplicate_documents > _MANY_DUPLICATES * statistics.documents:
        share = statistics.duplicate_documents / statistics.documents
        yield f"{share:.1%} of the documents are copies of others, which a model memorizes: remove the copies"
    if statistics.unknown_rate > _MANY_UNKNOWN:
        yield f"{statistics.unknown_rate:.1%} of the tokens are unknown: {tokenizer.unknown_advice}"
    if prepared.validation.num_tokens == 0:
        yield "no documents are held out, so there will be no validation: increase corpus.validation_fraction"
    if lengths.mean() < _SHORT * rows.max_length:
        yield (
            f"rows have {lengths.mean():.0f} tokens on average, but objective.max_length={rows.max_length} allows "
            f"more: use objective/rows=stream or full_sentences to fill them"
        )
    for name, meanings in rows.label_names.items():
        values = counts.labels[name]
        if len(values) == 1:
            (value,) = values
            yield (
                f"every row has {name} {value} ({meanings[value]}), so the model learns nothing from "
                "this label: use documents with several sentences"
            )
    if steps < _FEW_STEPS:
        yield f"an epoch has only {steps} steps, and a model soon memorizes a small corpus: add more text"

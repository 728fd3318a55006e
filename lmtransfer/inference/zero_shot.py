"""Zero-shot evaluation: scores a run on a task that needs neither a head nor training, and writes a run directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from rich import box
from rich.table import Table

from lmtransfer.config.component import Node
from lmtransfer.config.revisions import count_text
from lmtransfer.config.settings import EvaluateSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, DataError, RunDirectoryError
from lmtransfer.inference.completions import score_completions
from lmtransfer.inference.pretrained import ZeroShotScores
from lmtransfer.runs.predictions import file_name, is_kept, write_predictions
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun, pretraining_seed, pretraining_seeds
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system.console import Console
from lmtransfer.system.durable import write_text
from lmtransfer.system.printable import format_metric, in_percent, short_path
from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.metrics.scored_examples import Predictions, undefined_metrics
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.regression import CHANCE, SentenceSimilarity
from lmtransfer.tasks.zero_shot.choices import gain_text
from lmtransfer.tasks.zero_shot.task import CompletionTask, Findings
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters
from lmtransfer.transfer.embedder import (
    Embedder,
    TextVectors,
    VectorChoice,
    open_embedder,
    open_run_to_embed,
    scale_vectors,
    with_random_encoder,
)
from lmtransfer.transfer.experiment.data import task_notes
from lmtransfer.transfer.standardizer import Standardizer


def score_similarity(task: SentenceSimilarity, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Correlate cosines with gold scores, for the run and for the same encoder with random weights.

    Args:
        task: the pairs, and how to turn a sentence into a vector.

    Raises:
        ConfigError: the pooling or the layers do not fit the run.
        DataError: the split is missing or malformed, or its scores are hidden.
    """
    choice = VectorChoice(task.settings.layers, task.settings.pooling, prefix="task.")
    embedder = open_embedder(saved, choice, hardware=hardware, max_length=task.max_length)
    pairs = task.examples(split)
    hidden = sum(not pair.has_gold for pair in pairs)
    if hidden:
        raise DataError(
            f"split={split}: {hidden} of {len(pairs)} pairs of task {task.name} have no score (published test scores "
            "are hidden); set split=dev"
        )
    start_time = time.monotonic()
    embedded = _embed(pairs, embedder)
    answers = _answers(embedded, task)
    seconds = time.monotonic() - start_time
    control = _answers(_embed(pairs, with_random_encoder(embedder, saved)), task)
    cut = [f"{embedded.num_cut:,} sentences are cut to {embedder.max_length} tokens"] if embedded.num_cut else []
    return ZeroShotScores(
        findings=Findings(
            metrics=task.score(pairs, answers),
            examples=task.scored_examples(pairs, answers),
            num_scored=len(pairs),
            chance=CHANCE,
            more={"num_truncated": {split: embedded.num_cut}},
            shown={name: name for name in task.metric_names[1:]},
            notes=cut,
        ),
        method=f"cosine of vectors, {embedder.method}" + (", standardised" if task.settings.standardise else ""),
        num_tokens=embedded.num_tokens,
        num_parameters=num_parameters(embedder.model),
        seconds=seconds,
        control=task.score(pairs, control),
        control_examples=task.scored_examples(pairs, control),
    )


def _embed(pairs: Sequence[TextExample], embedder: Embedder) -> TextVectors:
    """Embed both sentences of each pair, in turn; each rank embeds a share."""
    sentences = [sentence for pair in pairs for sentence in pair.content]
    rank, world_size = process_group.rank(), process_group.world_size()
    parts = process_group.gather(embedder.embed(sentences[rank::world_size]))
    vectors = np.zeros((len(sentences), embedder.dim), dtype=np.float32)
    for number, part in enumerate(parts):
        vectors[number::world_size] = part.vectors
    return TextVectors(vectors, sum(part.num_cut for part in parts), sum(part.num_tokens for part in parts))


def _answers(embedded: TextVectors, task: SentenceSimilarity) -> list[ScoreAnswer]:
    scale = None
    if task.settings.standardise:
        scale = Standardizer(dim=embedded.vectors.shape[1])
        scale.fit([torch.from_numpy(embedded.vectors)])
    unit = scale_vectors(embedded.vectors, standardizer=scale, normalise=True).astype(np.float64)
    return [ScoreAnswer(cosine) for cosine in (unit[::2] * unit[1::2]).sum(1).tolist()]


ZeroShotTask: TypeAlias = CompletionTask | SentenceSimilarity
_COMMANDS = ("pretrain", "import", "probe", "finetune")


def evaluate_zero_shot(settings: EvaluateSettings, node: Node[Any]) -> Path:
    """Score a run, or its seeds or revisions, without training; write a run directory for each.

    Args:
        node: the task, which needs no head.

    Returns:
        The run directory, or the folder that contains those of the seeds or revisions.

    Raises:
        ConfigError: the run cannot be scored this way.
        DataError: the data are missing or malformed.
    """
    saved = open_run_to_embed(settings.run, trust=settings.trust)
    hardware = eager_hardware(settings.hardware)
    task: ZeroShotTask = node.build(data_root=settings.data_root or saved.data_root)
    if settings.control and (isinstance(task, SentenceSimilarity) or task.needs_revisions):
        raise ConfigError(f"control=true: task={task.name} has no control; leave it out")
    with process_group.join(hardware.wait_seconds):
        parts = _parts(settings, task, saved)
        if list(parts) == [""]:
            return _evaluate(
                settings, task, saved, hardware, name=settings.name, resume=settings.overwrite or in_sweep()
            )
        whole = settings.name or f"{_run_name(saved.path)}-{task.name}-{settings.split}"
        for name, part in parts.items():
            _evaluate_once(settings, task, part, hardware, name=f"{whole}/{name}")
        return (Path(settings.output_root) / "evaluate" / sweep_name(whole)).resolve()


def _parts(settings: EvaluateSettings, task: ZeroShotTask, saved: SavedRun) -> dict[str, SavedRun]:
    """Return the runs to score, by the end of their names: the seeds of a run, and the revisions if all are requested.

    A single run has the name "".
    """
    seeds = pretraining_seeds(saved, key="run")
    if settings.revisions is not None:
        if isinstance(task, CompletionTask) and task.needs_revisions:
            raise ConfigError(
                f"revisions={settings.revisions}: task={task.name} always compares all revisions; leave it out"
            )
        if saved.revision is not None:
            raise ConfigError(
                f"revisions={settings.revisions}: run={settings.run} is one revision; leave one of the two out"
            )
    parts: dict[str, SavedRun] = {}
    for run in seeds:
        folder = f"of-{run.path.name}" if len(seeds) > 1 else ""
        if settings.revisions is None:
            parts[folder] = run
            continue
        revisions = run.directory.checkpoints.revisions()
        if not revisions:
            raise RunDirectoryError(
                f"run={settings.run} has no revisions: leave revisions= out, or pretrain with train.save_at=[0,100k,1M]"
            )
        parts |= {f"{folder}/{count_text(tokens)}".lstrip("/"): replace(run, revision=tokens) for tokens in revisions}
    return parts


def _evaluate_once(
    settings: EvaluateSettings, task: ZeroShotTask, saved: SavedRun, hardware: Hardware, *, name: str
) -> None:
    """Score a seed or a revision, unless this has already been done."""
    directory = RunDirectory(Path(settings.output_root) / "evaluate" / sweep_name(name))
    if not directory.is_finished or settings.overwrite:
        _evaluate(settings, task, saved, hardware, name=name, resume=True)


def _evaluate(
    settings: EvaluateSettings,
    task: ZeroShotTask,
    saved: SavedRun,
    hardware: Hardware,
    *,
    name: str | None,
    resume: bool,
) -> Path:
    """Score a run and write a run directory."""
    if isinstance(task, CompletionTask):
        scores = score_completions(task, settings.split, saved, hardware, control=settings.control)
    else:
        scores = score_similarity(task, settings.split, saved, hardware)
    findings = scores.findings
    console = Console(highlight=False, quiet=not process_group.is_main())
    for line in task_notes(task):
        console.print(f"note: {line}", markup=False, soft_wrap=True)
    config = settings.model_copy(update={"run": saved.reference}).plain()
    name = sweep_name(name or f"{_run_name(Path(saved.reference))}-{task.name}-{settings.split}")
    directory = RunDirectory.create(settings.output_root, "evaluate", name, resume=resume)
    directory.write_config(config)
    directory.write_versions(versions())
    seed = pretraining_seed(saved)
    undefined = undefined_metrics(findings.examples, findings.metrics)
    result = RunResult(
        command="evaluate",
        task=task.name,
        task_fingerprint=findings.examples.fingerprint(task.main_metric),
        split=settings.split,
        metrics=findings.metrics,
        main_metric=task.main_metric,
        control=None if scores.control is None else {"metrics": dict(scores.control)},
        seconds=scores.seconds,
        tokens=scores.num_tokens,
        num_parameters=scores.num_parameters,
        more={
            "zero_shot": scores.method,
            "pretraining_seed": seed,
            "higher_is_better": True,
            **({} if findings.chance is None else {"chance": findings.chance}),
            "num_scored": findings.num_scored,
            **({} if findings.baseline is None else {"token_frequencies": dict(findings.baseline)}),
            **({"undefined": undefined} if undefined else {}),
            **findings.more,
        },
    )
    if process_group.is_main():
        _write_answers(directory, task, scores, seed, settings.split)
    directory.write_result(result)
    if process_group.is_main():
        _print(result, scores, saved, directory, console)
    return directory.path


def _write_answers(
    directory: RunDirectory,
    task: ZeroShotTask,
    scores: ZeroShotScores,
    seed: int | None,
    split: str,
) -> None:
    """Write the answers of the run and of its control, and the task's own files."""
    answers = [
        Predictions(
            task=task.name,
            split=split,
            main_metric=task.main_metric,
            seed=None,
            pretraining_seed=None if is_control else seed,
            is_control=is_control,
            examples=examples,
        )
        for is_control, examples in ((False, scores.findings.examples), (True, scores.control_examples))
        if examples is not None and is_kept(examples)
    ]
    if answers:
        files = {file_name(predictions, alone=len(answers) == 1): predictions for predictions in answers}
        write_predictions(directory.path, files)
    for file, text in scores.findings.files.items():
        write_text(directory.path / file, text)


def _run_name(path: Path) -> str:
    """Build a name such as ``pretrain-imdb`` or ``finetune-imdb-ft-seed-0``."""
    parts = path.parts[-4:]
    start = max((place for place, part in enumerate(parts) if part in _COMMANDS), default=None)
    return f"pretrain-{path.name}" if start is None else "-".join(parts[start:])


def _print(
    result: RunResult, scores: ZeroShotScores, saved: SavedRun, directory: RunDirectory, console: Console
) -> None:
    metric = result.main_metric or ""
    unit = " (%)" if in_percent(metric) else ""
    findings = scores.findings
    notes = list(findings.notes)
    title = f"{result.task}, {result.split}: {metric}{unit} of {findings.num_scored:,} items"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    if findings.chance is not None:
        table.add_row("chance", format_metric(findings.chance, metric))
    if findings.baseline is not None:
        table.add_row("token frequencies", format_metric(findings.baseline[metric], metric))
    if scores.control is not None:
        table.add_row("random weights", format_metric(scores.control[metric], metric))
    if (gain := result.more.get("minus_random_weights")) is not None:
        notes.append(f"minus random weights {gain_text(gain)}")
    table.add_row(saved.name, format_metric(findings.metrics[metric], metric), style="bold")
    for name, label in findings.shown.items():
        table.add_row(f"  {label}", format_metric(findings.metrics[name], name))
    console.print(table)
    console.print("; ".join([scores.method, *notes, *result.more.get("undefined", ())]), soft_wrap=True)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)

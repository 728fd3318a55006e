"""Predict labels, scores, tags or answers for texts with a trained run, or fill in masks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.settings import HardwareSettings
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import delimiter_of
from lmtransfer.errors import ConfigError
from lmtransfer.inference.fill_mask import open_mask_filler
from lmtransfer.inference.prediction import EntityPredictor, MaskedTexts, TaskPredictor, open_runs
from lmtransfer.inference.prediction_input import PredictionsInOrder, find_input, input_file, input_format, read_example
from lmtransfer.inference.prediction_output import STANDARD_OUTPUT, SubmissionFile, Write, open_output
from lmtransfer.interop.open_run import is_pretrained, open_saved
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.input_files import Reader
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.transfer.experiment.part_run import task_of, task_to_answer

_SOURCES = ("input", "text", "split")
_COLUMNS = ("text_column", "text_pair_column", "id_column")


def run(cfg: DictConfig, *, write: Write | None = None) -> None:
    """Predict; predictions go to ``output``, everything else to standard error."""
    check(cfg, primary="predict", nodes={} if cfg.get("task") is None else {"task": {"data_root", "cache_dir"}})
    _check_choices(cfg)
    console, notes, start_time = Console(stderr=True, highlight=False), Notes(), time.monotonic()
    if is_pretrained(cfg.run):
        _check_fill_mask(cfg)
        runs, task = [open_saved(cfg.run, key="run", trust=cfg.trust)], None
    else:
        runs = open_runs(cfg.run, ensemble=cfg.ensemble, trust=cfg.trust)
        find = task_of if cfg.split is None else task_to_answer
        task = find(runs[0], node=cfg.get("task"), data_root=cfg.data_root)
        if runs[0].path.name.startswith("seed-"):
            which = f"the mean of {len(runs)} seeds" if cfg.ensemble else f"{runs[0].path.name}, one of several seeds"
            console.print(f"predicting with {which}", soft_wrap=True)
    if cfg.submission is not None and task is not None:
        report = _submit(cfg, runs, task, notes)
    else:
        report = _predict(cfg, runs, task, notes, write)
    for kind, count in notes.counts.items():
        console.print(f"{count:,} {kind} (first: {notes.first[kind]})", soft_wrap=True, markup=False)
    if cfg.output != STANDARD_OUTPUT:
        console.print(f"{report}, {time.monotonic() - start_time:.1f} s", soft_wrap=True, markup=False)


def _predict(cfg: DictConfig, runs: Sequence[SavedRun], task: Task | None, notes: Notes, instead: Write | None) -> str:
    if task is None:
        reader: Reader = MaskedTexts()
    else:
        reader = TextReader("tagging", owner=f"task {task.name}") if cfg.entities else task.reader()
    source = None if cfg.input is None else find_input(str(cfg.input))
    file_format = "" if source is None else input_format(cfg.format, source, reader, notes)
    if source is not None:
        source.check_distinct_from(str(cfg.output))
    if instead is None or cfg.output != STANDARD_OUTPUT:
        output: AbstractContextManager[Write] = open_output(str(cfg.output), overwrite=cfg.overwrite)
    else:
        output = nullcontext(instead)
    with output as write:
        hardware = eager_hardware(HardwareSettings.from_config(cfg.hardware))
        predict: Callable[[Sequence[Any]], list[dict[str, Any]]]
        if task is None:
            predict = open_mask_filler(runs[0], cfg.top_k, hardware).lines
        else:
            kind = EntityPredictor if cfg.entities else TaskPredictor
            predict = kind(runs, task, hardware, notes).lines
        predictions = PredictionsInOrder(predict, write, group=cfg.group, on_error=cfg.on_error)
        if source is not None:
            columns = {key: str(cfg[key]) for key in _COLUMNS if cfg[key] is not None}
            reading = {"delimiter": delimiter_of(cfg.delimiter, "delimiter"), "encoding_errors": cfg.encoding_errors}
            predictions.predict_all(
                reader.read(input_file(source, file_format, columns, predictions, notes, **reading))
            )
        elif cfg.text is not None:
            predictions.predict_all([("text", read_example(str(cfg.text), reader))])
        elif task is not None:
            predictions.predict_all((example.id, example) for example in task.examples(cfg.split))
    if predictions.num_errors:
        notes.add("inputs have an error instead of a prediction in the output", "see output", predictions.num_errors)
    return f"{predictions.num_inputs:,} predictions in {cfg.output}"


def _submit(cfg: DictConfig, runs: Sequence[SavedRun], task: Task, notes: Notes) -> str:
    submission = SubmissionFile(cfg.submission, task, cfg.split, str(cfg.output), overwrite=cfg.overwrite)
    examples = task.examples(cfg.split)
    predictor = TaskPredictor(runs, task, eager_hardware(HardwareSettings.from_config(cfg.hardware)), notes)
    answers = [
        answer
        for start in range(0, len(examples), cfg.group)
        for answer in predictor.predict(examples[start : start + cfg.group])
    ]
    written = submission.write(examples, answers)
    return f"{len(answers):,} predictions in {' and '.join(map(str, written))}"


def _check_choices(cfg: DictConfig) -> None:
    problems = []
    sources = [key for key in _SOURCES if cfg[key] is not None]
    if len(sources) != 1:
        what = f"{' and '.join(sources)} are given" if sources else "no input is given"
        problems.append(f"{what}: give exactly one of input=<file> (- for standard input), text='...' or split=<name>")
    if cfg.submission is not None and cfg.split is None:
        problems.append(f"submission={cfg.submission}: a submission covers a whole split; set one, such as split=test")
    if cfg.entities and (cfg.split is not None or cfg.ensemble):
        problems.append(
            "entities=true reads running text with a single tagger: set input= or text=, and leave ensemble out"
        )
    problems += [
        f"{key}={cfg[key]}: this key describes the input file, but input= is not set; leave {key} out"
        for key in (*_COLUMNS, "format", "delimiter")
        if cfg[key] is not None and cfg.input is None
    ]
    if ranks.world_size() > 1:
        problems.append("predict runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)


def _check_fill_mask(cfg: DictConfig) -> None:
    wrong = [key for key in ("task", "split", "submission") if cfg.get(key) is not None]
    wrong += [key for key in ("ensemble", "entities") if cfg[key]]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: run={cfg.run} is a pretraining run, which only fills masks (text='The ice cream was [MASK] "
            f".'); to predict labels, train it on a task first: lmtransfer finetune init={cfg.run} task=..."
        )

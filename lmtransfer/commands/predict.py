"""Predict labels, scores, tags or answers for texts with a trained run, or fill in masks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lmtransfer.config.settings import PredictSettings
from lmtransfer.data.documents import Notes
from lmtransfer.data.table_rows import TableColumns
from lmtransfer.data.tables import delimiter_of
from lmtransfer.errors import ConfigError
from lmtransfer.inference.fill_mask import open_mask_filler
from lmtransfer.inference.prediction import EntityPredictor, MaskedTexts, TaskPredictor, open_runs
from lmtransfer.inference.prediction_input import (
    JsonObject,
    PredictionsInOrder,
    Write,
    find_input,
    input_file,
    input_format,
    open_file,
    read_example,
)
from lmtransfer.inference.prediction_output import (
    STANDARD_OUTPUT,
    SubmissionFile,
    check_output_format,
    needs_names,
    open_output,
)
from lmtransfer.inference.prediction_tables import OutputTable
from lmtransfer.interop.open_run import is_pretrained, open_saved
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.tasks.answers import AnswerColumns, answer_columns
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.input_files import InputRow, OpenInput, Reader
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.transfer.experiment.part_run import task_of, task_to_answer

_COLUMNS = ("text_column", "text_pair_column", "id_column")


def run(settings: PredictSettings, *, write: Callable[[Sequence[JsonObject]], None] | None = None) -> None:
    """Predict; predictions go to ``output``, everything else to standard error.

    Args:
        write: receives the lines in place of standard output.
    """
    _check_choices(settings)
    console, notes, start_time = Console(stderr=True, highlight=False), Notes(), time.monotonic()
    if is_pretrained(settings.run):
        _check_fill_mask(settings)
        runs, task = [open_saved(settings.run, key="run", trust=settings.trust)], None
    else:
        runs = open_runs(settings.run, ensemble=settings.ensemble, trust=settings.trust)
        find = task_of if settings.split is None else task_to_answer
        task = find(runs[0], node=settings.task, data_root=settings.data_root)
        if runs[0].path.name.startswith("seed-"):
            which = (
                f"the mean of {len(runs)} seeds" if settings.ensemble else f"{runs[0].path.name}, one of several seeds"
            )
            console.print(f"predicting with {which}", soft_wrap=True)
    if settings.submission is not None and settings.split is not None and task is not None:
        submission = SubmissionFile(
            settings.submission, task, settings.split, settings.output, overwrite=settings.overwrite
        )
        report = _submit(settings, submission, runs, notes)
    else:
        report = _predict(settings, runs, task, notes, write)
    for kind, count in notes.counts.items():
        console.print(f"{count:,} {kind} (first: {notes.first[kind]})", soft_wrap=True, markup=False)
    if settings.output != STANDARD_OUTPUT:
        console.print(f"{report}, {time.monotonic() - start_time:.1f} s", soft_wrap=True, markup=False)


def _predict(
    settings: PredictSettings,
    runs: Sequence[SavedRun],
    task: Task | None,
    notes: Notes,
    instead: Callable[[Sequence[JsonObject]], None] | None,
) -> str:
    reader: Reader
    if task is None:
        answers, reader = AnswerColumns.of(masks="json"), MaskedTexts()
    elif settings.entities:
        answers, reader = AnswerColumns.of(entities="json"), TextReader("tagging", owner=f"task {task.name}")
    else:
        answers, reader = answer_columns(task.head.kind, task.labels), task.reader()
    predictions = PredictionsInOrder(
        empty=dict.fromkeys(answers.keys), group=settings.group, on_error=settings.on_error, notes=notes
    )
    opened = _open(settings, reader, task, predictions, notes)
    table = OutputTable(opened.columns, answers, settings.column_prefix, has_errors=settings.on_error == "skip")
    output: AbstractContextManager[Write]
    if instead is None or settings.output != STANDARD_OUTPUT:
        output = open_output(settings.output, overwrite=settings.overwrite, table=table, notes=notes)
    else:
        output = nullcontext(lambda items: instead([item.line for item in items]))
    with output as write:
        hardware = eager_hardware(settings.hardware)
        predict: Callable[[Sequence[Any]], list[JsonObject]]
        if task is None:
            predict = open_mask_filler(runs[0], settings.top_k, hardware).lines
        else:
            kind = EntityPredictor if settings.entities else TaskPredictor
            predict = kind(runs, task, hardware, notes).lines
        predictions.predict_all(opened.rows, predict, write)
    if predictions.num_errors:
        notes.add("inputs have an error instead of a prediction in the output", "see output", predictions.num_errors)
    return f"{predictions.num_inputs:,} predictions in {settings.output}"


def _open(
    settings: PredictSettings, reader: Reader, task: Task | None, predictions: PredictionsInOrder, notes: Notes
) -> OpenInput:
    """Open the input, which is a file, a text, or a split of the task."""
    if settings.text is not None:
        example = read_example(settings.text, reader)
        row = InputRow("text", "text", example, {"id": "text", "text": settings.text})
        return OpenInput(TableColumns(("id", "text")), iter([row]))
    if settings.input is None:
        assert task is not None
        assert settings.split is not None
        examples = task.examples(settings.split)
        names = ("id", *(task.echo(examples[0]) if examples else ()))
        return OpenInput(TableColumns(names), _rows_of(examples, task))
    source = find_input(settings.input)
    source.check_distinct_from(settings.output)
    file = input_file(
        source,
        input_format(settings.format, source, reader, notes),
        settings.chosen(*_COLUMNS),
        predictions,
        notes,
        delimiter=delimiter_of(settings.delimiter, "delimiter"),
        encoding_errors=settings.encoding_errors,
    )
    return open_file(file, reader, all_names=needs_names(settings.output))


def _rows_of(examples: Sequence[Any], task: Task) -> Iterator[InputRow]:
    for example in examples:
        yield InputRow(example.id, example.id, example, {"id": example.id, **task.echo(example)})


def _submit(settings: PredictSettings, submission: SubmissionFile, runs: Sequence[SavedRun], notes: Notes) -> str:
    examples = submission.task.examples(submission.split)
    predictor = TaskPredictor(runs, submission.task, eager_hardware(settings.hardware), notes)
    answers = [
        answer
        for start in range(0, len(examples), settings.group)
        for answer in predictor.predict(examples[start : start + settings.group])
    ]
    written = submission.write(examples, answers)
    return f"{len(answers):,} predictions in {' and '.join(map(str, written))}"


def _check_choices(settings: PredictSettings) -> None:
    problems = []
    sources = list(settings.chosen("input", "text", "split"))
    if len(sources) != 1:
        what = f"{' and '.join(sources)} are given" if sources else "no input is given"
        problems.append(f"{what}: give exactly one of input=<file> (- for standard input), text='...' or split=<name>")
    if settings.submission is not None and settings.split is None:
        problems.append(
            f"submission={settings.submission}: a submission covers a whole split; set one, such as split=test"
        )
    if settings.entities and (settings.split is not None or settings.ensemble):
        problems.append(
            "entities=true reads running text with a single tagger: set input= or text=, and leave ensemble out"
        )
    problems += [
        f"{key}={value}: this key describes the input file, but input= is not set; leave {key} out"
        for key, value in settings.chosen(*_COLUMNS, "format", "delimiter").items()
        if settings.input is None
    ]
    if settings.column_prefix and settings.output == STANDARD_OUTPUT:
        problems.append(
            f"column_prefix={settings.column_prefix}: predict adds columns only to a file; set output=<file>, or leave "
            "column_prefix out"
        )
    if ranks.world_size() > 1:
        problems.append("predict runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)
    if settings.submission is None:
        check_output_format(settings.output)


def _check_fill_mask(settings: PredictSettings) -> None:
    wrong = list(settings.chosen("task", "split", "submission", "ensemble", "entities"))
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: run={settings.run} is a pretraining run, which only fills masks (text='The ice cream was "
            f"[MASK] .'); to predict labels, train it on a task first: lmtransfer finetune init={settings.run} task=..."
        )

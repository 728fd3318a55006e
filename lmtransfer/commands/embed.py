"""Write a vector for each text of a file, with the encoder of any run."""

from __future__ import annotations

import time

from lmtransfer.config.settings import EmbedSettings
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import delimiter_of
from lmtransfer.errors import ConfigError
from lmtransfer.inference.embedding_output import check_ending, embed_rows, open_rows
from lmtransfer.inference.prediction_input import find_input, input_format
from lmtransfer.inference.prediction_output import check_output_path
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.transfer.embedder import VectorChoice, open_embedder, open_run_to_embed


def run(settings: EmbedSettings) -> None:
    """Embed the texts."""
    choice = VectorChoice.of(layers=settings.layers, pooling=settings.pooling)
    _check_choices(settings)
    path = check_output_path(settings.output, overwrite=settings.overwrite)
    source = find_input(settings.input)
    source.check_distinct_from(settings.output)
    console, notes, start_time = Console(stderr=True, highlight=False), Notes(), time.monotonic()
    file_format = input_format(settings.format, source, TextReader("embed", owner="embed"), notes)
    delimiter = delimiter_of(settings.delimiter, "delimiter")
    saved = open_run_to_embed(settings.run, trust=settings.trust)
    if saved.path.name.startswith("seed-"):
        console.print(f"embedding with {saved.path.name}, one of several seeds", soft_wrap=True)
    hardware = eager_hardware(settings.hardware)
    embedder = open_embedder(saved, choice, hardware=hardware, max_length=settings.max_length)
    if saved.config.get("vectors") and choice.layers is None and choice.pooling is None:
        length = ", scaled to length 1" if embedder.normalise else ""
        how = f"{embedder.method}, texts of at most {embedder.max_length} tokens{length}"
        console.print(f"computing vectors as the publisher does: {how}", soft_wrap=True)
    rows = open_rows(
        source,
        file_format,
        notes,
        text_column=settings.text_column,
        delimiter=delimiter,
        encoding_errors=settings.encoding_errors,
        group=settings.group,
    )
    with console.status(f"reading {rows.name}") as status:
        count = embed_rows(
            rows,
            embedder,
            path,
            notes,
            standardise=settings.standardise,
            normalise=settings.normalise,
            vector_column=settings.vector_column,
            progress=lambda num: status.update(f"{num:,} texts"),
        )
    for kind, num in notes.counts.items():
        console.print(f"{num:,} {kind} (first: {notes.first[kind]})", soft_wrap=True)
    seconds = time.monotonic() - start_time
    summary = f"{count:,} vectors of {embedder.dim:,} dimensions in {settings.output}, {seconds:.1f} s"
    console.print(summary, soft_wrap=True)


def _check_choices(settings: EmbedSettings) -> None:
    problems = []
    if not settings.vector_column.strip():
        problems.append("vector_column is empty: set the name of the column for the vectors")
    if ranks.world_size() > 1:
        problems.append("embed runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)
    check_ending(settings.output)

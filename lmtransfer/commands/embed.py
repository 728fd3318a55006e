"""Write a vector for each text of a file, with the encoder of any run."""

from __future__ import annotations

import time
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
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


def run(cfg: DictConfig) -> None:
    """Embed the texts."""
    check(cfg, primary="embed")
    plain = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    choice = VectorChoice.of(layers=plain["layers"], pooling=plain["pooling"])
    _check_choices(cfg)
    path = check_output_path(str(cfg.output), overwrite=cfg.overwrite)
    source = find_input(str(cfg.input))
    source.check_distinct_from(str(cfg.output))
    console, notes, start_time = Console(stderr=True, highlight=False), Notes(), time.monotonic()
    file_format = input_format(cfg.format, source, TextReader("embed", owner="embed"), notes)
    delimiter = delimiter_of(cfg.delimiter, "delimiter")
    saved = open_run_to_embed(str(cfg.run), trust=cfg.trust)
    if saved.path.name.startswith("seed-"):
        console.print(f"embedding with {saved.path.name}, one of several seeds", soft_wrap=True)
    embedder = open_embedder(saved, choice, hardware=eager_hardware(cfg), max_length=cfg.max_length)
    if saved.config.get("vectors") and choice.layers is None and choice.pooling is None:
        length = ", scaled to length 1" if embedder.normalise else ""
        how = f"{embedder.method}, texts of at most {embedder.max_length} tokens{length}"
        console.print(f"computing vectors as the publisher does: {how}", soft_wrap=True)
    reading = {key: plain[key] for key in ("text_column", "encoding_errors", "group")}
    rows = open_rows(source, file_format, notes, delimiter=delimiter, **reading)
    with console.status(f"reading {rows.name}") as status:
        count = embed_rows(
            rows,
            embedder,
            path,
            notes,
            standardise=cfg.standardise,
            normalise=cfg.normalise,
            vector_column=str(cfg.vector_column),
            progress=lambda num: status.update(f"{num:,} texts"),
        )
    for kind, num in notes.counts.items():
        console.print(f"{num:,} {kind} (first: {notes.first[kind]})", soft_wrap=True)
    seconds = time.monotonic() - start_time
    console.print(f"{count:,} vectors of {embedder.dim:,} dimensions in {cfg.output}, {seconds:.1f} s", soft_wrap=True)


def _check_choices(cfg: DictConfig) -> None:
    problems = []
    if not str(cfg.vector_column or "").strip():
        problems.append("vector_column is empty: set the name of the column for the vectors")
    if ranks.world_size() > 1:
        problems.append("embed runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)
    check_ending(str(cfg.output))

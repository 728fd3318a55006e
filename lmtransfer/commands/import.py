"""Load a published checkpoint as a run that every command accepts as init=, or copy a run of others."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.sweep import sweep_name
from lmtransfer.errors import ConfigError
from lmtransfer.interop.importing.importing import imported_lines, next_lines, read_imported, write_imported
from lmtransfer.interop.importing.published_folder import find_published
from lmtransfer.interop.importing.run_copy import copied_lines, copy_run
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.durable import staged_folder


def run(cfg: DictConfig) -> Path:
    """Import a checkpoint and write a run directory, completely or not at all.

    Returns:
        The run directory.
    """
    check(cfg, primary="import")
    if ranks.world_size() > 1:
        raise ConfigError("import runs in one process: start it without torchrun")
    folder = find_published(str(cfg.source), key="source")
    if folder.is_run:
        return _copy_run(cfg, folder.path)
    name = sweep_name(str(cfg.name or folder.name))
    words = None if cfg.tokenizer.add is None else Path(str(cfg.tokenizer.add)).expanduser().absolute()
    directory = None
    if (Path(cfg.output_root) / "import" / name).exists():
        directory = RunDirectory.create(cfg.output_root, "import", name)  # fails here, before the weights are read
    imported = read_imported(folder, words=words)
    directory = directory or RunDirectory.create(cfg.output_root, "import", name)
    with staged_folder(directory.path) as staged:
        write_imported(imported, RunDirectory(staged), name=name, words=words)
    console = Console(highlight=False)
    for line in [*imported_lines(imported), *next_lines(directory.path, imported)]:
        console.print(line, markup=False, soft_wrap=True)
    return directory.path


def _copy_run(cfg: DictConfig, folder: Path) -> Path:
    """Copy a run that was pushed or exported as it is."""
    if cfg.tokenizer.add is not None:
        raise ConfigError("tokenizer.add: source= is a run of lmtransfer, which is copied as it is; leave it out")
    run = copy_run(folder, Path(cfg.output_root), name=None if cfg.name is None else sweep_name(str(cfg.name)))
    console = Console(highlight=False)
    for line in copied_lines(run):
        console.print(line, markup=False, soft_wrap=True)
    return run.path

"""Load a published checkpoint as a run that every command accepts as init=."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.sweep import sweep_name
from lmtransfer.errors import ConfigError
from lmtransfer.importing.importing import imported_lines, next_lines, read_imported, write_imported
from lmtransfer.importing.published_folder import find_published
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

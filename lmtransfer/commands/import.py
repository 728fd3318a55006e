"""Take over a published checkpoint as a run that every command accepts as init=."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer import ranks
from lmtransfer.commands._imported import read_imported, write_imported
from lmtransfer.commands._imported_messages import imported_lines, next_lines
from lmtransfer.commands._published_folder import find_published
from lmtransfer.config.check import check
from lmtransfer.config.sweep import sweep_name
from lmtransfer.console import Console
from lmtransfer.durable import staged_folder
from lmtransfer.errors import ConfigError
from lmtransfer.training.run_directory import RunDirectory


def run(cfg: DictConfig) -> Path:
    """Import, and leave a run directory behind, whole or not at all.

    Returns:
        The run directory.
    """
    check(cfg, primary="import")
    if ranks.world_size() > 1:
        raise ConfigError("import is one process: run it without torchrun")
    folder = find_published(str(cfg.source), key="source")
    name = sweep_name(str(cfg.name or folder.name))
    words = None if cfg.tokenizer.add is None else Path(str(cfg.tokenizer.add)).expanduser().absolute()
    directory = None
    if (Path(cfg.output_root) / "import" / name).exists():
        directory = RunDirectory.create(cfg.output_root, "import", name)  # says so before the weights are read
    imported = read_imported(folder, words=words)
    directory = directory or RunDirectory.create(cfg.output_root, "import", name)
    with staged_folder(directory.path) as staged:
        write_imported(imported, RunDirectory(staged), name=name, words=words)
    console = Console(highlight=False)
    for line in [*imported_lines(imported), *next_lines(directory.path, imported)]:
        console.print(line, markup=False, soft_wrap=True)
    return directory.path

"""Convert a published checkpoint to a run that every command accepts, or copy someone else's run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtransfer.config.settings import ImportSettings
from lmtransfer.config.sweep_names import sweep_name
from lmtransfer.errors import ConfigError
from lmtransfer.interop.importing import import_summary, next_lines, read_imported_model, write_imported_model
from lmtransfer.interop.published_folder import find_published
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.printable import short_path


def run(settings: ImportSettings) -> Path:
    """Import a checkpoint, or copy a run, completely or not at all."""
    if ranks.world_size() > 1:
        raise ConfigError("import runs in one process: start it without torchrun")
    folder = find_published(settings.source, key="source")
    if folder.is_run:
        return _copy_run(settings, folder.path)
    name = sweep_name(settings.name or folder.name)
    words = None if settings.tokenizer.add is None else Path(settings.tokenizer.add).expanduser().absolute()
    directory = None
    if (Path(settings.output_root) / "import" / name).exists():
        directory = RunDirectory.create(settings.output_root, "import", name)  # fails here, before the weights are read
    imported = read_imported_model(folder, words=words)
    directory = directory or RunDirectory.create(settings.output_root, "import", name)
    with staged_folder(directory.path) as staged:
        write_imported_model(imported, RunDirectory(staged), name=name, words=words)
    console = Console(highlight=False)
    for line in [*import_summary(imported), *next_lines(directory.path, imported)]:
        console.print(line, markup=False, soft_wrap=True)
    return directory.path


_COMMANDS = ("pretrain", "import", "probe", "finetune")


def _copy_run(settings: ImportSettings, folder: Path) -> Path:
    """Copy an lmtransfer run to the folder in which the command that started the run looks for it."""
    if settings.tokenizer.add is not None:
        raise ConfigError("tokenizer.add: source is an lmtransfer run, which is copied unchanged; leave this key out")
    source = RunDirectory.open(folder)
    config = source.read_config()
    name = config.get("name") or folder.name if settings.name is None else sweep_name(settings.name)
    run = RunDirectory.create(Path(settings.output_root), _command_of(source, config), name)
    with staged_folder(run.path) as staged:
        shutil.copytree(source.path, staged, ignore=_names_to_skip, dirs_exist_ok=True)
    path = short_path(run.path)
    if not run.is_finished:
        advice = f"to continue: run the command that started it, with name={run.path.name} resume=true"
    elif "task" in config:
        advice = f"next: lmtransfer predict run={path} text=..."
    else:
        advice = f"next: lmtransfer finetune init={path}"
    console = Console(highlight=False)
    for line in (f"run: {run.path}", advice):
        console.print(line, markup=False, soft_wrap=True)
    return run.path


def _names_to_skip(folder: str, names: list[str]) -> set[str]:
    """Return the names in a folder that are not copied: a repository's own files, and symbolic links of trackers."""
    of_trackers = "trackers" in Path(folder).parts
    return {
        name
        for name in names
        if name == "README.md" or name.startswith(".") or (of_trackers and Path(folder, name).is_symlink())
    }


def _command_of(run: RunDirectory, config: Mapping[str, Any]) -> str:
    """Return the command that produced a run, as its result says or as its configuration implies."""
    recorded = run.read_result().command if run.is_finished else None
    if recorded in _COMMANDS:
        return recorded
    if "task" not in config:
        return "pretrain"
    return "probe" if (config.get("transfer") or {}).get("freeze") == "frozen" else "finetune"

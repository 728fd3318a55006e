"""List all models, objectives, corpora, tasks, recipes and studies, with their sources and costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from lmtransfer.config import paths
from lmtransfer.config.nearest import hint
from lmtransfer.config.settings import ListSettings
from lmtransfer.errors import ConfigError
from lmtransfer.launch.command_help import summary
from lmtransfer.system.console import Console

#: What can be listed, and its config group.
KINDS = {
    "models": "model",
    "objectives": "objective",
    "phases": "phases",
    "embeddings": "embeddings",
    "corpora": "corpus",
    "screenings": "screening",
    "tokenizers": "tokenizer",
    "tasks": "task",
    "transfers": "transfer",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "trackers": "tracker",
    "recipes": "experiment",
    "studies": "study",
}


def run(settings: ListSettings) -> None:
    """Print a table for each requested kind."""
    folders = settings.config_folders
    console = Console()
    for kind in _chosen_kinds(settings.what):
        group = KINDS[kind]
        table = Table(title=f"{kind} ({group}=<name>)", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        table.add_column("name", no_wrap=True)
        table.add_column("description, source, cost")
        for name in paths.group_options(group, folders):
            path = paths.find(f"{group}/{name}.yaml", folders)
            table.add_row(name, Text(summary(path.read_text(encoding="utf-8", errors="replace")) if path else ""))
        if table.row_count:
            console.print(table)


def _chosen_kinds(what: str | Sequence[str]) -> list[str]:
    names = what.split(",") if isinstance(what, str) else list(what)
    if names == ["all"]:
        return list(KINDS)
    by_group = {group: kind for kind, group in KINDS.items()}
    kinds = [by_group.get(name, name) for name in names]
    for kind in kinds or ["[]"]:
        if kind not in KINDS:
            raise ConfigError(f"what={kind}: no such kind; {hint(kind, ['all', *KINDS], what='kinds')}")
    return kinds

"""Expands short forms on the command line: names of corpora, of evaluation texts, and of groups of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from lmtransfer.config import paths
from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError
from lmtransfer.launch import config_files
from lmtransfer.launch.config_files import group_config
from lmtransfer.launch.plain import literal
from lmtransfer.system.machine import is_address

_GROUP_OF_TASKS = "lmtransfer.tasks.base.TaskGroup"
_CORPUS_OF_FILES = "lmtransfer.data.corpora.corpus.FileCorpus"


def expand_parts(cfg: DictConfig, folders: Sequence[Path]) -> None:
    """Replace the names in ``corpus.parts`` with the corpora that they stand for.

    ``corpus.parts=[enwiki,fra]`` uses the corpora with those names; ``{english: enwiki, french: my/fr}`` renames the
    parts. A part that is not the name of a corpus must be a file or a folder, which is read like ``corpus=text``, or
    the settings of ``corpus=text``, such as ``{path: my/tables, text_field: body}``.
    """
    corpus = cfg.get("corpus")
    if not isinstance(corpus, DictConfig) or "parts" not in corpus or OmegaConf.is_missing(corpus, "parts"):
        return
    parts = corpus.parts
    if isinstance(parts, ListConfig):
        nodes: dict[str, Any] = {Path(str(part)).stem: part for part in parts}
        if len(nodes) < len(parts):
            raise ConfigError(
                f"corpus.parts={list(parts)}: two parts have the same name; give each part its own name: "
                "corpus.parts={first: ..., second: ...}"
            )
    elif isinstance(parts, DictConfig):
        nodes = {str(name): parts[name] for name in parts}
    else:
        raise ConfigError(
            f"corpus.parts={parts} must be a list such as [enwiki,fra], or a mapping {{name: corpus, ...}}"
        )
    problems: list[str] = []
    corpora = {name: _find_corpus(name, part, folders, problems) for name, part in nodes.items()}
    if problems:
        raise ConfigError(problems)
    with open_dict(corpus):
        corpus.parts = corpora


def _find_corpus(name: str, part: Any, folders: Sequence[Path], problems: list[str]) -> Any:
    if isinstance(part, DictConfig) and ("_target_" in part or "path" not in part):
        return part
    path = None if isinstance(part, DictConfig) else paths.find(f"corpus/{part}.yaml", folders)
    if path is not None:
        return config_files.load(path)
    if isinstance(part, DictConfig) or is_address(str(part)) or Path(str(part)).expanduser().exists():
        text = paths.find("corpus/text.yaml", folders)
        assert text is not None
        settings = part if isinstance(part, DictConfig) else literal({"path": str(part)})
        return OmegaConf.merge(config_files.load(text), literal({"name": name}), settings)
    known = hint(str(part), paths.group_options("corpus", folders), what="corpora")
    problems.append(f"corpus.parts.{name}={part}: this is not a corpus, a file or a folder; {known}")
    return None


def expand_overlap(cfg: DictConfig, folders: Sequence[Path]) -> None:
    """Replace the names in ``screening.overlap_with`` with tasks, and the files with corpora."""
    screening = cfg.get("screening")
    if not isinstance(screening, DictConfig) or "overlap_with" not in screening:
        return
    tasks = screening.overlap_with
    entries = {str(name): tasks[name] for name in tasks} if isinstance(tasks, DictConfig) else _by_name(tasks, folders)
    problems: list[str] = []
    sources = {name: _evaluation_texts(name, entry, folders, problems) for name, entry in entries.items()}
    if problems:
        raise ConfigError(problems)
    with open_dict(cfg):
        screening.overlap_with = sources or None


def _by_name(tasks: Any, folders: Sequence[Path]) -> dict[str, Any]:
    """Map names to tasks and files; a task group is replaced by its tasks."""
    nodes: dict[str, Any] = {}
    for entry in tasks if isinstance(tasks, ListConfig) else [] if tasks is None else [tasks]:
        node = group_config("task", str(entry), folders) or {}
        name = str(entry) if node else Path(str(entry)).name
        if name in nodes:
            raise ConfigError(
                f"screening.overlap_with: two entries have the name {name}; give each entry its own name: "
                "screening.overlap_with={first: ..., second: ...}"
            )
        is_group = node.get("_target_") == _GROUP_OF_TASKS
        nodes |= {member: member for member in node["tasks"]} if is_group else {name: entry}
    return nodes


def _evaluation_texts(name: str, entry: Any, folders: Sequence[Path], problems: list[str]) -> Any:
    if isinstance(entry, DictConfig):
        return entry
    task = group_config("task", str(entry), folders)
    if task is not None:
        return task
    path = Path(str(entry)).expanduser().absolute()
    if path.exists():
        return literal({"_target_": _CORPUS_OF_FILES, "name": name, "path": str(path), "boundary": "line"})
    names = hint(str(entry), paths.group_options("task", folders), what="tasks")
    problems.append(f"screening.overlap_with: {entry} is not a task, a file or a folder; {names}")
    return None


def expand_task_groups(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Replace ``task=<group>`` and ``task=[a,b]`` with a sweep over the tasks in the group or the list."""
    return [_expand_task_group(override, folders) for override in overrides]


def _expand_task_group(override: str, folders: Sequence[Path]) -> str:
    key, _, value = override.partition("=")
    if key != "task":
        return override
    if value.startswith("[") and value.endswith("]"):
        names = [name.strip() for name in value[1:-1].split(",") if name.strip()]
        expanded = [_expand_task_group(f"task={name}", folders).removeprefix("task=") for name in names]
        return f"task={','.join(expanded)}" if names else override
    path = paths.find(f"task/{value}.yaml", folders[::-1])  # the user's folder comes last
    node = {} if path is None else config_files.load(path)
    return f"task={','.join(node['tasks'])}" if node.get("_target_") == _GROUP_OF_TASKS else override

"""The configuration node of the objective that a published model was pretrained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import paths
from lmtransfer.config.composing import compose_files


def imported_objective(
    losses: Sequence[str], arguments: Mapping[str, Mapping[str, Any]], *, max_length: int
) -> dict[str, Any] | None:
    """Return the ``objective`` node of an imported run: rows, corruption and losses of the matching pretraining file.

    Args:
        losses: names of the objectives whose heads were imported.
        arguments: component node of each objective; its values override those of the file.
        max_length: longest rows that the encoder reads.

    Returns:
        Plain values with resolved interpolations; None if no file has exactly these losses.
    """
    file = _file_of(losses)
    if file is None:
        return None
    composed = compose_files(None, [f"+objective={file}"])
    composed.objective.max_length = min(int(composed.objective.max_length), max_length)
    node = cast("dict[str, Any]", OmegaConf.to_container(composed.objective, resolve=True))
    node["losses"] = {name: {**node["losses"].get(name, {}), **dict(arguments.get(name, {}))} for name in losses}
    return node


def _file_of(losses: Sequence[str]) -> str | None:
    """Find the file of conf/objective that itself lists exactly these losses, not a variant of another file."""
    for name in paths.group_options("objective", [paths.conf_dir()]):
        content = OmegaConf.load(paths.conf_dir() / "objective" / f"{name}.yaml")
        if isinstance(content, DictConfig) and losses and set(content.get("losses") or {}) == set(losses):
            return name
    return None

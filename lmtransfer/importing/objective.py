"""The objective that a published model was pretrained with, as a node of configuration: what its heads are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import paths
from lmtransfer.config.composing import compose_files


def imported_objective(
    losses: Sequence[str], arguments: Mapping[str, Mapping[str, Any]], *, max_length: int
) -> dict[str, Any] | None:
    """The ``objective`` node of an imported run: rows, corruption and losses as in pretraining with those losses.

    Args:
        losses: names of the objectives whose heads came along.
        arguments: component node of each, whose values win over those of the file.
        max_length: longest rows that the encoder reads.

    Returns:
        Plain values, interpolations resolved; None where no way of pretraining has just these losses.
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
    """The file of conf/objective that lists just these losses itself, not the variant of another file."""
    for path in sorted((paths.conf_dir() / "objective").glob("*.yaml")):
        content = OmegaConf.load(path)
        if isinstance(content, DictConfig) and losses and set(content.get("losses") or {}) == set(losses):
            return path.stem
    return None

"""The objective that a published model was pretrained with, as a node of configuration: what its heads are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import paths


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
    composed = _composed("objective", file)
    composed.max_length = min(int(composed.max_length), max_length)
    node = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True))
    node["losses"] = {name: {**node["losses"].get(name, {}), **dict(arguments.get(name, {}))} for name in losses}
    return node


def _file_of(losses: Sequence[str]) -> str | None:
    """The file of conf/objective that lists just these losses itself, not the variant of another file."""
    for path in sorted((paths.conf_dir() / "objective").glob("*.yaml")):
        content = OmegaConf.load(path)
        if isinstance(content, DictConfig) and losses and set(content.get("losses") or {}) == set(losses):
            return path.stem
    return None


def _composed(group: str, choice: str) -> DictConfig:
    """A file of conf/ with the choices that its defaults list makes; Hydra itself is composing the command's config."""
    content = OmegaConf.load(paths.conf_dir() / group / f"{choice}.yaml")
    assert isinstance(content, DictConfig)
    found = OmegaConf.create({})
    for entry in content.pop("defaults", []):
        if isinstance(entry, DictConfig):
            for name, inner in ((str(name), str(inner)) for name, inner in entry.items()):
                found[name] = _composed(f"{group}/{name}", inner)
        elif entry != "_self_":
            found = cast(DictConfig, OmegaConf.merge(found, _composed(group, str(entry))))
    return cast(DictConfig, OmegaConf.merge(found, content))

"""What a command's own config file says, before any composition."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from lmtransfer.config.paths import conf_dir


def primary_config(name: str) -> dict[str, Any]:
    """A command's config file as plain data; the groups of its defaults list appear as keys with value None.

    Args:
        name: of the file, without ``.yaml``.
    """
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{name}.yaml"))
    assert isinstance(content, dict)
    entries = [group for entry in content.pop("defaults", []) if isinstance(entry, dict) for group in entry]
    return {_package(group): None for group in entries} | {str(key): value for key, value in content.items()}


def _package(entry: str) -> str:
    """The top-level key under which a group's config lands: ``model``, ``/model``, ``model@teacher``."""
    group, _, package = entry.removeprefix("override ").removeprefix("optional ").partition("@")
    return (package or group).strip("/").replace("/", ".").partition(".")[0]

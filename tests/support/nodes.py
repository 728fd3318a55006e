"""Nodes of config files, as commands see them."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from lmtransfer.config import component
from lmtransfer.errors import ConfigError
from lmtransfer.launch.plain import to_plain


def plain(node: Any) -> Any:
    """Return the plain data of a node, with references resolved."""
    values, problems = to_plain(node)
    if problems:
        raise ConfigError([f"{key}: {problem}" for key, problem in problems.items()])
    return values


def build(node: Any, **runtime: Any) -> Any:
    """Build the component that a node of a config file describes."""
    return component.build(plain(node) if isinstance(node, DictConfig) else node, **runtime)

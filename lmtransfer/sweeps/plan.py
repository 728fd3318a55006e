"""What is known of a sweep before its first point: the points, and the launcher that runs them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import overrides
from lmtransfer.config.composing import REFUSALS, compose_files
from lmtransfer.config.sweep import ON_THIS_MACHINE
from lmtransfer.errors import ConfigError
from lmtransfer.system.cores import hardware_threads

#: Largest number of points whose labels are kept, for the table of all points.
_MOST_LISTED = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a sweep; sent to the processes of its points.

    Attributes:
        launcher: name of Hydra's launcher; "basic" runs the points one after the other, in this process.
        total: number of points; None if only the sweeper knows it.
        labels: the swept keys and values of each point, in order; empty if they are unknown or too many for a table.
        workers: how many points run at the same time; None if unknown.
        output_root: the folder of all runs.
    """

    launcher: str = "basic"
    total: int | None = None
    labels: tuple[str, ...] = ()
    workers: int | None = 1
    output_root: str = "runs"

    @property
    def is_parallel(self) -> bool:
        """Whether the points run in other processes."""
        return self.launcher != "basic"

    @property
    def is_local(self) -> bool:
        """Whether all points run on this machine."""
        return self.launcher in ON_THIS_MACHINE


def plan_of(primary: str, given: Sequence[str], *, config_dir: str | None = None) -> Plan:
    """The plan of a sweep, from the configuration of its first point.

    Args:
        primary: name of the primary config.
        given: the ``key=value`` of the command line, quoted for Hydra.
        config_dir: the user's config folder.
    """
    try:
        parsed = [overrides.parse(word) for word in given]
        cfg = compose_files(primary, overrides.first_values(given), config_dir=config_dir)
    except (ConfigError, *REFUSALS):
        return Plan()  # Hydra raises the same error when it starts the sweep
    choices, excluded = cfg.hydra.runtime.choices, cfg.hydra.job.config.override_dirname.exclude_keys
    launcher = str(choices["hydra/launcher"])
    total: int | None = None
    labels: tuple[str, ...] = ()
    if choices["hydra/sweeper"] == "basic":
        own = [override for override in parsed if not override.is_hydra_override()]
        total, labels = _points([*_of_config(cfg), *own], frozenset(map(str, excluded)))
    return Plan(
        launcher=launcher,
        total=total,
        labels=labels,
        workers=_workers(launcher, cfg.hydra.launcher, total),
        output_root=str(cfg.get("output_root") or "runs"),
    )


def points_of(given: Sequence[str], config: DictConfig) -> Iterator[list[str]]:
    """The overrides of each point of a sweep with Hydra's own sweeper; nothing if only the sweeper knows them.

    Args:
        given: the ``key=value`` of the command line, quoted for Hydra.
        config: the configuration of the first point.
    """
    if config.hydra.runtime.choices["hydra/sweeper"] != "basic":
        return
    columns: dict[str, list[str]] = {}
    for override in [*_of_config(config), *map(overrides.parse, given)]:  # the last override of a key is in force
        columns[override.get_key_element()] = overrides.each_value(override)
    yield from map(list, itertools.product(*columns.values()))


def _of_config(cfg: DictConfig) -> list[Override]:
    """The values to sweep that a config file sets."""
    params: Any = OmegaConf.to_container(cfg.hydra.sweeper.params or OmegaConf.create(), resolve=False)
    return [overrides.parse(f"{key}={value}") for key, value in params.items()]


def _points(given: Iterable[Override], excluded: frozenset[str]) -> tuple[int | None, tuple[str, ...]]:
    """The number of points and their labels."""
    columns: dict[str, list[tuple[str, str]]] = {}
    shuffled = False
    for override in given:  # the last override of a key is in force
        columns[override.get_key_element()] = [(override.key_or_group, word) for word in overrides.each_value(override)]
        shuffled |= bool(getattr(override.value(), "shuffle", False))
    if not all(columns.values()):
        return None, ()
    total = math.prod(map(len, columns.values()))
    if shuffled or total > _MOST_LISTED:
        return total, ()
    return total, tuple(_label(words, excluded) for words in itertools.product(*columns.values()))


def _label(words: Sequence[tuple[str, str]], excluded: frozenset[str]) -> str:
    shown = sorted(word for key, word in words if key not in excluded)
    return ",".join(shown or [word for key, word in words if key == "name"]).replace("'", "")


def _workers(launcher: str, settings: DictConfig, total: int | None) -> int | None:
    if launcher == "basic":
        return 1
    if launcher == "submitit_local":  # starts all points at once
        return total
    number = settings.get("n_jobs") if launcher == "joblib" else None
    if not isinstance(number, int) or number == 0:
        return None
    workers = number if number > 0 else max(1, hardware_threads() + 1 + number)
    return workers if total is None else min(workers, total)

"""Composing the configuration of another command, as that command itself would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lmtransfer.config import overrides, paths
from lmtransfer.config.budget import settle_budget
from lmtransfer.config.diagnose import diagnose
from lmtransfer.config.primary import drop_null_groups
from lmtransfer.config.user_paths import settle_paths


@contextmanager
def composed(command: str, words: Sequence[str], *, config_dir: str | None = None) -> Iterator[DictConfig]:
    """The configuration of ``lmtransfer <command> <words>``, while the block lasts.

    Args:
        command: its name.
        words: ``key=value``, as they would be typed.
        config_dir: the user's own config folder.

    Raises:
        ConfigError: what Hydra refuses, every problem with the nearest names.
    """
    given = overrides.read(words).overrides
    folders = [paths.conf_dir(), *([] if config_dir is None else [Path(config_dir)])]
    given = drop_null_groups(given, primary=command, folders=folders)
    searched = [] if config_dir is None else [f"hydra.searchpath=[{Path(config_dir).absolute().as_uri()}]"]
    before = HydraConfig.instance().cfg
    outer = GlobalHydra.instance().hydra  # of the command that asks
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
            cfg = compose(command, overrides=[*given, *searched], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise diagnose(error, command=command, overrides=given, config_dir=config_dir, is_sweep=False) from error
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
    try:
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        settle_paths(cfg)
        settle_budget(cfg, primary=command)
        yield cfg
    finally:
        HydraConfig.instance().cfg = before

"""Composes a command's configuration with Hydra, and turns it into plain data.

Nothing outside ``launch`` knows Hydra. Its state is set only while it composes or resolves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as compose_with_hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lmtransfer.config import paths
from lmtransfer.config.settings import COMMANDS, key_of
from lmtransfer.errors import ConfigError
from lmtransfer.launch import overrides, recipes
from lmtransfer.launch.phases import complete_phases
from lmtransfer.launch.plain import LOOK_UP, to_plain
from lmtransfer.launch.refusals import REFUSALS, arguments_if_known, diagnose
from lmtransfer.launch.short_forms import expand_overlap, expand_parts
from lmtransfer.system.addresses import REMEDY, keys_with_credentials
from lmtransfer.system.validation import inner_type, is_text, texts


@dataclass(frozen=True, slots=True)
class Composed:
    """The composed configuration of a command line.

    Attributes:
        config: the configuration, not resolved.
        hydra_config: the key ``hydra`` with Hydra's own settings.
        config_dir: the user's own folder with configs.
        config_name: the name of the primary config, if it is not the command's name.
        note: what the user should know about the composition.
    """

    command: str
    config: DictConfig
    hydra_config: DictConfig
    config_dir: str | None = None
    config_name: str | None = None
    note: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The overrides, as written."""
        words: Any = OmegaConf.to_container(self.hydra_config.hydra.overrides.task, resolve=False)  # "${...}" stays
        return tuple(map(str, words))

    @property
    def folders(self) -> list[Path]:
        """The folders with configs, in search order."""
        return paths.config_folders(self.config_dir)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the command line with which a job finds the same configs."""
        folder = () if self.config_dir is None else ("-cd", str(self.folders[-1]))
        return folder if self.config_name is None else (*folder, "--config-name", self.config_name)

    @property
    def choices(self) -> dict[str, str | None]:
        """The choice of each group."""
        return {str(group): choice for group, choice in self.hydra_config.hydra.runtime.choices.items()}

    @property
    def is_sweep(self) -> bool:
        """Whether a config asks for a sweep."""
        return bool(self.hydra_config.hydra.mode == RunMode.MULTIRUN)

    @property
    def swept(self) -> dict[str, Any]:
        """The values that a config sweeps, by key."""
        params = self.hydra_config.hydra.sweeper.params
        values: Any = {} if params is None else OmegaConf.to_container(params, resolve=False)
        return {str(key): value for key, value in values.items()}

    def plain(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Expand the short forms and the phases, and return the configuration as ``to_plain`` does.

        Raises:
            ConfigError: a short form or a phase is wrong, or a text contains credentials or may not look anything up.
        """
        written: Any = OmegaConf.to_container(self.config, resolve=False)
        if private := [*keys_with_credentials(written)]:
            raise ConfigError([f"{key}: {REMEDY}" for key in private])
        if looked_up := [*self._look_ups(written)]:
            raise ConfigError(looked_up)
        with _as_hydra_config(self.hydra_config):
            try:
                expand_parts(self.config, self.folders)
                expand_overlap(self.config, self.folders)
                complete_phases(self.config)
            except OmegaConfBaseException as error:
                where = f"{error.full_key}: " if error.full_key else ""
                raise ConfigError(where + str(error).splitlines()[0]) from error
            return to_plain(self.config)

    def _look_ups(self, written: dict[str, Any]) -> Iterator[str]:
        """Yield a problem for each text that would read a value of this machine, although others will read it."""
        only_text = {name: written.get(name) for name in COMMANDS[self.command].only_text}
        for key, text in texts(only_text, ""):
            if LOOK_UP.search(text):
                yield (
                    f"{key}: {text[:60]!r} reads a value from this machine, but a {self.command} may contain only "
                    "plain text: write the value itself"
                )


def compose_files(primary: str | None, words: Sequence[str], *, config_dir: str | None = None) -> DictConfig:
    """Compose a primary config, if any, with ``key=value`` overrides; Hydra's own settings are under ``hydra``.

    Hydra can compose for only one command at a time; its state is restored afterwards for the caller.

    Raises:
        HydraException: Hydra rejects the overrides; this can also be another error in ``REFUSALS``.
    """
    return _compose_fitted(primary, words, config_dir)[0]


def _compose_fitted(primary: str | None, words: Sequence[str], config_dir: str | None) -> tuple[DictConfig, str | None]:
    """Compose as ``compose_files`` does, and return the note on the recipe too."""
    fitted = recipes.fit_recipe(primary, words, paths.config_folders(config_dir))
    searched = [] if config_dir is None else [f"hydra.searchpath=[{Path(config_dir).absolute().as_uri()}]"]
    outer, base = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
            config = compose_with_hydra(primary, overrides=[*fitted.words, *searched], return_hydra_config=True)
    finally:
        GlobalHydra.instance().clear()
        VersionBase.instance().version_base = base
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
    with read_write(config.hydra):
        config.hydra.overrides.task = list(words)
        if fitted.name is not None:
            config.hydra.runtime.choices[recipes.GROUP] = fitted.name
    return config, fitted.note


@contextmanager
def _as_hydra_config(hydra_config: DictConfig) -> Iterator[None]:
    """Let ``${hydra:...}`` refer to these settings inside the block."""
    state: Any = HydraConfig.instance()
    before, state.cfg = state.cfg, hydra_config
    try:
        yield
    finally:
        state.cfg = before


def compose(
    command: str,
    words: Sequence[str],
    *,
    config_name: str | None = None,
    config_dir: str | None = None,
    sweep: Sequence[str] = (),
) -> Composed:
    """Compose the configuration of ``lmtransfer <command> <words>``.

    Args:
        words: ``key=value`` overrides, quoted for Hydra.
        config_name: the name of the command's own config, if it is not the command's name.
        sweep: the overrides of the sweep that has the command as a point; error messages refer to them.

    Raises:
        ConfigError: Hydra rejects the overrides or the user's configs.
    """
    primary = config_name or command
    words = _quote_choices(words, paths.config_folders(config_dir))
    try:
        config, note = _compose_fitted(primary, words, config_dir)
        typed = _quote_text_values(words, config, command)
        if typed != words:
            config, note = _compose_fitted(primary, typed, config_dir)
    except REFUSALS as error:
        raise refusal(error, command, sweep or words, config_name, config_dir, is_sweep=bool(sweep)) from error
    hydra_config = OmegaConf.masked_copy(config, ["hydra"])
    with open_dict(config):
        del config["hydra"]
    return Composed(command, config, hydra_config, config_dir, None if primary == command else primary, note)


def refusal(
    error: Exception,
    command: str,
    words: Sequence[str],
    config_name: str | None,
    config_dir: str | None,
    *,
    is_sweep: bool,
) -> ConfigError:
    """Return the error to show in place of Hydra's error for a command line."""
    return diagnose(
        error,
        command=config_name or command,
        words=words,
        folders=paths.config_folders(config_dir),
        is_sweep=is_sweep,
        compose=lambda others: compose_files(config_name or command, others, config_dir=config_dir),
    )


def built_in_node(group: str, choice: str, **changes: Any) -> dict[str, Any]:
    """Return the node that a built-in config makes on its own, with references resolved.

    Args:
        changes: values that replace those of the config before references are resolved.
    """
    changed = [f"{group}.{name}={value}" for name, value in changes.items()]
    values, _ = to_plain(compose_files(None, [f"+{group}={choice}", *changed])[group])
    node: dict[str, Any] = values
    return node


def quote_texts(words: Sequence[str], *, command: str, config_dir: str | None) -> list[str]:
    """Quote the values of text settings in overrides, so that Hydra does not read ``name=1e3`` as 1000.0."""
    folders = paths.config_folders(config_dir)
    words = _quote_choices(words, folders)
    if not any(overrides.has_number(word) for word in words):
        return words
    try:
        config = compose_files(command, overrides.first_values(words, folders), config_dir=config_dir)
    except (ConfigError, *REFUSALS):
        return words  # composing the points raises the same error
    return _quote_text_values(words, config, command)


def _quote_choices(words: Sequence[str], folders: list[Path]) -> list[str]:
    return [overrides.quote_numbers(word) if paths.is_group(key_of(word), folders) else word for word in words]


def _quote_text_values(words: Sequence[str], config: DictConfig, command: str) -> list[str]:
    return [
        overrides.quote_numbers(word)
        if overrides.has_number(word) and is_text(_annotation(key_of(word), config, command))
        else word
        for word in words
    ]


def _annotation(key: str, config: DictConfig, command: str) -> Any:
    """Return the type of a setting, according to its component or to the command's settings."""
    annotation: Any = COMMANDS.get(command, Any)
    node: Any = config
    for name in key.split("."):
        if isinstance(node, DictConfig) and "_target_" in node:
            argument = arguments_if_known(node["_target_"]).get(name)
            annotation = Any if argument is None else argument.annotation
        else:
            annotation = inner_type(annotation, name)
        node = node._get_node(name) if isinstance(node, DictConfig) else None
    return annotation

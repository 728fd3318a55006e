"""Command-line arguments: options, and ``key=value`` overrides, quoted so that Hydra reads them as the user means.

Hydra interprets brackets, commas, quotes, ``=`` and other characters inside a value. This is right for numbers and
lists, but wrong for text and for paths such as ``init=runs/pretrain/imdb/objective.mask_prob=0.15``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import HydraException

from lmtransfer.config import paths
from lmtransfer.config.nearest import hint, nearest_name, translate_word
from lmtransfer.config.settings import key_of
from lmtransfer.errors import ConfigError
from lmtransfer.launch.plain import literal
from lmtransfer.system.addresses import REMEDY, has_credentials, is_free_text

#: The options of every command, with the number of values ("?" for at most one, which is not an override).
OPTIONS = {
    "--help": "0",
    "-h": "0",
    "--multirun": "0",
    "-m": "0",
    "--cfg": "1",
    "-c": "1",
    "--resolve": "0",
    "--package": "1",
    "-p": "1",
    "--config-dir": "1",
    "-cd": "1",
    "--config-name": "1",
    "-cn": "1",
    "--info": "?",
    "-i": "?",
    "--hydra-help": "0",
}
#: The options that set how a command runs; with any other option, it prints something instead.
_OF_RUNS = frozenset({"--multirun", "-m", "--config-dir", "-cd", "--config-name", "-cn"})
#: An option that only the jobs of a sweep have.
_POINT = "--point"

#: A quoted text, or an unquoted word in a value other than a mapping's key.
_WORD = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(?P<word>[^\s,\[\]{}():'"]+)(?!\s*:)(?![^\s,\[\]{}():'"])""")

_CONFIG_KINDS = ("job", "hydra", "all")
_INFO_KINDS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_VALUES = {"--cfg": _CONFIG_KINDS, "-c": _CONFIG_KINDS, "--info": _INFO_KINDS, "-i": _INFO_KINDS}


@dataclass(slots=True)
class CommandLine:
    """The words of a command line, sorted by kind.

    Attributes:
        overrides: ``key=value`` and similar forms (``+key=value``, ``~key``), quoted if needed.
        bare: words that are neither options nor overrides.
        asks: whether an option asks for an output instead of a run.
        point: the settings that make this command a point of a sweep (``sweep_names.as_point``).
    """

    options: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    config_dir: str | None = None
    config_name: str | None = None
    asks: bool = False
    point: str | None = None
    is_sweep: bool = False


def read(words: Sequence[str]) -> CommandLine:
    """Sort the words that follow a command's name by kind."""
    line = CommandLine(is_sweep=any(word in ("-m", "--multirun") for word in words))
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not is_free_text(key_of(word)) and has_credentials(word):
            is_key = "=" in word and ":/" not in key_of(word)
            raise ConfigError(f"{key_of(word) if is_key else f'word {len(words) - len(rest)}'}: {REMEDY}")
        if not word.startswith("-"):
            is_override = "=" in word or word.startswith("~")
            if is_override and not key_of(word).strip():
                raise ConfigError(f"{word}: there is no key before the '='")
            (line.overrides if is_override else line.bare).append(word)
            continue
        option, equals, value = word.partition("=")
        if option == _POINT:
            line.point = value
            continue
        if option not in OPTIONS:
            raise ConfigError(f"there is no option {option}; {_instead_of(option, equals + value, rest)}")
        line.options.append(option)
        line.asks = line.asks or option not in _OF_RUNS
        takes = OPTIONS[option]
        if not equals and (takes == "1" or (takes == "?" and rest and "=" not in rest[0] and rest[0][0] != "-")):
            if not rest:
                raise ConfigError(f"the option {option} needs a value")
            value, equals = rest.pop(0), "="
        if equals:
            if option in _VALUES and value not in _VALUES[option]:
                raise ConfigError(
                    f"the option {option} does not accept '{value}'; {hint(value, _VALUES[option], what='values')}"
                )
            line.options.append(value)
        if option in ("--config-dir", "-cd"):
            line.config_dir = value
        if option in ("--config-name", "-cn"):
            line.config_name = value
    line.overrides = [quote_value(override, is_sweep=line.is_sweep) for override in line.overrides]
    return line


def _instead_of(option: str, value: str, rest: Sequence[str]) -> str:
    """Suggest an option or a setting to use in place of an unknown option."""
    name = option.lstrip("-")
    long = [known.lstrip("-") for known in OPTIONS if known.startswith("--")]
    if len(name) < 2 or not name[0].isalpha() or nearest_name(name, long):
        return hint(option, OPTIONS, what="options")
    key = translate_word(name.replace("-", "_"))
    if not value and rest and "=" not in rest[0] and not rest[0].startswith("-"):
        value = f"={rest[0]}"
    return f"settings have no dashes: write {key}{value or '=<value>'} (options: {', '.join(OPTIONS)})"


def quote_value(override: str, *, is_sweep: bool = False) -> str:
    """Quote the value of an override for Hydra if it is free text or Hydra cannot read it.

    Args:
        is_sweep: whether commas separate the values of a sweep, except in free text.
    """
    key, equals, value = override.partition("=")
    if not equals:
        return override
    if is_free_text(key):
        return f"{key}={quote(value)}"
    if value.startswith(("[", "{")) or _try_parse(override) is not None:
        return override
    parts = value.split(",") if is_sweep else [value]
    return f"{key}={','.join(part if _try_parse(f'{key}={part}') else quote(part) for part in parts)}"


def quote(value: str) -> str:
    """Quote text as a single value for Hydra, which then interprets nothing in the text, not even ``${...}``."""
    return QuotedString(text=literal(value), quote=Quote.single).with_quotes()


def quote_numbers(override: str) -> str:
    """Quote numbers, true and false in an override, so that they are text: ``name=1e3`` becomes ``name='1e3'``."""
    key, equals, value = override.partition("=")
    text = f"{key}{equals}{_WORD.sub(_quoted_number, value)}"
    return text if _try_parse(text) is not None else override


def point_option(overrides: str) -> str:
    """Return the option that makes a command a point of a sweep."""
    return f"{_POINT}={overrides}"


def first_values(words: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return the overrides of a sweep's first point."""
    return [each_value(parse(word), folders)[0] for word in words]


def each_value(override: Override, folders: Sequence[Path]) -> list[str]:
    """Return ``key=value`` for each value of an override, at least one.

    Args:
        folders: the config folders, whose files ``glob()`` selects.
    """
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), cast("Glob | None", override.value())
    if isinstance(value, Glob):
        texts = value.filter(paths.group_options(override.key_or_group, folders))
    elif override.is_discrete_sweep():
        texts = list(override.sweep_string_iterator())
    else:
        raise ConfigError(f"{override.input_line}: a sweep needs single values, such as {key}=1,2 or {key}=range(1,3)")
    if not texts:
        raise ConfigError(f"{override.input_line}: there is no such value; list the values, such as {key}=a,b")
    return [f"{key}={text}" for text in texts]


def has_number(override: str) -> bool:
    """Whether Hydra reads part of the value as a number, true or false."""
    words = (match["word"] for match in _WORD.finditer(override.partition("=")[2]))
    return any(word and _number(word) is not None for word in words)


def _number(word: str) -> int | float | bool | None:
    """Return the number or boolean that Hydra reads from ``word``; None if Hydra reads text."""
    if not word[0].isdigit() and word[0] not in "+-." and word.lower() not in ("true", "false", "inf", "nan"):
        return None
    override = _try_parse(f"key={word}")
    value = None if override is None else override.value()
    return value if isinstance(value, int | float) else None


def _quoted_number(match: re.Match[str]) -> str:
    word = match["word"]
    return match[0] if not word or _number(word) is None else quote(word)


def parse(override: str) -> Override:
    """Parse one override."""
    result = _try_parse(override)
    if result is None:
        raise ConfigError(
            f"{override}: this cannot be read as key=value; write a list as [a,b] and a mapping as {{a:1,b:2}}, and "
            "quote text with brackets or commas twice: \"key='a, b'\""
        )
    return result


#: The Hydra settings that a user may change: whether a command sweeps, and over which values (in a recipe).
_HYDRA_SETTINGS = ("hydra.mode", "hydra.sweeper.params")
_LAUNCHERS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper")


def is_hydra_setting(override: str) -> bool:
    """Whether an override changes a Hydra setting, or puts a group's config under ``hydra`` (``group@hydra.job``)."""
    return re.search(r"^hydra\b|[@:](_global_\.)?hydra\b", key_of(override).strip()) is not None


def hydra_problem(override: str) -> str | None:
    """Explain why an override of Hydra's own settings is not supported; return None if it is."""
    key = key_of(override).strip()
    if not is_hydra_setting(override) or _is_below(key, _HYDRA_SETTINGS):
        return None
    if _is_below(key, _LAUNCHERS):
        return (
            f"{override[:80]}: a sweep has no launchers and sweepers to choose from: jobs=4 runs four of its points at "
            "a time, and cluster=slurm submits each point to a cluster"
        )
    return (
        f"{override[:80]}: this Hydra setting is not supported, because such settings can run other programs or change "
        "the environment; the supported ones are hydra.mode and hydra.sweeper.params"
    )


def _is_below(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


#: Pairs of keys that exclude each other, because they set the same thing.
_SAME_SETTING = (("schedule.warmup_steps", "schedule.warmup_fraction"),)


def check_overrides(words: Sequence[str], folders: Sequence[Path]) -> None:
    """Reject contradictory overrides and unsupported Hydra settings."""
    chosen: dict[str, str] = {}
    problems = [problem for problem in map(hydra_problem, words) if problem]
    for word in words:
        key, _, value = word.partition("=")
        if value == "null" or key.startswith("~"):
            continue
        if key in chosen and chosen[key] != word and paths.is_group(key, list(folders)):
            problems.append(f"{chosen[key]} and {word} are both given: keep only one")
        chosen[key.lstrip("+")] = word
        if value.startswith("[") and paths.is_group(key, list(folders)):
            choices = Counter(_choices(word))
            problems += [f"{word}: {choice} is listed twice: keep it once" for choice in choices if choices[choice] > 1]
    problems += [
        f"{chosen[first]} and {chosen[second]} set the same thing: keep only one"
        for first, second in _SAME_SETTING
        if first in chosen and second in chosen
    ]
    if problems:
        raise ConfigError(problems)


def _choices(override: str) -> list[str]:
    """Return the names in ``group=[a,b]``; empty if the override cannot be read, which is reported later."""
    parsed = _try_parse(override)
    value = None if parsed is None or parsed.is_sweep_override() else parsed.value()
    return [str(choice) for choice in value] if isinstance(value, list) else []


@lru_cache(maxsize=256)  # each word is read several times on the way to a run
def _try_parse(override: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None

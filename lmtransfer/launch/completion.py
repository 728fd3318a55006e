"""Tab completion of commands, options, groups, keys and values, for bash, zsh and fish.

The shell calls ``lmtransfer --complete`` with the current line in ``COMP_LINE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmtransfer.config import main_help, paths
from lmtransfer.config.nearest import list_names
from lmtransfer.errors import ConfigError
from lmtransfer.system.source_docs import argument_choices
from lmtransfer.system.validation import inner_type, listed_values, value_at

_BASH = """\
_lmtransfer_complete() {
    local line="${COMP_LINE:0:$COMP_POINT}" word
    word="${line##* }"
    mapfile -t COMPREPLY < <(COMP_LINE="$line" lmtransfer --complete 2>/dev/null)
    case "${COMPREPLY[0]}" in *=|*.|*/) compopt -o nospace ;; esac
    # bash replaces only what follows the last "=" or ":" of the word
    local start="${word%"${word##*[=:]}"}"
    [ -n "$start" ] && [[ "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"$start"}")
}
complete -F _lmtransfer_complete lmtransfer"""

_ZSH = """\
#compdef lmtransfer
_lmtransfer() {
    local -a matches partial whole
    matches=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" lmtransfer --complete 2>/dev/null)}")
    partial=(${(M)matches:#*[=./]})
    whole=(${matches:#*[=./]})
    compadd -Q -S '' -- $partial
    compadd -Q -- $whole
}
compdef _lmtransfer lmtransfer"""

_FISH = """\
complete -c lmtransfer -f -a '(COMP_LINE=(commandline -cp) lmtransfer --complete 2>/dev/null)'"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """Return the script that enables tab completion in a shell that evaluates it."""
    if shell not in _SCRIPTS:
        raise ConfigError(f"--shell-completion {shell}: this shell is not supported; use one of {list_names(_SCRIPTS)}")
    return _SCRIPTS[shell]


def complete(line: str, point: str | None = None) -> list[str]:
    """List the possible completions of the last word of ``line``."""
    if point and point.isdigit():
        line = line[: int(point)]
    words = line.split()
    if line.endswith(" ") or not words:
        words.append("")
    if len(words) <= 2:
        candidates = [*main_help.commands(), "--help", "--version", "--shell-completion"]
        return [name for name in candidates if name.startswith(words[-1])]
    command, last = words[1], words[-1]
    if command not in main_help.commands():
        return []
    key, equals, value = last.partition("=")
    if equals and key.rpartition(".")[2] in paths.PATH_SETTINGS:
        return [f"{key}={path}" for path in _files(value)]
    return [candidate for candidate in _candidates(command, words[2:-1], last) if candidate.startswith(last)]


def _files(start: str) -> list[str]:
    folder, _, prefix = start.rpartition("/")
    base = Path(folder or ("/" if start.startswith("/") else "."))
    try:
        entries = sorted(entry for entry in base.iterdir() if entry.name.startswith(prefix))
    except OSError:
        return []
    head = start[: len(start) - len(prefix)]
    return [f"{head}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries if not entry.name.startswith(".")]


def _candidates(command: str, words: list[str], last: str) -> list[str]:
    """List the options, the groups and keys next to those of ``last``, or the values of its key."""
    from omegaconf import OmegaConf  # slow imports, which the names of commands do not need

    from lmtransfer.launch import composing, overrides, refusals

    if last.startswith("-"):
        return list(overrides.OPTIONS)
    try:
        line = overrides.read(words)
        cfg = composing.compose_files(command, line.overrides, config_dir=line.config_dir)
    except (ConfigError, *refusals.REFUSALS):
        return []
    groups = [str(group) for group in cfg.hydra.runtime.choices if not str(group).startswith("hydra/")]
    values: Any = OmegaConf.to_container(cfg, resolve=False)
    del values["hydra"]
    key, equals, _ = last.partition("=")
    if equals and key in groups:
        return [f"{key}={choice}" for choice in paths.group_options(key, paths.config_folders(line.config_dir))]
    parent, dot, name = key.rpartition(".")
    node = value_at(values, parent) if dot else values
    if not isinstance(node, dict):
        return []
    if equals:
        return [f"{key}={value}" for value in _values(command, key, node)]
    keys = {f"{parent}{dot}{name}{'.' if isinstance(node[name], dict) else '='}" for name in node}
    return sorted(keys | {f"{group}=" for group in groups})


def _values(command: str, key: str, node: dict[str, Any]) -> list[str]:
    """List the values that the type of a setting names, and the current value."""
    from lmtransfer.config.settings import COMMANDS

    name, annotation = key.rpartition(".")[2], COMMANDS.get(command)
    for part in key.split("."):
        annotation = inner_type(annotation, part)
    named = listed_values(annotation) or argument_choices(str(node.get("_target_")), name)
    current = node.get(name)
    is_shown = isinstance(current, str | int | float) and not isinstance(current, bool) and "${" not in str(current)
    return list(dict.fromkeys([*named, *([str(current)] if is_shown else [])]))

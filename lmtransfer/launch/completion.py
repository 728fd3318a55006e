"""Tab completion for bash, zsh and fish: we complete commands, and Hydra completes overrides.

The shell calls ``lmtransfer --complete`` with the current line in ``COMP_LINE``. Hydra would read the command's name as
an override, so the name is removed from the line before Hydra sees it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from lmtransfer.config import main_help, paths
from lmtransfer.config.nearest import list_names
from lmtransfer.errors import ConfigError

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
    if last.startswith("-"):
        from lmtransfer.launch.overrides import OPTIONS

        return [option for option in OPTIONS if option.startswith(last)]
    key, equals, value = last.partition("=")
    if equals and key.rpartition(".")[2] in paths.PATH_SETTINGS:
        return [f"{key}={path}" for path in _files(value)]
    return _from_hydra(command, words[2:])


def _files(start: str) -> list[str]:
    folder, _, prefix = start.rpartition("/")
    base = Path(folder or ("/" if start.startswith("/") else "."))
    try:
        entries = sorted(entry for entry in base.iterdir() if entry.name.startswith(prefix))
    except OSError:
        return []
    head = start[: len(start) - len(prefix)]
    return [f"{head}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries if not entry.name.startswith(".")]


def _from_hydra(command: str, words: list[str]) -> list[str]:
    """List Hydra's completions of the last word; Hydra's own keys are listed only if the word starts with ``hydra``."""
    import hydra

    saved_argv, saved_line = sys.argv, os.environ.get("COMP_LINE")
    os.environ["COMP_LINE"] = " ".join(["lmtransfer", *words])
    sys.argv = ["lmtransfer", "--shell-completion", "query=fish"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            hydra.main(version_base="1.3", config_path=str(paths.conf_dir()), config_name=command)(_never)()
    except SystemExit:
        return []
    finally:
        sys.argv = saved_argv
        if saved_line is None:
            del os.environ["COMP_LINE"]
        else:
            os.environ["COMP_LINE"] = saved_line
    matches = [word for word in printed.getvalue().split("\n") if word]
    return [word for word in matches if words[-1].startswith("hydra") or not word.startswith("hydra")]


def _never(cfg: object) -> None:
    raise AssertionError("completion never runs a command")

"""The text of ``lmtransfer <command> --help``.

The text comes from comments in the YAML files. The first comment in the command's file is the description, followed by
the examples, which begin at the first line that starts with ``lmtransfer``. Comments next to keys explain the keys.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import paths
from lmtransfer.config.settings import COMMANDS
from lmtransfer.launch import config_files
from lmtransfer.launch.composing import compose_files
from lmtransfer.launch.config_files import sibling

_WIDTH = 116
_COLUMN = 38
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z_][\w.-]*):(?:\s(?P<rest>.*))?$")
_COMMENT = re.compile(r"(?:^|\s)#\s?(?P<text>.*)$")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


_PAGE = """\
{about}

EXAMPLES
  {examples}
{groups}

SETTINGS (key=value; the values are those in force with the rest of this command line)
  {settings}

OPTIONS
  -m, --multirun      run once for each combination of key=value1,value2
  -c job              print the configuration instead of running (--resolve: with references filled in)
  -cd DIR             search DIR for configs too (DIR/model/mine.yaml becomes model=mine)
  --info defaults     print which config files are read, in which order
"""


def page(command: str, words: Sequence[str], *, primary: str, config_dir: str | None = None) -> str:
    """Return a command's help page with the current values.

    Hydra's own help takes seconds, because it lists the choices of every group.

    Raises:
        HydraException: Hydra rejects the overrides; this can also be another error in ``REFUSALS``.
    """
    cfg = compose_files(primary, words, config_dir=config_dir)
    folders = paths.config_folders(config_dir)
    path = paths.find(f"{command}.yaml", folders)
    text = path.read_text(encoding="utf-8") if path else ""
    lines = leading_comment(text)
    num_about = next((index for index, line in enumerate(lines) if line.startswith("lmtransfer ")), len(lines))
    choices = {str(group): choice for group, choice in cfg.hydra.runtime.choices.items()}
    return _PAGE.format(
        about=textwrap.fill(" ".join(lines[:num_about]), _WIDTH),
        examples="\n  ".join(lines[num_about:]),
        groups="\n".join(_groups(choices, folders)),
        settings="\n  ".join(_settings(cfg, _explanations(command, text, choices, folders))),
    )


def _groups(choices: dict[str, Any], folders: list[Path]) -> list[str]:
    lines = ["", "CHOICES (group=choice; * marks the current choice)"]
    for group in sorted(group for group in choices if not group.startswith("hydra/")):
        options = paths.group_options(group.partition("@")[0], folders)
        marked = ", ".join(f"{option}*" if option == choices[group] else option for option in options)
        lines.extend(textwrap.wrap(f"  {group:<22}{marked}", _WIDTH, subsequent_indent=" " * 24))
    return lines if len(lines) > 2 else []


def _settings(cfg: DictConfig, explained: dict[str, str]) -> list[str]:
    """Render the configuration as YAML with a comment on each key: first plain settings, then the chosen groups."""
    groups = {str(group).partition("/")[0] for group in cfg.hydra.runtime.choices}
    ordered = sorted((str(key) for key in cfg if key != "hydra"), key=lambda key: key in groups)
    text = "".join(OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [key]), resolve=False) for key in ordered)
    lines = []
    for key, line in _keys(text):
        comment = explained.get(key)
        if not comment:
            lines.append(line)
            continue
        wrapped = textwrap.wrap(comment, _WIDTH - _COLUMN - 2) or [""]
        lines.append(f"{line:<{_COLUMN - 2}}  # {wrapped[0]}")
        lines.extend(f"{'':<{_COLUMN}}# {more}" for more in wrapped[1:])
    return lines


def _explanations(command: str, text: str, choices: dict[str, Any], folders: list[Path]) -> dict[str, str]:
    texts = dict(COMMANDS[command].docs()) | key_comments(text)
    for group, choice in choices.items():
        if isinstance(choice, str) and not group.startswith("hydra/"):
            name, _, package = group.partition("@")
            texts |= _of_file(name, choice, package or name.replace("/", "."), folders)
    return texts


def _of_file(group: str, choice: str, package: str, folders: list[Path]) -> dict[str, str]:
    path = paths.find(f"{group}/{choice}.yaml", folders)
    if path is None:
        return {}
    text = config_files.read_text(path)
    texts: dict[str, str] = {}
    for entry in config_files.load(path).get("defaults") or []:
        if isinstance(entry, str) and entry != "_self_":
            texts |= _of_file(group, sibling(choice, entry), package, folders)
    prefix = "" if "# @package _global_" in text else f"{package}."
    return texts | {f"{prefix}{key}": comment for key, comment in key_comments(text).items()}


def leading_comment(text: str) -> list[str]:
    """Return the lines of a file's first comment, without ``# @package`` lines."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("#").removeprefix(" ").rstrip())
    return lines


def summary(text: str) -> str:
    """Return the first line of a file's leading comment, which states description, source and cost."""
    return next(iter(leading_comment(text)), "")


def _keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield the full key and the text of each line of block-style YAML; the key is "" if the line has none."""
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            yield "", line
            continue
        indent = len(match["indent"])
        while parents and parents[-1][0] >= indent:
            parents.pop()
        parents.append((indent, match["key"]))
        yield ".".join(name for _, name in parents), line


def key_comments(text: str) -> dict[str, str]:
    """Return the comment on each key, from the end of the key's line, else from the lines directly above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    first = True
    for key, line in _keys(text):
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("#").strip())
            continue
        if key:
            match = _COMMENT.search(_QUOTED.sub(lambda quoted: "_" * len(quoted[0]), line))
            if match:
                comments[key] = line[match.start("text") :].strip()
            elif above and not first:
                comments[key] = " ".join(above)
            first = False
        above = []
    return comments

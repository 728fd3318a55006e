"""The text of ``lmtransfer <command> --help``.

The first comment in the command's config file is the description, followed by the examples, which begin at the first
line that starts with ``lmtransfer``. The fields of the command's settings and the docstrings of components explain the
keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from lmtransfer.config import paths
from lmtransfer.config.settings import COMMANDS, descriptions
from lmtransfer.launch.composing import compose_files
from lmtransfer.system.source_docs import argument_docs
from lmtransfer.system.validation import inner_type

_WIDTH = 116
_COLUMN = 40

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
    lines = leading_comment(path.read_text(encoding="utf-8")) if path else []
    num_about = next((index for index, line in enumerate(lines) if line.startswith("lmtransfer ")), len(lines))
    choices = {str(group): choice for group, choice in cfg.hydra.runtime.choices.items()}
    values: Any = OmegaConf.to_container(cfg, resolve=False)
    groups = {group.partition("/")[0] for group in choices}
    plain_first = {key: values[key] for key in sorted(values, key=lambda key: key in groups) if key != "hydra"}
    return _PAGE.format(
        about=textwrap.fill(" ".join(lines[:num_about]), _WIDTH),
        examples="\n  ".join(lines[num_about:]),
        groups="\n".join(_groups(choices, folders)),
        settings="\n".join(_settings(plain_first, COMMANDS[command], "  ")),
    )


def _groups(choices: dict[str, Any], folders: list[Path]) -> list[str]:
    lines = ["", "CHOICES (group=choice; * marks the current choice)"]
    for group in sorted(group for group in choices if not group.startswith("hydra/")):
        options = paths.group_options(group.partition("@")[0], folders)
        marked = ", ".join(f"{option}*" if option == choices[group] else option for option in options)
        lines.extend(textwrap.wrap(f"  {group:<22}{marked}", _WIDTH, subsequent_indent=" " * 24))
    return lines if len(lines) > 2 else []


def _settings(values: Mapping[str, Any], kind: Any, indent: str) -> Iterator[str]:
    """Render a group of keys as YAML, with a comment on each key that its type or its component explains."""
    texts = argument_docs(str(values.get("_target_"))) | descriptions(kind)
    groups = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    plain = {name: None if name in groups else value for name, value in values.items()}
    lines = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).splitlines()
    starts = [place for place, line in enumerate(lines) if line[0] not in " -"]
    for name, start, end in zip(values, starts, [*starts[1:], len(lines)], strict=True):
        line = indent + (f"{name}:" if name in groups else lines[start])
        comment = textwrap.wrap(texts.get(name, "").replace("``", ""), _WIDTH - _COLUMN)
        yield f"{line:<{_COLUMN - 2}}  # {comment[0]}" if comment else line
        yield from (f"{'':<{_COLUMN}}# {more}" for more in comment[1:])
        yield from (indent + more for more in lines[start + 1 : end])
        if name in groups:
            yield from _settings(groups[name], inner_type(kind, name), f"{indent}  ")


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

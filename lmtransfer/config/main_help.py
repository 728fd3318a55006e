"""The output of ``--help`` and ``help``, the guides, the version, and the message for a misspelled command.

Imports neither torch nor Hydra.
"""

from __future__ import annotations

import re
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from typing import TextIO

from lmtransfer import __version__
from lmtransfer.config.nearest import nearest_name
from lmtransfer.errors import ConfigError

GUIDES = Path(__file__).resolve().parents[1] / "guides"
#: A line of the table of contents, guides/README.md: - [Title](subject.md): what it is about
_ENTRY = re.compile(r"^- \[.+?\]\((?P<subject>[a-z]+)\.md\): (?P<about>.+)$", flags=re.MULTILINE)
_GUIDE_WIDTH = 100

_ORDER = (
    *("prepare", "import", "pretrain", "probe", "finetune", "evaluate", "predict", "serve", "embed", "export"),
    *("study", "report", "compare", "list", "inspect"),
)

_PAGE = """\
lmtransfer {version}: pretrain a text encoder, transfer it to a task, and compare it with the same model without
pretraining. The comparison shows whether pretraining helped, by how much, and how certain this is.

usage: lmtransfer <command> [key=value ...] [options]

COMMANDS
{commands}

A FIRST SESSION
  lmtransfer pretrain name=first
      a modern encoder: ten minutes on two cores, on text that is already on this machine
  lmtransfer finetune experiment=few_labels init=runs/pretrain/first task.num_train=100 control=true seeds=5 name=ft
      train on 100 labeled docstrings, with and without pretraining, five times each
  lmtransfer report runs/
      every result in one table

SETTINGS
  Every setting is key=value: train.steps=500 changes a value, model=bert_mini chooses a config file.
  lmtransfer <command> --help    the settings of a command, their values and their choices
  lmtransfer list                all models, objectives, corpora, tasks and recipes
  Configs are YAML files in {conf}
  and in your own folder: with -cd my_configs, my_configs/model/mine.yaml becomes model=mine.

THE MANUAL
  lmtransfer help                list the guides: your text, your labels, published models, studies, verdicts and more
  lmtransfer help text           show a guide

SWEEPS
  lmtransfer pretrain -m objective.mask_prob=0.05,0.15,0.4 train.steps=500
      one run for each value (or combination of values), and a table at the end; a rerun skips finished runs
      jobs=4 performs four of them at a time, cluster=slurm submits each to a cluster

OTHER
  lmtransfer --version
  lmtransfer --shell-completion bash|zsh|fish    prints a script: eval "$(lmtransfer --shell-completion bash)"
"""


_GUIDES_PAGE = """\
lmtransfer help <subject> shows a guide, lmtransfer help <command> the settings of a command.

GUIDES
{guides}

COMMANDS
{commands}"""


def commands() -> dict[str, str]:
    """Return the first line of each command's docstring, by command, in the order of a typical session."""
    folder = Path(__file__).resolve().parents[1] / "commands"
    paths = {path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")}
    names = [name for name in _ORDER if name in paths] + sorted(set(paths) - set(_ORDER))
    return {name: _first_line(paths[name]) for name in names}


def main_page() -> str:
    """Return the output of ``lmtransfer --help``."""
    from lmtransfer.config import paths

    lines = [f"  {name:<10} {about}" for name, about in commands().items()]
    return _PAGE.format(version=__version__, commands="\n".join(lines), conf=paths.conf_dir()).rstrip()


def subjects() -> dict[str, str]:
    """Return the description of each guide, by subject, in reading order."""
    contents = (GUIDES / "README.md").read_text(encoding="utf-8")
    return {entry["subject"]: entry["about"] for entry in _ENTRY.finditer(contents)}


def list_guides() -> str:
    """Return the output of ``lmtransfer help``: the guides, one per line, and the commands."""
    guides = "\n".join(f"  {subject:<14} {about}" for subject, about in subjects().items())
    names = textwrap.fill(", ".join(commands()), 110, initial_indent="  ", subsequent_indent="  ")
    return _GUIDES_PAGE.format(guides=guides, commands=names)


def show_guide(subject: str, out: TextIO) -> None:
    """Write a guide to ``out``: formatted if ``out`` is a terminal, else as Markdown."""
    known = subjects()
    if subject not in known:
        similar = nearest_name(subject, [*known, *commands()])
        suggestion = f"did you mean '{similar}'? " if similar else ""
        raise ConfigError(
            f"there is no guide '{subject}'; {suggestion}guides: {', '.join(known)} (see lmtransfer help)"
        )
    text = (GUIDES / f"{subject}.md").read_text(encoding="utf-8")
    if not out.isatty():
        print(text.rstrip(), file=out)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=out)
    console.print(Markdown(_for_terminal(text), hyperlinks=False), width=min(console.width, _GUIDE_WIDTH))


def _for_terminal(text: str) -> str:
    """Remove images from a guide, and replace links to other guides with the commands that show these guides."""
    text = re.sub(r"^!\[.*\n\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^]]+)\]\(([a-z]+)\.md(?:#[\w-]+)?\)", r"\1 (`lmtransfer help \2`)", text)
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)


def version() -> str:
    """Return the output of ``lmtransfer --version``: one line with the versions that can change results."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"lmtransfer {__version__} (Python {python}, torch {metadata.version('torch')})"


def explain_unknown_command(command: str) -> str:
    """Return the message for a command that does not exist."""
    names = list(commands())
    if command.startswith("-") or "=" in command:
        return f"the command must come first: lmtransfer <command> {command}; commands: {', '.join(names)}"
    name = nearest_name(command, names)
    suggestion = f"did you mean '{name}'? " if name else ""
    return f"there is no command '{command}'; {suggestion}commands: {', '.join(names)} (see lmtransfer --help)"


def _first_line(path: Path) -> str:
    _, quotes, rest = path.read_text(encoding="utf-8").partition('"""')
    line = rest.lstrip().splitlines()[0] if quotes else ""
    return line.removesuffix('"""').strip().rstrip(".")

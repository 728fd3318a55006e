"""The pages of ``lmtransfer`` itself: help, version, and the message for a misspelt command.

Imports neither torch nor Hydra.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from lmtransfer import __version__
from lmtransfer.config.nearest import nearest

_ORDER = (
    "prepare",
    "import",
    "pretrain",
    "probe",
    "finetune",
    "evaluate",
    "predict",
    "serve",
    "embed",
    "export",
    "study",
    "report",
    "compare",
    "list",
    "inspect",
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
      train on 100 labelled docstrings, with pretraining and without it, five times each
  lmtransfer report runs/
      every result in one table

SETTINGS
  Everything is key=value: train.steps=500 changes a setting, model=bert_mini chooses a config file.
  lmtransfer <command> --help    the settings of a command, their values and their choices
  lmtransfer list                all models, objectives, corpora, tasks and recipes
  Configs are YAML files in {conf}
  and in your own folder: -cd my_configs, where my_configs/model/mine.yaml becomes model=mine.

SWEEPS
  lmtransfer pretrain -m objective.mask_prob=0.05,0.15,0.4 train.steps=500
      one run for each value (or combination of values), and a table at the end; a rerun skips finished runs
      hydra/launcher=joblib hydra.launcher.n_jobs=4 makes four runs at the same time, submitit_slurm uses a cluster

OTHER
  lmtransfer --version
  lmtransfer --shell-completion bash|zsh|fish    prints a script: eval "$(lmtransfer --shell-completion bash)"
"""


def commands() -> dict[str, str]:
    """The commands and the first line of each docstring, in the order in which a session uses them."""
    folder = Path(__file__).resolve().parents[1] / "commands"
    found = {path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")}
    names = [name for name in _ORDER if name in found] + sorted(set(found) - set(_ORDER))
    return {name: _first_line(found[name]) for name in names}


def main_page() -> str:
    """The output of ``lmtransfer --help``."""
    from lmtransfer.config import paths

    lines = [f"  {name:<10} {about}" for name, about in commands().items()]
    return _PAGE.format(version=__version__, commands="\n".join(lines), conf=paths.conf_dir()).rstrip()


def version() -> str:
    """The output of ``lmtransfer --version``: one line with the versions that can change results."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"lmtransfer {__version__} (Python {python}, torch {metadata.version('torch')})"


def unknown(command: str) -> str:
    """The message for a command that does not exist."""
    names = list(commands())
    if command.startswith("-") or "=" in command:
        return f"the command comes first: lmtransfer <command> {command}; commands: {', '.join(names)}"
    found = nearest(command, names)
    suggestion = f"did you mean '{found}'? " if found else ""
    return f"there is no command '{command}'; {suggestion}commands: {', '.join(names)} (see lmtransfer --help)"


def _first_line(path: Path) -> str:
    """The first line of a module's docstring, without importing or parsing the module."""
    _, quotes, rest = path.read_text(encoding="utf-8").partition('"""')
    line = rest.lstrip().splitlines()[0] if quotes else ""
    return line.removesuffix('"""').strip().rstrip(".")

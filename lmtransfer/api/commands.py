"""The commands as functions.

Each function takes the settings of its command. A string is a word of the command line, and a keyword is a top-level
key: ``pretrain("corpus=text", "corpus.path=my/texts", name="mine", train={"steps": 200})``. A dictionary holds the keys
of a node. ``lmtransfer <command> --help`` shows all keys. Values of keywords are taken as they are: a string is text,
None is null, and a path or a ``Run`` is its path. A function makes one run and returns when it is finished. It raises
an error of ``lmtransfer.errors`` with the message of the command line, and prints what the command prints.

Functions can be called any number of times, also in a notebook. Hydra's state is restored after each call. Calls from
several threads run one after another, because Hydra knows one running command in a process; for more at the same time,
start several processes. In the main thread, Ctrl-C finishes a training step, saves, and raises ``Interrupted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtransfer.api.results import Report, Run, TransferRun
from lmtransfer.api.settings import Folder, Setting, command_line
from lmtransfer.launch.command import call_command


def pretrain(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Run:
    """Pretrain an encoder on raw text; see ``lmtransfer pretrain --help``.

    Args:
        words: settings as on the command line, such as ``"corpus.path=my/texts"``.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``model="bert_mini"``, ``train={"steps": 200}`` or ``name="mine"``.

    Returns:
        The run; it can be the ``init`` of the other functions.

    Raises:
        LmtransferError: the message of the command line.
    """
    return Run(_called("pretrain", words, config_dir, settings))


def probe(*words: str, config_dir: Folder | None = None, **settings: Setting) -> TransferRun:
    """Train a head on a frozen encoder; see ``lmtransfer probe --help``.

    Args:
        words: settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``init=run``, ``task="sst2"``, ``seeds=5`` and ``control=True``.

    Returns:
        The run, with the scores of all its seeds.

    Raises:
        LmtransferError: the message of the command line.
    """
    return TransferRun(_called("probe", words, config_dir, settings))


def finetune(*words: str, config_dir: Folder | None = None, **settings: Setting) -> TransferRun:
    """Train a pretrained encoder and a new head on a task; see ``lmtransfer finetune --help``.

    Args:
        words: settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``init=run``, ``task="sst2"``, ``seeds=5`` and ``control=True``.

    Returns:
        The run, with the scores of all its seeds.

    Raises:
        LmtransferError: the message of the command line.
    """
    return TransferRun(_called("finetune", words, config_dir, settings))


def evaluate(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Run:
    """Score a run on a split, or measure the losses of a pretrained one; see ``lmtransfer evaluate --help``.

    Args:
        words: settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``run=...`` and ``split="test"``.

    Returns:
        A new run with the scores.

    Raises:
        LmtransferError: the message of the command line.
    """
    return Run(_called("evaluate", words, config_dir, settings))


def predict(*words: str, config_dir: Folder | None = None, **settings: Setting) -> list[dict[str, Any]]:
    """Answer a text, a file or a split, or fill in masks; see ``lmtransfer predict --help``.

    ``load`` answers many texts without loading the run each time.

    Args:
        words: settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``run=...`` and ``text="A film to remember."`` or ``input="reviews.tsv"``.

    Returns:
        One dictionary for each input, as the command writes it in JSON; an empty list if ``output`` names a file.

    Raises:
        LmtransferError: the message of the command line.
    """
    answers: list[dict[str, Any]] = []
    _called("predict", words, config_dir, settings, write=answers.extend)
    return answers


def export(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Path | None:
    """Write a run for other libraries or as it is, and push it to the hub; see ``lmtransfer export --help``.

    Args:
        words: settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``run=...`` and ``to="my-model"``.

    Returns:
        The folder of the export; None if it was only pushed.

    Raises:
        LmtransferError: the message of the command line.
    """
    folder: Path | None = _called("export", words, config_dir, settings)
    return folder


def report(*words: Folder, config_dir: Folder | None = None, **settings: Setting) -> Report:
    """Compare all results in tables and figures; see ``lmtransfer report --help``.

    Args:
        words: folders of runs, ``runs`` by default, and settings as on the command line.
        config_dir: a folder with your own configs.
        settings: settings by key, such as ``to="my-report"``.

    Returns:
        The report.

    Raises:
        LmtransferError: the message of the command line.
    """
    return Report(_called("report", words, config_dir, settings))


def _called(
    command: str,
    words: tuple[Folder, ...],
    config_dir: Folder | None,
    settings: Mapping[str, Setting],
    **arguments: Any,
) -> Any:
    return call_command(command, command_line(words, settings, config_dir=config_dir), **arguments)

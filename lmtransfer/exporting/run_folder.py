"""A run as it is: its files without those that belong to this machine, to continue it elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import ModelCardData

from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs import lock
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.trust import OWN_MARK
from lmtransfer.system.printable import printable

#: Folders inside a run that other commands have made from it.
_MADE_FROM_IT = frozenset({"onnx", "report", "figures", "tensorboard"})


def write_run(directory: RunDirectory, folder: Path, *, name: str, place: str, on_hub: bool) -> None:
    """Copy the files of a run and write a card that says how to use them.

    Args:
        directory: the run.
        folder: where to; exists.
        name: name of the run in its card.
        place: where others find the copy: a folder, or ``owner/name`` on the hub.
        on_hub: whether it is on the hub.

    Raises:
        RunDirectoryError: another process is writing the run.
    """
    try:
        lock.hold(directory.path)
    except lock.Busy as busy:
        raise RunDirectoryError(
            f"run={directory.path}: another process ({busy.pid}) is writing it: wait until it ends, or stop it with "
            "Ctrl-C (it then saves the run)"
        ) from None
    except OSError:
        pass  # a run that cannot be written is not being written
    for path in run_files(directory.path):
        copied = folder / path.relative_to(directory.path)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    (folder / "README.md").write_text(_card(directory, name, place, on_hub), encoding="utf-8")


def run_files(path: Path) -> Iterator[Path]:
    """The files of a run that can be used on another machine, in order."""
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry.is_symlink() or entry.name == OWN_MARK:
            continue
        if entry.is_dir() and entry.name not in _MADE_FROM_IT:
            yield from run_files(entry)
        elif entry.is_file():
            yield entry


def _card(directory: RunDirectory, name: str, place: str, on_hub: bool) -> str:
    metadata = ModelCardData(library_name="lmtransfer", tags=["lmtransfer"])
    name, place = printable(name), printable(place)
    state = "finished" if directory.is_finished else "unfinished"
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# {name}\n\n"
        f"A run of lmtransfer ({state}): its configuration, tokenizer, checkpoints and metrics.\n\n"
        "## Use\n\n"
        "Start from it, or copy it below `runs/` and continue it there by the command that began it:\n\n"
        f"```\nlmtransfer finetune init={'hf:' if on_hub else ''}{place}\nlmtransfer import source={place}\n```\n"
    )

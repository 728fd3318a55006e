"""Acquiring a run directory: a new one is made, an existing one is opened by the only process that may write it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs import lock
from lmtransfer.system.safe_files import check_folder


def acquire(folder: Path, *, resume: bool) -> str | None:
    """Make the directory of a run and take its lock.

    A folder left by a start that was killed before it wrote the configuration is not a run; it is cleared first.

    Args:
        folder: absolute path.
        resume: resume the run if it exists.

    Returns:
        An error message, or None on success.
    """
    config = folder / "config.yaml"
    exists_already = (
        f"the run {folder} exists already: choose another name=, continue it with resume=true, or delete the folder"
    )
    try:
        with contextlib.suppress(FileExistsError):
            lock.make_folder(folder)
        if not folder.is_dir():
            return f"{folder} exists and is not a folder: choose another name=, or move it away"
        begins = not (config.exists() or lock.holds(folder)) and lock.is_beginning(folder)
        if not begins and not resume:
            return exists_already
        lock.hold(folder)
        if config.exists() and not resume:  # another process was faster
            lock.release(folder)
            return exists_already
        if begins and not config.exists():
            lock.clear(folder)
        check_folder(folder, error=RunDirectoryError)
    except lock.Busy as busy:
        other = "another process" if busy.pid is None else f"another process ({busy.pid})"
        return (
            f"{other} is writing the run {folder}, and only one process may write a run: wait until it ends, or "
            "stop it with Ctrl-C or SIGTERM (it then saves the run)"
        )
    except RunDirectoryError as error:
        return str(error)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"cannot make the run directory {folder}: {reason}; set output_root=<another folder>"
    return None

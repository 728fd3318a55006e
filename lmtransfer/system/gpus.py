"""Which GPU a process takes when several processes share a machine: jobs of a study, points of a sweep, two shells."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

#: The GPU of this process and the locked file that says so, by the GPUs it chose from.
_held: dict[tuple[str, ...], tuple[int, IO[str]]] = {}


def claim_gpu(names: Sequence[str], *, folder: Path | None = None) -> int:
    """The index of a GPU that the fewest processes of this user have claimed; the claim ends with this process.

    Args:
        names: a name for each GPU, the same in every process.
        folder: folder of the locks; None: one in the system's folder for temporary files.
    """
    if tuple(names) in _held:
        return _held[tuple(names)][0]
    folder = folder or Path(tempfile.gettempdir()) / f"lmtransfer-gpus-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in itertools.count():
            for index, name in enumerate(names):
                file = (folder / f"{name}.{place}").open("a")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.close()
                    continue
                _held[tuple(names)] = index, file
                return index
    except OSError:  # no locks here: as if this were the only process
        pass
    return 0

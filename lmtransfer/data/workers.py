"""How a worker process behaves when its parent is interrupted or killed."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import connection, parent_process


def follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end this process when the parent is gone (one that was killed cannot end it)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()


def _leave_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)

"""The message for an unexpected exception."""

from __future__ import annotations

import os
import shlex
import traceback
from collections.abc import Sequence

#: Set to anything but 0, it shows the traceback.
TRACEBACK = "LMTRANSFER_TRACEBACK"
_LONGEST = 600


def last_resort(error: BaseException, words: Sequence[str]) -> str:
    """One line: what happened, that it is a bug, and how to get the traceback; followed by it if requested.

    Args:
        error: the exception.
        words: words of the command line.
    """
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        return "".join(traceback.format_exception(error)).rstrip() + "\nThis is a bug of lmtransfer: please report it"
    message, command = (" ".join(text.split()) for text in (str(error), shlex.join(["lmtransfer", *words])))
    message, command = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in (message, command))
    return (
        f"{type(error).__name__}{f': {message}' if message else ''}. This is a bug of lmtransfer; to see where, and to "
        f"report it: {TRACEBACK}=1 {command}"
    )

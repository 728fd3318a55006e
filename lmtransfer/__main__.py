"""``python -m lmtransfer`` does the same as ``lmtransfer``."""

from __future__ import annotations

import contextlib
import os
import sys

if not sys.flags.safe_path and sys.path:
    # "python -m" searches the current folder first, which may contain a file such as yaml.py.
    with contextlib.suppress(OSError):
        if sys.path[0] in ("", os.getcwd()):
            del sys.path[0]

from lmtransfer.cli import main

if __name__ == "__main__":
    sys.exit(main())

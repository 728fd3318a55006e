"""The entry point for ``python -m lmtransfer``, which does the same as ``lmtransfer``."""

from __future__ import annotations

import contextlib
import os
import sys

if not sys.flags.safe_path and sys.path:
    # "python -m" searches the current folder first, and a study may lie next to someone's yaml.py. The folder that this
    # package was found in is searched last, since worker processes import it again.
    with contextlib.suppress(OSError):
        if sys.path[0] in ("", os.getcwd()):
            sys.path[:] = [*sys.path[1:], os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from lmtransfer.cli import main

if __name__ == "__main__":
    sys.exit(main())

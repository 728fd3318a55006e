"""``python -m lmtransfer`` is ``lmtransfer``."""

from __future__ import annotations

import sys

from lmtransfer.cli import main

if __name__ == "__main__":
    sys.exit(main())

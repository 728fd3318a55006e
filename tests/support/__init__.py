"""What tests of several rooms share: checks, tables, and programs that tests start as processes."""

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
#: The variable of that name for a process that imports these helpers: ``python -m support.<name>``.
PYTHONPATH = os.pathsep.join([str(ROOT), str(TESTS)])

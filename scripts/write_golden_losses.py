"""Write the losses of twenty small steps of every objective, which ``tests/unit/test_golden_losses.py`` compares with.

    python scripts/write_golden_losses.py

To be run only where a change is meant to change training. A change of names or structure must leave them as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit")]

from golden_losses import FILE, golden_losses  # noqa: E402
from objective_table import NAMES  # noqa: E402


def main() -> None:
    """Compute, write and name them."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: golden_losses(name, Path(folder)) for name in NAMES}
    lines = [f" {json.dumps(name)}: {json.dumps(losses)}" for name, losses in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE}: {len(found)} objectives")


if __name__ == "__main__":
    main()

"""Write the losses of twenty small steps of every objective, which ``tests/unit/test_golden_losses.py`` compares with.

    python scripts/write_golden_losses.py [objective ...]

Without names all objectives are written, with names only these. To be run only where a change is meant to change
training. A change of names or structure must leave the losses as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit")]

from golden_losses import FILE, golden_losses, written  # noqa: E402
from objective_table import NAMES  # noqa: E402
from steps import run_script  # noqa: E402


def main() -> None:
    """Compute, write and name them."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = sys.argv[1:] or NAMES
        found = {name: golden_losses(name, Path(folder)) if name in chosen else written()[name] for name in NAMES}
    lines = [f" {json.dumps(name)}: {json.dumps(losses)}" for name, losses in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE}: {', '.join(chosen)}")


if __name__ == "__main__":
    run_script(main)

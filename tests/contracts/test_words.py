"""Names of this package consist of words that the field, the glossary or the list of accepted words has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # reads the sources of ten libraries
def test_every_unusual_word_was_looked_at() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "list_unusual_words.py")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed == "0 words\n", f"rename these, or add them to scripts/accepted_words.txt:\n{listed}"

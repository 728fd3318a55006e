"""Every command has a page worth reading, and every config file says what it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lmtransfer.config import main_help, paths
from lmtransfer.config.command_help import leading_comment, summary

CONFIGS = sorted(path for path in paths.conf_dir().rglob("*.yaml") if "hydra" not in path.parts)
COMMANDS = list(main_help.commands())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(paths.conf_dir())))
def test_every_config_starts_with_what_it_is(path: Path) -> None:
    line = summary(path.read_text(encoding="utf-8"))
    assert len(line) > 5, f"{path.name}: the first line should say what it is, its source and its cost"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_docstring_a_config_and_examples(command: str) -> None:
    assert main_help.commands()[command]
    lines = leading_comment((paths.conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    examples = [line for line in lines if line.startswith("lmtransfer ")]
    assert lines
    assert not lines[0].startswith("lmtransfer ")
    assert len(examples) >= 2
    assert all(shlex.split(re.sub(r"(?<=\w)'s\b", "s", example))[1] == command for example in examples)


def test_every_primary_config_has_a_command() -> None:
    assert {path.stem for path in paths.conf_dir().glob("*.yaml")} == set(COMMANDS)

"""Every command has a page worth reading, and every config file says what it is."""

from __future__ import annotations

import re
import shlex

import pytest

from lmtransfer.config import main_help, paths
from lmtransfer.config.command_help import leading_comment, summary

COMMANDS = list(main_help.commands())


def test_every_config_starts_with_what_it_is_its_source_and_its_cost() -> None:
    configs = [path for path in paths.conf_dir().rglob("*.yaml")]
    assert [path.name for path in configs if len(summary(path.read_text(encoding="utf-8"))) <= 5] == []
    assert configs


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

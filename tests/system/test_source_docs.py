"""What the source of a class says is what its import says, but nothing is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lmtransfer.config import paths
from lmtransfer.config.component import arguments_of, resolve
from lmtransfer.launch.config_files import group_config
from lmtransfer.system.source_docs import argument_choices, argument_docs
from lmtransfer.system.validation import listed_values

BASE = '''
    raise SystemExit("imported")
    Colour = Literal["red", "green"]

    class Base(Generic[T]):
        """A base.

        Attributes:
            size: how large it is; may
                take two lines.

        Raises:
            ValueError: never.
        """

        size: int = 3
        colour: Colour | None = None

    class Task:
        class Settings:
            """
            Attributes:
                name: of a task.
            """
            name: str
            is_fast: bool = False
    '''
DERIVED = '''
    from my_package.base import Base as Root, Task
    from torch import nn

    class Mine(Root[int], nn.Module):
        def __init__(self, size: Literal[1, 2], *, form: Literal["a"] | Literal["b", "c"] = "a") -> None:
            """Make it.

            Args:
                size: its own text: with a colon.
            """

    class MyTask(Task):
        class Settings(Task.Settings):
            """Attributes:"""
            is_fast: bool | None
    '''


@pytest.fixture(autouse=True)
def my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "base.py").write_text(dedent(BASE))
    (folder / "derived.py").write_text(dedent(DERIVED))
    (folder / "broken.py").write_text("class Broken(:")
    (tmp_path / "single.py").write_text("class One:\n    switch: bool\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_docstrings_of_bases_constructors_and_settings_are_read_without_importing() -> None:
    assert argument_docs("my_package.base.Base") == {"size": "how large it is; may take two lines"}
    assert argument_docs("my_package.derived.Mine") == {"size": "its own text: with a colon"}
    assert argument_docs("my_package.derived.MyTask") == {"name": "of a task"}
    assert "my_package" not in sys.modules


def test_values_are_those_of_literals_booleans_and_null() -> None:
    assert argument_choices("my_package.derived.Mine", "size") == ["1", "2"]
    assert argument_choices("my_package.derived.Mine", "form") == ["a", "b", "c"]
    assert argument_choices("my_package.derived.Mine", "colour") == ["red", "green", "null"]
    assert argument_choices("my_package.derived.MyTask", "is_fast") == ["true", "false", "null"]
    assert argument_choices("my_package.base.Task", "name") == []
    assert argument_choices("single.One", "switch") == ["true", "false"]


@pytest.mark.parametrize(
    "target",
    ["", "None", "no_such_package.Class", "my_package.Class", "my_package.broken.Broken", "my_package..x", "__main__.X"]
    + ["my_package./etc/passwd.X", "...", "my_package.base.Colour", "my_package.derived.Task.Nothing"],
)
def test_what_cannot_be_read_has_no_docs(target: str) -> None:
    assert argument_docs(target) == {}
    assert argument_choices(target, "x") == []


def test_the_values_of_every_argument_are_those_of_the_imported_class() -> None:
    groups = {path.parent.name for path in paths.conf_dir().glob("*/*.yaml")} - {"experiment", "study", "phases"}
    configs = [
        group_config(group, choice, [paths.conf_dir()]) or {}
        for group in groups
        for choice in paths.group_options(group, [paths.conf_dir()])
    ]
    targets = {config["_target_"] for config in configs if "_target_" in config}
    assert len(targets) > 40
    different = []
    for target in sorted(targets):
        for name, argument in arguments_of(resolve(target)).items():
            expected = sorted(set(listed_values(argument.annotation)) - {"null"})
            if sorted(set(argument_choices(target, name)) - {"null"}) != expected:
                different.append((target, name, argument_choices(target, name), expected))
    assert different == []

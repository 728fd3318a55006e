"""Text that comes from data or from a saved run is never read as an interpolation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fakes.configs import check_problems
from omegaconf import OmegaConf

import lmtransfer
from lmtransfer.config.component import BROKEN
from lmtransfer.launch.overrides import parse, quote
from lmtransfer.launch.plain import literal, to_plain

TEXTS = [
    *(
        "${price}",
        "$free",
        "${",
        "${oc.env:HOME}",
        "a\\${b}",
        "\\\\${b}",
        "x\\",
        "${a}\\",
        "$${x}",
        "{${",
        "\u00e9${\n}",
    ),
    *("${a}${b}\\\\", "\\$\\{", "}${{'", '${x:"}', "tail ${ \\", "${${name}}", "???", "'${a}'"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_config_returns_the_text_itself(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "a-secret")
    cfg = OmegaConf.create({"name": "run", "task": {"labels": None}, "other": literal({"a": [text], "b": {"c": text}})})
    cfg.task.labels = literal([text])
    if text == "???":  # the config's own word for a missing value
        assert [*to_plain(cfg, "")[1]] == ["task.labels[0]", "other.a[0]", "other.b.c"]
    else:
        assert cfg.task.labels[0] == cfg.other.a[0] == cfg.other.b.c == text
        wanted = {"name": "run", "task": {"labels": [text]}, "other": {"a": [text], "b": {"c": text}}}
        assert to_plain(cfg, "") == (wanted, {})
        assert to_plain(OmegaConf.create(literal(wanted)), "") == (wanted, {})  # as often as it is read and written


def test_missing_values_and_broken_references_are_problems() -> None:
    values, problems = to_plain(OmegaConf.create({"dim": "???", "rate": "${nowhere}", "size": 3}), "model")
    assert values == {"dim": BROKEN, "rate": BROKEN, "size": 3}
    check_problems([f"{key}: {problem}" for key, problem in problems.items()],
                   {"model.dim": ("model.dim=<value>",), "model.rate": ("nowhere",)})  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_quoted_text_on_a_command_line_is_the_text_itself(text: str) -> None:
    cfg = OmegaConf.create({"text": str(parse(f"text={quote(text)}").value())})
    if text != "???":
        assert cfg.text == text


def test_an_empty_environment_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "")
    cfg = OmegaConf.create({"data_root": "${oc.env:MINE,null}", "name": "", "same": "${name}"})
    assert to_plain(cfg) == ({"data_root": None, "name": "", "same": ""}, {})


def test_no_other_module_makes_a_config_of_plain_values() -> None:
    """Values enter a new config only through ``literal``, but for those of the files that it is read from."""
    root = Path(lmtransfer.__file__).parent
    calls = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OmegaConf.create", "OmegaConf.merge"):
                argument = ast.unparse(node.args[0]) if node.args else "literal()"
                calls.append(
                    f"{path.name}: {argument}" if not argument.startswith(("literal(", "config_files.load(")) else ""
                )
    assert calls
    assert not [call for call in calls if call]

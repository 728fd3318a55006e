"""Text that comes from data or from a saved run is never read as an interpolation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import lmtransfer
from lmtransfer.config.overrides import parse, quote
from lmtransfer.config.plain import literal, resolve_config

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
    if text != "???":  # the config's own word for a missing value
        assert cfg.task.labels[0] == cfg.other.a[0] == cfg.other.b.c == text
    wanted = {"name": "run", "task": {"labels": [text]}, "other": {"a": [text], "b": {"c": text}}}
    assert resolve_config(cfg) == wanted
    assert resolve_config(OmegaConf.create(literal(wanted))) == wanted  # as often as it is read and written


@pytest.mark.parametrize("text", TEXTS)
def test_a_quoted_text_on_a_command_line_is_the_text_itself(text: str) -> None:
    cfg = OmegaConf.create({"text": str(parse(f"text={quote(text)}").value())})
    if text != "???":
        assert cfg.text == text


def test_no_other_module_makes_a_config_of_plain_values() -> None:
    """Outside ``config``, which reads the user's own files, values enter a new config only through ``literal``."""
    root = Path(lmtransfer.__file__).parent
    calls = []
    for path in root.rglob("*.py"):
        if path.parent == root / "config":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OmegaConf.create", "OmegaConf.merge"):
                argument = ast.unparse(node.args[0]) if node.args else "literal()"
                calls.append(f"{path.name}: {argument}" if not argument.startswith("literal(") else "")
    assert calls
    assert not [call for call in calls if call]

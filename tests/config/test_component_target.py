from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes import configs
from support.refusals import refuses

from lmtransfer.config.component import resolve
from lmtransfer.errors import ConfigError
from lmtransfer.models.bert import BertEncoder


@pytest.fixture
def allow_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    configs.allow(monkeypatch)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "somewhere_else, fakes.configs")


def test_classes_of_allowed_packages_are_found(allow_toys: None) -> None:
    import torch

    assert resolve("lmtransfer.models.bert.BertEncoder") is BertEncoder
    assert resolve("torch.optim.AdamW") is torch.optim.AdamW
    assert resolve("fakes.configs.Net") is configs.Net


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "subprocess.Popen",
        "pip.main",
        "torch.load",
        "torch.optimizers.AdamW",
        "lmtransferred.Net",
        "fakes.configs.Net",
    ],
)
def test_other_packages_are_refused_by_name(target: str) -> None:
    with refuses(ConfigError, "model._target_: ", f"'{target}'", "LMTRANSFER_ALLOW"):
        resolve(target, key="model")


def test_a_refused_package_is_not_even_imported(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refuses(ConfigError, "'hostile_module.Anything'", "LMTRANSFER_ALLOW"):
        resolve("hostile_module.Anything")
    assert "hostile_module" not in sys.modules


@pytest.mark.parametrize("target", ["fakes.configs.system", "fakes.configs.Path", "fakes.configs.not_a_class"])
def test_foreign_objects_in_allowed_modules_are_refused(target: str, allow_toys: None) -> None:
    with refuses(ConfigError, f"'{target}'", "class", "torch.optim, somewhere_else, fakes.configs") as raised:
        resolve(target)
    assert "LMTRANSFER_ALLOW" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("lmtransfer.config.component.os.system", "lmtransfer.config.component"),
        ("lmtransfer.cli.sys.exit", "lmtransfer.cli"),
        ("lmtransfer.models.bert.BertEncoder.__init__", "lmtransfer.models.bert"),
    ],
)
def test_walking_through_an_allowed_module_is_refused(target: str, module: str) -> None:
    with refuses(ConfigError, f"'{target}'", f"'{module}'", "package"):
        resolve(target)


@pytest.mark.parametrize("target", [None, 3, "", "lmtransfer", "lmtransfer..errors", "lmtransfer.errors.Data Error"])
def test_what_is_no_path_of_a_class_is_said(target: object) -> None:
    with refuses(ConfigError, f"{target!r}", "package.module.Class"):
        resolve(target)


def test_misspelt_classes_and_modules_are_answered_with_the_nearest() -> None:
    with refuses(ConfigError, "'lmtransfer.models.bert.BertEncodr'", "'BertEncoder'"):
        resolve("lmtransfer.models.bert.BertEncodr")
    with refuses(ConfigError, "'lmtransfer.erors.DataError'", "'errors'"):
        resolve("lmtransfer.erors.DataError")


def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_module.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "needy_module")
    with refuses(ConfigError, "'needy_module.Anything'", "'a_package_nobody_has'"):
        resolve("needy_module.Anything")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (None, ["'their_package'", "PYTHONPATH"]),
        ("def (", ["__init__.py:1", "SyntaxError"]),
        ("\nvalue = 1 / 0\n", ["__init__.py:2", "ZeroDivisionError"]),
        ("import no_such_module\n", ["'no_such_module'", "not installed"]),
    ],
    ids=["missing", "no Python", "fails", "needs another"],
)
def test_a_package_that_cannot_be_imported_is_the_users(
    content: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "their_package").mkdir()
        (tmp_path / "their_package/__init__.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LMTRANSFER_ALLOW", "their_package")
    with refuses(ConfigError, "model._target_", "their_package.Model", *names):
        resolve("their_package.Model", key="model")

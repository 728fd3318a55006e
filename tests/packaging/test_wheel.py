"""The wheel, installed outside the repository, runs with its own configs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = run("-m", "pip", "wheel", *options, "-w", str(folder), str(ROOT), cwd=folder)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("lmtransfer-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel), cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_the_wheel_holds_every_config_and_no_test(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {
        f"lmtransfer/conf/{path.relative_to(ROOT / 'conf').as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")
    }
    assert configs
    assert configs <= names
    assert {"lmtransfer/py.typed", "lmtransfer/__init__.pyi"} <= names
    templates = ROOT / "lmtransfer" / "reporting" / "page" / "templates"
    assert {path.relative_to(ROOT).as_posix() for path in templates.iterdir()} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "lmtransfer" / "guides").iterdir()} <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "conf/"))]


@pytest.mark.slow
def test_the_installed_package_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    listed = run("-m", "lmtransfer", "list", "models", cwd=tmp_path, PYTHONPATH=str(installed))
    assert listed.returncode == 0, listed.stderr
    assert "bert_mini" in listed.stdout
    page = run("-m", "lmtransfer", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert str(installed / "lmtransfer" / "conf") in page.stdout
    help_page = run("-m", "lmtransfer", "list", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "lmtransfer list " in help_page.stdout
    guide = run("-m", "lmtransfer", "help", "text", cwd=tmp_path, PYTHONPATH=str(installed))
    assert guide.stdout.startswith("# Your own text")
    assert list(tmp_path.iterdir()) == []
    (entry_points,) = installed.glob("lmtransfer-*.dist-info/entry_points.txt")
    assert "lmtransfer = lmtransfer.cli:main" in entry_points.read_text()

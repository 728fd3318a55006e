from __future__ import annotations

from pathlib import Path

import pytest

from lmtransfer import cli
from lmtransfer.commands.list import KINDS
from lmtransfer.config import paths
from lmtransfer.launch.command_help import summary


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


def test_everything_there_is_is_listed_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for kind, group in KINDS.items():
        for path in (paths.conf_dir() / group).glob("*.yaml"):
            assert f"{kind} ({group}=<name>)" in shown
            assert path.stem in shown
            assert summary(path.read_text(encoding="utf-8")) in shown


@pytest.mark.parametrize("words", [["models"], ["what=models"], ["model"], ["models", "trackers"]])
def test_chosen_kinds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", *words]) == 0
    shown = capsys.readouterr().out
    assert "bert_mini" in shown
    assert ("trackers (" in shown) == ("trackers" in words)
    assert "corpora" not in shown


def test_a_kind_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "modles"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("what=modles", "'models'", "all, ")), said


def test_configs_of_a_users_folder_are_listed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\n# My recipe; me; an hour\nseed: 3\n")
    assert cli.main(["list", "recipes", "-cd", str(own.parent)]) == 0
    shown = capsys.readouterr().out
    assert "mine" in shown
    assert "My recipe; me; an hour" in shown

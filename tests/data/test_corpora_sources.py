from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.data.corpora.sources import locate
from lmtransfer.errors import DataError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "b.txt",
        "a.txt.gz",
        "sub/c.jsonl.xz",
        "sub/c.jsonl",
        "sub/deep/d.parquet",
        ".hidden.txt",
        ".git/e.txt",
        "NOTICE",
        "x.raw",
    ):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "texts"


def names(paths: str | list[str], tree: Path) -> list[str]:
    files = locate(paths).files
    assert all(os.path.isabs(file) for file in files)
    return [str(Path(file).relative_to(tree)) for file in files]


def test_a_folder_is_searched_in_a_fixed_order(tree: Path) -> None:
    assert names(str(tree), tree) == ["a.txt.gz", "b.txt", "sub/c.jsonl", "sub/deep/d.parquet"]
    assert not locate(str(tree)).named


def test_relative_paths_start_where_the_command_was_started(tree: Path) -> None:
    assert names("texts/b.txt", tree) == names("./texts/../texts/b.txt", tree) == ["b.txt"]


def test_a_file_is_found_compressed(tree: Path) -> None:
    assert names("texts/a.txt", tree) == ["a.txt.gz"]
    assert locate("texts/a.txt").named


def test_patterns_and_lists(tree: Path) -> None:
    assert names("texts/*.txt*", tree) == ["a.txt.gz", "b.txt"]
    assert names("texts/**/*.jsonl", tree) == ["sub/c.jsonl"]
    assert names(["texts/x.raw", "texts/b.txt", "texts/*.txt"], tree) == ["x.raw", "b.txt"]
    assert locate(["texts/x.raw", "texts/b.txt"]).named


def test_a_literal_name_wins_over_a_pattern(tree: Path) -> None:
    (tree / "[1].txt").touch()
    assert names("texts/[1].txt", tree) == ["[1].txt"]


def test_what_is_not_there_is_said(tree: Path) -> None:
    with refuses(DataError, "corpus.path=texts/gone", f"{tree}/gone"):
        locate("texts/gone")
    with refuses(DataError, "corpus.path=texts/*.csv", f"{tree}/*.csv"):
        locate("texts/*.csv")
    with refuses(DataError, "corpus.path: ", "list"):
        locate([])
    (tree / "other").mkdir()
    with refuses(DataError, "corpus.path=texts/other", f"{tree}/other", ".txt", ".jsonl", ".parquet", ".zst"):
        locate("texts/other")

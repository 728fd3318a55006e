"""A folder with texts, a task and a small run, to do harm to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.bad_input import FT, PRETRAIN, SECRET, Answer

from lmtransfer import cli
from lmtransfer.runs.trust import mark_as_own


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a task and a small run."""
    world = tmp_path_factory.mktemp("base")
    words = [f"{start}{middle}{end}" for start in "bdfgk" for middle in "aeiou" for end in "lmnrst"]
    (world / "texts").mkdir()
    lines = (" ".join(words[(7 * row + 11 * place * place) % len(words)] for place in range(12)) for row in range(300))
    (world / "texts" / "a.txt").write_text("\n".join(f"{line}.{'' if row % 6 else chr(10)}"
                                                     for row, line in enumerate(lines)))  # fmt: skip
    (world / "t.tsv").write_text("label\ttext\n" + "good\tbal bam\nbad\tkit kis\n" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        patch.setenv("LMTRANSFER_CACHE", str(world / "cache"))
        assert cli.main([*PRETRAIN[:-1], "name=base"]) == 0
    return world


@pytest.fixture
def world(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to do harm to, which is the current folder."""
    shutil.copytree(base, tmp_path / "w")
    monkeypatch.chdir(tmp_path / "w")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "w" / "cache"))
    monkeypatch.setenv("SECRET", SECRET)
    return tmp_path / "w"


@pytest.fixture(scope="session")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder with a run of a task, ``runs/finetune/ft``, of two seeds with a choice of rates."""
    world = tmp_path_factory.mktemp("trained")
    shutil.copytree(base, world, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        patch.setenv("LMTRANSFER_CACHE", str(world / "cache"))
        assert cli.main([*FT[:-1]]) == 0
    return world


@pytest.fixture
def task_world(trained: Path, world: Path) -> Path:
    """A folder to do harm to, with that run."""
    shutil.copytree(trained / "runs/finetune", world / "runs/finetune")
    for path in (world / "runs/finetune").rglob("config.yaml"):
        path.write_text(path.read_text().replace(str(trained), str(world)))
        mark_as_own(path.parent)
    return world


@pytest.fixture
def answer(world: Path, capfd: pytest.CaptureFixture[str]) -> Answer:
    """Run a command line in this process; its status, and all that it said."""

    def run(*words: str) -> tuple[int, str]:
        try:
            status = cli.main(list(words))
        except SystemExit as leave:
            status = int(leave.code or 0)
        out, err = capfd.readouterr()
        return status, out + err

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every sixth row of the long tables is tried by ``make test``, the others by ``make test-slow``."""
    here = Path(__file__).parent
    rows = [item for item in items if item.path.parent == here and hasattr(item, "callspec")]
    for place, item in enumerate(rows):
        if place % 6:
            item.add_marker(pytest.mark.slow)

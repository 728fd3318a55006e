"""A folder of someone else: what may be in it, wherever its links lead."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.untrusted.files import check_folder


def link(name: str, target: str) -> Callable[[Path], object]:
    """Make a link in the folder; its target is relative to the link, or absolute."""
    return lambda folder: (folder / name).symlink_to(target)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file outside": (link("notes.txt", "../secret/a.txt"), "notes.txt"),
    "a folder outside": (link("inside/more", "../../secret"), "inside/more"),
    "everything": (link("root", "/"), "root"),
    "a file that may come later": (link("inside/later.txt", "../../later.txt"), "later.txt"),
    "a neighbour of the same beginning": (link("near", "../run-2"), "near"),
    "a link to a link": (lambda folder: (link("a", "../b")(folder), (folder / "../b").symlink_to("secret")), "a"),
    "a device": (link("config.yaml", "/dev/zero"), "config.yaml"),
    "a pipe": (lambda folder: os.mkfifo(folder / "inside/x.npz"), "pipe"),
    "a pipe by a link": (lambda folder: (os.mkfifo(folder / "p"), link("inside/x", "../p")(folder)), "pipe"),
}
ALLOWED: dict[str, Callable[[Path], object]] = {
    "another file of it": link("inside/again.txt", "../own.txt"),
    "a loop": link("inside/loop", ".."),
    "nothing in it": link("inside/none", "nothing"),
    "an environment": lambda folder: ((folder / ".venv").mkdir(), link(".venv/python", "/usr/bin/env")(folder)),
    "logs of a tracker": lambda folder: ((folder / "trackers").mkdir(), link("trackers/log", "/var/log")(folder)),
    "logs of a seed": lambda folder: ((folder / "s/trackers").mkdir(parents=True), link("s/trackers/x", "/")(folder)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a.txt").write_text("secret")
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run/inside").mkdir(parents=True)
    (tmp_path / "run/own.txt").write_text("own")
    return tmp_path / "run"


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_leads_out_or_has_no_end_is_refused(name: str, folder: Path) -> None:
    make, named = REFUSED[name]
    make(folder)
    (folder.parent / "by-link").symlink_to(folder)
    for path in (folder, folder.parent / "by-link"):
        with refuses(RunDirectoryError, str(path), named):
            check_folder(path, error=RunDirectoryError)


@pytest.mark.parametrize("name", list(ALLOWED))
def test_links_inside_it_are_allowed(name: str, folder: Path) -> None:
    ALLOWED[name](folder)
    check_folder(folder, error=RunDirectoryError)


def test_a_copy_in_the_cache_of_the_hub_may_use_its_blobs_and_nothing_else(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--name"
    for part in ("blobs", "refs", "snapshots/1234/seed-0"):
        (cache / part).mkdir(parents=True)
    (cache / "blobs/56").write_text("{}")
    copy = cache / "snapshots/1234"
    (copy / "config.json").symlink_to("../../blobs/56")
    (copy / "seed-0/config.yaml").symlink_to("../../../blobs/56")
    check_folder(copy, error=RunDirectoryError)
    check_folder(copy / "seed-0", error=RunDirectoryError)
    (copy / "refs").symlink_to("../../refs")
    with refuses(RunDirectoryError, "refs"):
        check_folder(copy, error=RunDirectoryError)

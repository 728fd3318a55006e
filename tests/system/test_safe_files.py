"""Other people's folders and files: allowed content, links, and that reading them takes little time."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Required

import numpy as np
import pytest
from annotated_types import Ge, MinLen
from safetensors.numpy import save_file
from support.refusals import refuses
from typing_extensions import TypedDict

from lmtransfer.errors import CheckpointError, RunDirectoryError
from lmtransfer.system.safe_files import (
    check_folder,
    open_unlinked,
    parse_yaml,
    read_bytes,
    read_json,
    read_json_lines,
    read_tensors,
    read_yaml,
    yaml_problem,
)


def link(name: str, target: str) -> Callable[[Path], object]:
    """Create a link in the folder; its target is relative to the link, or absolute."""
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


class Part(TypedDict):
    kind: str


class State(TypedDict, total=False):
    step: Required[Annotated[int, Ge(0)]]
    loss: float | None
    parts: Annotated[dict[str, Part], MinLen(1)]
    sizes: list[int]


SECRET = "root:x:0:0"
FIELDS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "missing": (b"{}", ("step", "is missing")),
    "text": (b'{"step": "3"}', ("step", "'3'", "integer")),
    "half": (b'{"step": 3.0}', ("step", "3.0", "integer")),
    "truth": (b'{"step": true}', ("step", "true", "integer")),
    "negative": (b'{"step": -1}', ("step", "-1", "0 or more")),
    "nan": (b'{"step": 1, "further": [{"a": NaN}]}', ("further[0].a", "nan", "finite")),
    "infinite": (b'{"step": 1, "loss": 1e999}', ("loss", "inf", "finite")),
    "long": (b'{"step": 1, "loss": %d}' % 10**400, ("loss", "64 bits")),
    "too long to parse": (b'{"step": %s}' % (b"9" * 10_000), ("JSON",)),
    "inner": (b'{"step": 1, "parts": {"a": {"kind": "b"}, "c": {"kind": 3}}}', ("parts.c.kind", "3", "text")),
    "inner missing": (b'{"step": 1, "parts": {"a": {}}}', ("parts.a.kind", "missing")),
    "no part": (b'{"step": 1, "parts": {}}', ("parts", "at least 1")),
    "item": (b'{"step": 1, "sizes": [1, 2, "x"]}', ("sizes[2]", "'x'")),
    "list": (b"[1, 2]", ("the content must be a mapping",)),
    "number": (b"3", ("the content must be a mapping",)),
    "nested": (b'{"step": 1, "a": ' + b"[" * 101 + b"]" * 101 + b"}", ("nested", "100")),
    "deep": (b"[" * 100_000, ("nested", "100")),
    "empty": (b"", ("JSON",)),
    "bytes": (b"\xff\xfe\x00", ("JSON",)),
}


@pytest.mark.parametrize("name", list(FIELDS))
def test_a_document_that_does_not_fit_is_refused_by_file_and_field(name: str, tmp_path: Path) -> None:
    content, named = FIELDS[name]
    (tmp_path / "a.json").write_bytes(content)
    with refuses(CheckpointError, f"{tmp_path}/a.json: ", *named):
        read_json(tmp_path / "a.json", State, error=CheckpointError)
    (tmp_path / "a.jsonl").write_bytes(b'\n{"step": 1}\n' + content + b"\n")
    (_, _, value, problem), *rest = read_json_lines(tmp_path / "a.jsonl", State, error=CheckpointError)
    assert (value, problem) == ({"step": 1}, None)
    for number, line, value, problem in rest:  # an empty line is skipped
        assert (number, line, value) == (3, content + b"\n", None)
        assert all(part in str(problem) for part in named)


def test_a_document_that_fits_is_returned_with_its_further_keys(tmp_path: Path) -> None:
    content: dict[str, Any] = {"step": 2, "loss": None, "parts": {"a": {"kind": "b", "c": [None, True, 0.5]}}}
    content |= {"further": {"deep": json.loads("[" * 97 + "1" + "]" * 97)}, "sizes": []}
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(content).encode())
    found = read_json(tmp_path / "a.json", State, error=CheckpointError)
    assert found == content
    (tmp_path / "a.yaml").write_text(json.dumps(content))
    assert read_yaml(tmp_path / "a.yaml", State, error=CheckpointError) == content
    (tmp_path / "a.json").write_text('{"step": 1, "loss": NaN, "further": Infinity}')
    assert np.isnan(read_json(tmp_path / "a.json", State, error=CheckpointError, finite=False)["loss"] or 0)


@pytest.mark.parametrize("content", [SECRET, f"'{SECRET}", f"- {SECRET}", f"{SECRET}: [", f"? [{SECRET}]"])
def test_no_message_shows_what_another_file_holds(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(content)
    (tmp_path / "a.json").write_text(json.dumps(content) if content == SECRET else content)
    for read, name in ((read_yaml, "a.yaml"), (read_json, "a.json")):
        with refuses(CheckpointError, name) as raised:
            read(tmp_path / name, State, error=CheckpointError)  # type: ignore[operator]
        assert SECRET not in str(raised.value)


def test_a_document_with_a_million_problems_is_refused_soon(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"step": 1, "sizes": ["x"] * 1_000_000}))
    began = time.monotonic()
    with refuses(CheckpointError, "a.json: ", "1,000,000"):
        read_json(tmp_path / "a.json", State, error=CheckpointError)
    assert time.monotonic() - began < 20


YAML: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "alias": (b"a: &a [x, x]\nb: [*a, *a]\n", ("line 2", "alias")),
    "itself": (b"a: &a [*a]\n", ("line 1", "*a", "itself")),
    "base 60": (b"a: 1" + b":1" * 300_000, ("line 1", "1:1:1", "quotes")),
    "base 60 by a tag": (b"a: !!int '1" + b":1" * 300_000 + b"'\n", ("line 1", "1:1:1")),
    "deep": (b"a: " + b"[" * 5000, ("nested", "100")),
    "python": (b"a: !!python/object/apply:os.system [id]\n", ("YAML", "line 1")),
    "date": (b"step: 1\na: {b: [2020-01-01]}\n", ("a.b[0]", "date")),
    "set": (b"step: 1\na: !!set {x}\n", ("a", "set")),
    "no date": (b"a: 2020-13-45\n", ("YAML",)),
    "key": (b"step: 1\na: {1.5: x}\n", ("a", "keys")),
    "nan": (b"step: 1\na: .nan\n", ("a: nan", "finite")),
    "large": (b"step: 1\na: '" + b"x" * (1 << 22) + b"'", ("bytes",)),
}


@pytest.mark.parametrize("name", list(YAML))
def test_yaml_that_is_not_plain_is_refused_soon(name: str, tmp_path: Path) -> None:
    content, named = YAML[name]
    (tmp_path / "a.yaml").write_bytes(content)
    began = time.monotonic()
    with refuses(CheckpointError, f"{tmp_path}/a.yaml: ", *named):
        read_yaml(tmp_path / "a.yaml", State, error=CheckpointError)
    with refuses(CheckpointError, "README.md: ", *named):
        parse_yaml(content, State, source="README.md", error=CheckpointError)
    assert time.monotonic() - began < 20


def test_aliases_may_repeat_so_many_values_and_no_more() -> None:
    doubled = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"  # 3 + 3, then 7 + 7 values
    assert yaml_problem(doubled, most_repeated=20) is None
    assert yaml_problem(doubled, most_repeated=19) is not None


def test_irregular_and_large_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(bytes(101))
    for name, named in (
        *(("pipe", "pipe"), ("device", "device"), ("folder", "folder"), ("gone", "No such file"), ("a\0b", "null")),
        *(("large", "100 bytes"), ("large/x", "Not a directory")),
    ):
        with refuses(CheckpointError, str(tmp_path / name), named):
            read_bytes(tmp_path / name, error=CheckpointError, most=100)
    assert read_bytes(tmp_path / "large", error=CheckpointError, most=101) == bytes(101)


def tensor(**changes: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64], **changes}}).encode()


TENSORS: dict[str, tuple[bytes, int | None]] = {
    "huge header": (b"{}", 2**62),
    "header beyond the file": (b"{}", 10**6),
    "deep": (b'{"a": ' + b"[" * 100_000, None),
    "no JSON": (b"{{{", None),
    "list": (b"[1, 2, 3]", None),
    "overflow": (tensor(shape=[2**62, 8]), None),
    "negative": (tensor(shape=[-4, -4]), None),
    "type": (tensor(dtype="F7"), None),
    "no type": (tensor(dtype=None), None),
    "beyond": (tensor(shape=[400], data_offsets=[0, 1600]), None),
    "backwards": (tensor(data_offsets=[64, 0]), None),
    "no places": (tensor(data_offsets=[]), None),
    "one place": (tensor(shape=[0], data_offsets=[0]), None),
}


@pytest.mark.parametrize("name", list(TENSORS))
def test_a_tensor_file_must_match_its_header(name: str, tmp_path: Path) -> None:
    header, length = TENSORS[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + bytes(64))
    with refuses(CheckpointError, f"{path}: ", "not a safetensors file"):
        read_tensors(path, error=CheckpointError)


def test_tensors_are_read_as_written_and_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.ones((3, 5), np.float16), "b": np.zeros(0), "c": np.ones((), np.int64)}, path, {"made": "here"})
    assert {name: t.tolist() for name, t in read_tensors(path, error=CheckpointError).items()} == {
        "a": [[1.0] * 5] * 3,
        "b": [],
        "c": 1,
    }
    whole = path.read_bytes()
    for size in (0, 5, 8, 50, len(whole) - 1):
        path.write_bytes(whole[:size])
        with refuses(CheckpointError, str(path)):
            read_tensors(path, error=CheckpointError)
    path.unlink()
    os.mkfifo(path)
    with refuses(CheckpointError, str(path), "pipe"):
        read_tensors(path, error=CheckpointError)


def test_an_output_is_a_regular_file_at_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for mode, content in (("wb", b"first line\n"), ("wb", b"a\n"), ("ab", b"b\n")):
        with open_unlinked(path, mode) as file:  # type: ignore[arg-type]
            file.write(content)
    with open_unlinked(path, "rb") as file:
        assert file.read() == b"a\nb\n"
    with pytest.raises(FileNotFoundError):
        open_unlinked(tmp_path / "none", "rb")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for name, fault in (("link", "link"), ("dangling", "link"), ("folder/log", "folder: "), ("pipe", "a pipe")):
        for mode in ("rb", "ab"):
            if (name, mode) != ("pipe", "ab"):  # it has no reader
                with refuses(RunDirectoryError, fault):
                    open_unlinked(tmp_path / name, mode)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    assert path.read_bytes() == b"a\nb\n"

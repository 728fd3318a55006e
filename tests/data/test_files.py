from __future__ import annotations

import errno
import gzip
import lzma
import os
import sys
from pathlib import Path

import pytest
import zstandard
from fakes.texts import by_noun
from support.refusals import refuses

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import Meter, find_file, open_binary, read_lines
from lmtransfer.errors import DataError

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_any_compression_reads_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix]("one\r\ntwo \u00e9\u2028x\n\nfour".encode()))
    assert find_file(tmp_path / "a.txt") == path
    assert list(read_lines(path)) == [(1, "one"), (2, "two \u00e9\u2028x"), (3, ""), (4, "four")]


def test_the_plain_file_wins_over_its_compressed_copy(tmp_path: Path) -> None:
    for suffix in COMPRESS:
        (tmp_path / f"a.txt{suffix}").write_bytes(b"")
    assert find_file(tmp_path / "a.txt") == tmp_path / "a.txt"
    assert find_file(tmp_path / "b.txt") is None


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_file_cut_short_is_an_error_that_names_it(tmp_path: Path, suffix: str) -> None:
    data = COMPRESS[suffix]("".join(f"line {number * 7919}\n" for number in range(20_000)).encode())
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(data[: len(data) // 2])
    with refuses(DataError, f"{path}: ", "damaged"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_what_is_not_compressed_at_all_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"plain text\n" * 100)
    with refuses(DataError, f"{path}: ", "the file is not compressed; rename it to a.txt"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_several_frames_in_one_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"") + COMPRESS[suffix](b"o\n"))
    assert [line for _, line in read_lines(path)] == ["one", "two"]


def test_a_missing_zstandard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(COMPRESS[".zst"](b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    command = "pip install 'lmtransfer[zstd]'"
    with refuses(DataError, f"{path}: ", "package zstandard", command) as raised:
        list(read_lines(path))
    assert str(raised.value).endswith(command)


def test_bad_bytes_stop_at_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("fine\ncaf\u00e9\n".encode() + "caf\u00e9 au lait\n".encode("latin-1"))
    with refuses(DataError, f"{path}:3: ", "UTF-8", "byte 3 ", "e9 20 61 75", "encoding_errors=replace"):
        list(read_lines(path))


def test_bad_bytes_are_replaced_and_counted_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\xe9 b\nok\n\xff\xff\n")
    notes = Notes()
    assert [line for _, line in read_lines(path, encoding_errors="replace", notes=notes)] == [
        "a\ufffd b",
        "ok",
        "\ufffd\ufffd",
    ]
    assert by_noun(notes.as_dict(), "UTF-8") == {"UTF-8": {"count": 2, "first": f"{path}:1"}}


def test_utf16_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        path.write_bytes(("\ufeff" * encoding.endswith("e") + "hello\n").encode(encoding))
        for encoding_errors in ("strict", "replace"):  # decoding would give garbage
            with refuses(DataError, f"{path}: ", f"iconv -f {encoding[:6].upper()} -t UTF-8"):
                list(read_lines(path, encoding_errors=encoding_errors))


def test_a_byte_order_mark_is_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    notes = Notes()
    assert list(read_lines(path, notes=notes)) == [(1, "one"), (2, "\ufefftwo")]
    assert by_noun(notes.counts, "byte order") == {"byte order": 1}


def test_a_line_of_ten_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"word " * 2_000_000 + b"\nnext\n", 1))
    lengths = [len(line) for _, line in read_lines(path)]
    assert lengths == [10_000_000, 4]


def test_the_meter_counts_compressed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"line\n" * 10_000))
    meter = Meter()
    assert sum(1 for _ in read_lines(path, meter=meter)) == 10_000
    assert meter.done == path.stat().st_size


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "gone.txt"
    with refuses(DataError, f"{path}: ", os.strerror(errno.ENOENT)), open_binary(path):
        pass

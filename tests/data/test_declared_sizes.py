"""Files that ask for far more memory than they have bytes: refused by what they declare, in little memory."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.refusals import refuses

from lmtransfer.data.declared_sizes import TooLarge, check_arrow, most_unpacked, unpacked_bytes
from lmtransfer.data.parquet_files import open_columns
from lmtransfer.errors import DataError

MEGABYTE = 1 << 20
#: Bytes that the files below unpack to, far more than a test may take.
LARGE = 60 << 30


def _repeated(count: int) -> pa.DictionaryArray:
    """One text of a megabyte, ``count`` times."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["a" * MEGABYTE]))


def _in_lists(values: pa.Array, *offsets: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _parquet(path: Path, values: Any, **settings: Any) -> None:
    table = values if isinstance(values, pa.Table) else pa.table({"text": values})
    pq.write_table(table, path, **{"compression": "zstd", "store_schema": False, "write_statistics": False, **settings})


def _arrow(path: Path, values: pa.Array, *, stream: bool, declared: int | None = None) -> None:
    table = pa.table({"text": values})
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table)
    if declared is not None:
        raw, size = path.read_bytes(), struct.pack("<q", MEGABYTE) + b"\x28\xb5\x2f\xfd"  # before a frame of zstd
        assert size in raw
        path.write_bytes(raw.replace(size, struct.pack("<q", declared) + size[8:]))


def _packed(path: Path) -> None:
    _parquet(path.with_suffix(""), _repeated(LARGE // MEGABYTE))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


ASKING: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a text in every row": ("a.parquet", lambda path: _parquet(path, _repeated(LARGE // MEGABYTE))),
    "a text in every entry of a list": (
        "a.parquet",
        lambda path: _parquet(path, _in_lists(_repeated(LARGE // MEGABYTE), 0, LARGE // MEGABYTE)),
    ),
    "a text in every entry of lists in lists": (
        "a.parquet",
        lambda path: _parquet(path, _in_lists(_in_lists(_repeated(6000), *range(0, 6001, 3)), 0, 1, 2000)),
    ),
    "a list of numbers": (
        "a.parquet",
        lambda path: _parquet(path, _in_lists(pa.array(np.zeros(1 << 24, np.int8)), 0, 1 << 24)),
    ),
    "pages of zeros": ("a.parquet", lambda path: _parquet(path, ["a" * (96 * MEGABYTE)], use_dictionary=False)),
    "texts that continue the ones before": (
        "a.parquet",
        lambda path: _parquet(
            path,
            ["a" * MEGABYTE] * 80,
            use_dictionary=False,
            column_encoding={"text": "DELTA_BYTE_ARRAY"},
        ),
    ),
    "a compressed table": ("a.parquet.gz", _packed),
    "a batch": ("a.arrow", lambda path: _arrow(path, pa.array(["a" * (96 * MEGABYTE)]), stream=False)),
    "a batch of a stream": ("a.arrow", lambda path: _arrow(path, pa.array(["a" * (96 * MEGABYTE)]), stream=True)),
    "a batch that says so": (
        "a.arrow",
        lambda path: _arrow(path, pa.array(["a" * MEGABYTE]), stream=False, declared=LARGE),
    ),
    "a batch of a stream that says so": (
        "a.arrow",
        lambda path: _arrow(path, pa.array(["a" * MEGABYTE]), stream=True, declared=LARGE),
    ),
    "a dictionary of arrow": ("a.arrow", lambda path: _arrow(path, _repeated(LARGE // MEGABYTE), stream=False)),
}


@pytest.mark.parametrize("name", list(ASKING))
def test_files_that_ask_for_too_much_are_refused(name: str, tmp_path: Path) -> None:
    file, write = ASKING[name]
    write(tmp_path / file)
    assert (tmp_path / file).stat().st_size < 8 * MEGABYTE
    with refuses(DataError, file, "expands to more than 400 times its size"):
        for _ in open_columns(tmp_path / file).batches(["text"]):
            pass


_READ = """
import sys
from pathlib import Path
from lmtransfer.data.parquet_files import open_columns
from lmtransfer.errors import DataError
for path in sys.argv[1:]:
    try:
        for _ in open_columns(Path(path)).batches(["text"]):
            pass
    except DataError as error:
        assert "400 times" in str(error), error
    else:
        raise AssertionError(path)
# The peak; ru_maxrss would have that of the parent, too.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10)
"""


@pytest.mark.slow
def test_a_refusal_takes_little_memory(tmp_path: Path) -> None:
    paths = []
    for number, (file, write) in enumerate(ASKING.values()):
        (tmp_path / str(number)).mkdir()
        paths.append(tmp_path / str(number) / file)
        write(paths[-1])
    done = subprocess.run([sys.executable, "-c", _READ, *map(str, paths)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 700  # megabytes, some of them for the modules


def _words(count: int) -> list[list[str]]:
    return [[f"w{row * 7 % 501}", "of", "x" * (row % 50)][: row % 4] for row in range(count)]


@pytest.mark.parametrize("compression", ["none", "zstd", "gzip"])
@pytest.mark.parametrize("rows", [None, 300])
def test_ordinary_files_are_read_as_pyarrow_reads_them(compression: str, rows: int | None, tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": [f"{n} " + "long text " * (n % 90) for n in range(2000)],
            "words": _words(2000),
            "label": pa.array(["yes", "no"] * 1000).dictionary_encode(),
            "n": [None, *range(1999)],
            "nested": [{"a": [n], "b": {"c": str(n)}} for n in range(2000)],
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=compression, row_group_size=rows)
    batches = [batch for _, _, batch in open_columns(path).batches()]
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
    names = ["words", "n"]
    assert [row for _, _, b in open_columns(path).batches(names) for row in b.to_pylist()] == table.select(
        names
    ).to_pylist()
    for stream in (False, True):
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        options = pa.ipc.IpcWriteOptions(compression="zstd" if compression == "zstd" else None)
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, new(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)
        batches = [batch for _, _, batch in open_columns(tmp_path / "a.arrow").batches()]
        assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()


def test_lists_of_repeated_texts_are_read_once_their_size_is_known(tmp_path: Path) -> None:
    """2,000 words whose dictionary has 120 kB would be 240 MB at most, and are 32 kB."""
    vocabulary = ["x" * 120_000, *(f"w{number}" for number in range(500))]
    numbers = np.r_[0, np.arange(1999) % 499 + 1].astype(np.int32)
    words = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(vocabulary))
    _parquet(tmp_path / "a.parquet", pa.table({"text": _in_lists(words, *range(0, 2001, 4))}))
    batches = [batch for _, _, batch in open_columns(tmp_path / "a.parquet").batches(["text"])]
    assert {batch.schema.field("text").type for batch in batches} == {pa.list_(pa.field("element", pa.string()))}
    assert [word for batch in batches for row in batch.column("text").to_pylist() for word in row] == [
        vocabulary[number] for number in numbers
    ]


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_a_damaged_file_is_refused_or_read(kind: str, tmp_path: Path) -> None:
    """Any byte may be another one: the answer is one message, or rows."""
    path, rng = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow"), np.random.default_rng(0)
    if kind == "parquet":
        _parquet(path, [f"text {n}" for n in range(40)])
    else:
        _arrow(path, pa.array([f"text {n}" for n in range(40)]), stream=kind == "stream")
    raw, refused = path.read_bytes(), 0
    for _ in range(150):
        torn = bytearray(raw)
        for place in rng.integers(len(raw), size=3):
            torn[place] = rng.integers(256)
        path.write_bytes(torn[: rng.integers(len(raw))] if rng.random() < 0.3 else torn)
        try:
            for _ in open_columns(path).batches():
                pass
        except DataError:
            refused += 1
    assert refused > 50


def test_unpacked_sizes() -> None:
    texts = pa.array(["a" * 1000, "b"])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None], pa.int8()), texts)
    assert unpacked_bytes(repeated) == 4 * 8 + 2001
    assert unpacked_bytes(repeated.slice(1, 1)) == 8 + 1
    assert unpacked_bytes(_in_lists(repeated, 0, 3, 4).slice(0, 1)) == 8 + 3 * 8 + 2001
    assert unpacked_bytes(pa.nulls(1000)) == 8000
    assert most_unpacked(10) == 1 << 26
    assert most_unpacked(1 << 20) == 400 << 20
    with pytest.raises(TooLarge):
        unpacked_bytes(pa.RunEndEncodedArray.from_arrays([1 << 30], texts[:1]))
    with pytest.raises(TooLarge):
        unpacked_bytes(pa.ListViewArray.from_arrays([0] * 9, [2] * 9, texts))


def test_an_arrow_file_that_points_outside_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    _arrow(path, pa.array(["a" * 5000]), stream=False)
    raw = path.read_bytes()
    with path.open("rb") as file, pytest.raises(ValueError, match="outside|incomplete"):
        check_arrow(file, len(raw) // 2, most=1 << 30)

"""Texts at addresses, which fsspec opens, and folders as datatrove, Spark and Ray write them, there and on the disk."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.refusals import refuses

from lmtransfer.config.component import Node
from lmtransfer.config.sources import with_absolute_paths
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.remote_files import RemoteFile, source_file
from lmtransfer.errors import DataError, RunDirectoryError
from lmtransfer.pretraining.text import build_corpus
from lmtransfer.runs.trust import check_named
from lmtransfer.system import door


@pytest.fixture(autouse=True)
def _no_other_files() -> Iterator[None]:
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(params=["disk", "memory", "file"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"disk": f"{tmp_path}/out", "memory": "memory://out", "file": f"file://{tmp_path}/out"}[request.param]


def write(root: str, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        system, path = fsspec.url_to_fs(f"{root}/{name}")
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, content)


def lines(*texts: str) -> bytes:
    """JSON lines with datatrove's keys."""
    records = ({"text": text, "id": text[:3], "metadata": {"a": 1}} for text in texts)
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def table(*texts: str, **layout: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "n": range(len(texts))}), buffer, **layout)
    return buffer.getvalue()


def read(path: str | list[str], **settings: Any) -> tuple[list[str], list[str]]:
    """The texts, and the keys of the documents without the root."""
    documents = list(FileCorpus(path=path, split_unit="document", **settings).documents())
    return [document.text for document in documents], [document.key.partition("out/")[2] for document in documents]


def test_a_folder_of_datatrove(root: str) -> None:
    write(root, {"00001.jsonl.gz": gzip.compress(lines("c")), "00000.jsonl.gz": gzip.compress(lines("a", "b"))})
    write(root, {"00002.jsonl.gz": gzip.compress(b""), "en/00000.jsonl.gz": gzip.compress(lines("d"))})
    write(root, {"bucket_000/00.minhash.sig": b"\0" * 64, "00000.remove": b"\0", "logs/stats.json": b"{}"})
    texts, keys = read(root)
    assert texts == ["a", "b", "c", "d"]
    assert keys == ["00000.jsonl.gz:1", "00000.jsonl.gz:2", "00001.jsonl.gz:1", "en/00000.jsonl.gz:1"]


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "lz4"])
def test_a_folder_of_parquet_by_spark(root: str, codec: str) -> None:
    part = "part-{:05d}-5a2f-c000.{}.parquet"
    write(root, {part.format(0, codec): table("a", "b", "c", compression=codec, row_group_size=2)})
    write(root, {f"lang=en/{part.format(0, codec)}": table("d", compression=codec), part.format(1, codec): table()})
    write(root, {"_SUCCESS": b"", "._SUCCESS.crc": b"crc", ".part-00000-5a2f-c000.snappy.parquet.crc": b"crc"})
    write(root, {"_metadata": b"PAR1", "_temporary/0/x": b"", ".hive-staging/part-0.parquet": b"unfinished"})
    texts, keys = read(root)
    assert texts == ["d", "a", "b", "c"]
    assert keys[:2] == [f"lang=en/{part.format(0, codec)}:row 1", f"{part.format(0, codec)}:row 1"]


def test_json_by_spark_and_ray_is_read_with_a_pattern(root: str) -> None:
    write(root, {"part-00000-5a-c000.json.gz": gzip.compress(lines("a")), "_SUCCESS": b""})
    write(root, {".part-00000-5a-c000.json.gz.crc": b"crc", "21_000000_000000.json": lines("b")})
    with refuses(DataError, f"corpus.path={root}", f"{root}/**/*"):
        FileCorpus(path=root)
    assert read(f"{root}/part-*")[0] == ["a"]
    assert read(f"{root}/*.json")[0] == ["b"]


def test_a_file_and_a_list(root: str) -> None:
    write(root, {"a.txt": b"One.\n\nTwo.\n", "b.jsonl": lines("x"), "c.parquet.gz": gzip.compress(table("y"))})
    assert read(f"{root}/a.txt")[0] == ["One.", "Two."]
    assert read([f"{root}/b.jsonl", f"{root}/c.parquet.gz"])[0] == ["x", "y"]


def test_problems_name_the_address_and_the_line() -> None:
    cut = gzip.compress(lines(*map(str, range(999))))[:-30]
    write("memory://out", {"a.jsonl": lines("x") + b"{", "b.jsonl.gz": cut})
    write("memory://out", {"c.parquet": b"PAR1" + b"x" * 99})
    with refuses(DataError, "memory:///out/a.jsonl:2"):
        read("memory://out/a.jsonl")
    with refuses(DataError, "memory:///out/b.jsonl.gz"):
        read("memory://out/b.jsonl.gz")
    with refuses(DataError, "memory:///out/c.parquet"):
        read("memory://out/c.parquet")
    for path in ("memory://gone", "memory://out/*.csv", "file:///gone"):
        with refuses(DataError, f"corpus.path={path}"):
            read(path)
    with refuses(DataError, "corpus.path=none://bucket/x", "none"):
        read("none://bucket/x")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_connection_that_breaks_is_an_error_that_names_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            raise TimeoutError("no answer")

    write("memory://out", {name: table("a") if name.endswith("t") else lines("a")})
    monkeypatch.setattr(RemoteFile, "open", lambda file: Broken())
    with refuses(DataError, f"memory:///out/{name}", "no answer"):
        read(f"memory://out/{name}")


def test_the_fingerprint_follows_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    write("memory://out", {"a.jsonl": lines("a", "b")})
    monkeypatch.setattr(RemoteFile, "_information", lambda file: {"size": 9, "ETag": "1"})
    first = FileCorpus(path="memory://out/a.jsonl").fingerprint()
    assert first == FileCorpus(path="memory://out").fingerprint()
    monkeypatch.setattr(RemoteFile, "_information", lambda file: {"size": 9, "ETag": "2"})
    assert first != FileCorpus(path="memory://out/a.jsonl").fingerprint()


def test_the_fingerprint_follows_the_bytes_if_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteFile, "_information", lambda file: {"size": None})
    prints = []
    for text in ("a", "b", "a"):
        write("memory://out", {"a.jsonl": lines(text)})
        prints.append(FileCorpus(path="memory://out/a.jsonl").fingerprint())
    assert prints[0] == prints[2] != prints[1]


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_package_is_named() -> None:
    with refuses(DataError, "corpus.path=s3://bucket/texts", "s3fs", "pip"):
        FileCorpus(path="s3://bucket/texts")


@pytest.mark.parametrize(
    "address",
    ["s3://key:hush@bucket/x", "https://me:hush@host/x", "https://hush@host/x", "https://host/x?sig=hush"]
    + ["simplecache::s3://key:hush@bucket/x", "az://c/x?sv=1&sig=hush", "gs://b/*.txt?token=hush", "ftp://a:hush@h/x"],
)
def test_credentials_in_an_address_are_refused_and_not_shown(address: str) -> None:
    with refuses(DataError, "corpus.path") as raised:
        FileCorpus(path=address)
    assert "hush" not in str(raised.value)
    with refuses(DataError, "credentials") as raised:
        source_file(address)
    assert "hush" not in str(raised.value)


def test_a_run_keeps_an_address_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node = {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "path": ["s3://b/x", "x"]}
    assert with_absolute_paths(node)["path"] == ["s3://b/x", f"{tmp_path}/x"]


def test_an_address_in_the_run_of_someone_else_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "url_to_fs", lambda address: pytest.fail(f"{address} was opened"))
    part = {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "path": ["memory://out/a.jsonl"]}
    mixture = {"_target_": "lmtransfer.data.corpora.mixture.MixtureCorpus", "name": "m", "parts": {"a": part}}
    with door.command(lambda: ((), ())):
        door.close(tmp_path)
        for node in (part, mixture):
            with refuses(RunDirectoryError, "memory://out/a.jsonl", "corpus"):
                check_named(node, "corpus", tmp_path, data_root=None)
            with refuses(RunDirectoryError, "memory://out/a.jsonl"):
                build_corpus(Node(node), None, data_root=None, cache_dir=tmp_path)

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.texts import by_noun
from support.refusals import refuses

from lmtransfer.data.corpora import text_files
from lmtransfer.data.corpora.text_files import locate, read_documents
from lmtransfer.data.documents import Document, Notes
from lmtransfer.data.files import Meter
from lmtransfer.errors import DataError


def read(path: Path, notes: Notes | None = None, **changes: Any) -> list[Document]:
    settings: dict[str, Any] = {
        "file_format": None,
        "boundary": "blank_line",
        "text_fields": ["text", "sentence"],
        "delimiter": None,
        "encoding_errors": "strict",
        "line_break": None,
    }
    return list(read_documents(path, **(settings | changes), notes=notes or Notes(), meter=Meter()))


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("\n\n First line \nsecond\n \t\n\nThird\r\n\u00a0\nfourth")
    return path


@pytest.mark.parametrize(
    ("boundary", "expected", "lines"),
    [
        ("blank_line", ["First line\nsecond", "Third", "fourth"], [3, 7, 9]),
        ("file", ["First line\nsecond\nThird\nfourth"], [3]),
        ("line", ["First line", "second", "Third", "fourth"], [3, 4, 7, 9]),
    ],
)
def test_boundaries_of_text_files(book: Path, boundary: str, expected: list[str], lines: list[int]) -> None:
    documents = read(book, boundary=boundary)
    assert texts(documents) == expected
    assert [document.key for document in documents] == [f"{book}:{line}" for line in lines]


def test_lines_that_belong_together_become_blocks(tmp_path: Path) -> None:
    path = tmp_path / "childes.train.txt"
    lines = [f"utterance {number:04d}" for number in range(2000)]  # 15 characters with the line end
    path.write_text("\n".join(lines))
    documents = texts(read(path, boundary="block"))
    assert "\n".join(documents).split("\n") == lines
    assert [len(document.split("\n")) for document in documents] == [667, 667, 666]


def test_headings_of_wikitext_begin_documents(tmp_path: Path) -> None:
    path = tmp_path / "wiki.txt"
    path.write_text(
        " \n = First = \n \n Text . \n \n = = Part = = \n \n so that\n = x = \n \n = Second = \n \n More . \n"
    )
    assert texts(read(path, boundary="heading")) == [
        "= First =\nText .\n= = Part = =\nso that\n= x =",
        "= Second =\nMore .",
    ]


EXTRACTED = (
    '<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">\n'
    "Anarchism\n\nAnarchism is a movement.\n\nA <doc> in a text.\n</doc>\n"
    '<doc id="25" url="https://en.wikipedia.org/wiki?curid=25" title="A "quoted" > title">\n</doc>\n\n'
    '<doc id="39" url="https://en.wikipedia.org/wiki?curid=39" title="Albedo">\nAlbedo\n\nIt is a fraction.\n</doc>\n'
)


def test_the_lines_around_articles_of_wikiextractor_are_no_text(tmp_path: Path) -> None:
    path, notes = tmp_path / "wiki_00", Notes()
    path.write_text(EXTRACTED)
    documents = read(path, notes, boundary="doc")
    assert texts(documents) == [
        "Anarchism\nAnarchism is a movement.\nA <doc> in a text.",
        "Albedo\nIt is a fraction.",
    ]
    assert [document.key for document in documents] == [f"{path}:2", f"{path}:12"]
    assert notes.counts == {}


@pytest.mark.parametrize("boundary", ["blank_line", "file", "line"])
def test_lines_of_wikiextractor_that_are_read_as_text_are_counted(boundary: str, tmp_path: Path) -> None:
    path, notes = tmp_path / "wiki_00.txt", Notes()
    path.write_text(EXTRACTED)
    assert "</doc>" in "\n".join(texts(read(path, notes, boundary=boundary)))
    assert by_noun(notes.as_dict(), "corpus.boundary=doc") == {
        "corpus.boundary=doc": {"count": 6, "first": f"{path}:1"}
    }


def test_json_in_a_text_file_is_counted(tmp_path: Path) -> None:
    path, notes = tmp_path / "wiki_00", Notes()
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert texts(read(path, notes, boundary="line")) == ['{"text": "one"}', '{"text": "two"}']
    assert by_noun(notes.counts, "corpus.format=jsonl") == {"corpus.format=jsonl": 1}
    path.write_text("{not JSON}\n[1]\n")
    notes = Notes()
    read(path, notes)
    assert notes.counts == {}


def test_nul_characters_are_dropped_and_counted_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntw\x00o\x00\n\n\x00\n\nthree\n")
    notes = Notes()
    assert texts(read(path, notes)) == ["one", "two", "three"]
    assert by_noun(notes.as_dict(), "NUL") == {"NUL": {"count": 3, "first": f"{path}:3"}}


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_white_space_that_is_lost_is_counted(suffix: str, tmp_path: Path) -> None:
    lines = ["def f(x):", "    if x:", "\treturn x", " a space is no indentation", "one\rtwo"]
    path = tmp_path / f"a.{suffix}"
    text = "\n".join(lines)
    path.write_bytes((text if suffix == "txt" else json.dumps({"text": text})).encode())
    notes = Notes()
    assert texts(read(path, notes)) == ["def f(x):\nif x:\nreturn x\na space is no indentation\none\rtwo"]
    first, fifth = (f"{path}:2", f"{path}:5") if suffix == "txt" else (f"{path}:1", f"{path}:1")
    assert by_noun(notes.as_dict(), "indentation", "carriage") == {
        "indentation": {"count": 2, "first": first},
        "carriage": {"count": 1, "first": fifth},
    }


def test_an_empty_file_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(" \n\n")
    notes = Notes()
    assert read(path, notes) == []
    assert by_noun(notes.counts, "empty files") == {"empty files": 1}


def test_a_file_without_boundaries_is_cut_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_DOCUMENT_CHARACTERS", 1000)
    lines = [f"line {number} " + "x" * 80 for number in range(100)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    notes = Notes()
    documents = read(path, notes)
    assert "\n".join(texts(documents)).split("\n") == lines
    assert max(map(len, texts(documents))) <= 1000
    assert by_noun(notes.counts, "16 million") == {"16 million": len(documents) - 1}


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [{"body": " one \n\n two<br />three"}, {"body": ""}, {"body": None}, {"body": "nul\x00 \ud800!"}]
    path.write_text("\n\n".join(map(json.dumps, records)))
    notes = Notes()
    documents = read(path, notes, text_fields=["body"], line_break="<br />")
    assert texts(documents) == ["one\ntwo\nthree", "nul \ufffd!"]
    assert documents[1].key == f"{path}:7"
    assert by_noun(notes.as_dict(), "blank lines", "empty documents", "NUL", "surrogates") == {
        "blank lines": {"count": 3, "first": f"{path}:2"},
        "empty documents": {"count": 2, "first": f"{path}:3"},
        "NUL": {"count": 1, "first": f"{path}:7"},
        "surrogates": {"count": 1, "first": f"{path}:7"},
    }


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"text": "a"', ("JSON",)),
        ('{"title": "t", "body": "b"}', ("'text'", "title, body", "corpus.text_field")),
        ("[1]", ("JSON", "list")),
        ('{"text": 3}', (" int", "corpus.text_field")),
        ("[" * 100_000, ("JSON",)),
    ],
    ids=["cut short", "another field", "a list", "a number", "nested too deep"],
)
def test_broken_json_lines_name_their_place(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line)
    with refuses(DataError, f"{path}:2: ", *names):
        read(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("compressed", [False, True])
def test_parquet(tmp_path: Path, kind: pa.DataType, compressed: bool) -> None:
    path = tmp_path / ("a.parquet.xz" if compressed else "a.parquet")
    column = pa.array([f"text {number}\nline" if number % 7 else None for number in range(1000)], kind)
    pq.write_table(pa.table({"id": range(1000), "body": column}), tmp_path / "a.parquet", row_group_size=300)
    if compressed:
        path.write_bytes(lzma.compress((tmp_path / "a.parquet").read_bytes()))
    notes = Notes()
    documents = read(path, notes, text_fields=["body"])
    assert texts(documents) == [f"text {number}\nline" for number in range(1000) if number % 7]
    assert documents[-1].key == f"{path}:row 1000"
    assert by_noun(notes.counts, "empty documents") == {"empty documents": 143}


def test_parquet_with_bad_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"fine", b"caf\xe9 !"], pa.binary())
    column = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": column}), path)
    with refuses(DataError, f"{path}:row 2: ", "UTF-8"):
        read(path)
    assert texts(read(path, encoding_errors="replace")) == ["fine", "caf\ufffd !"]


def test_parquet_problems_are_clear(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), path)
    with refuses(DataError, f"{path}: ", "'text'", "id, body", "corpus.text_field"):
        read(path)
    with refuses(DataError, f"{path}:row 1: ", " int,", "corpus.text_field"):
        read(path, text_fields=["id"])
    path.write_bytes(b"not parquet at all")
    with refuses(DataError, f"{path}: ", " parquet"):
        read(path)


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


def test_folders_that_a_pattern_matches_are_counted(tree: Path) -> None:
    found = locate("texts/*")
    assert [Path(name).name for name in found.files] == ["NOTICE", "a.txt.gz", "b.txt", "x.raw"]
    ((kind, count),) = found.left_out.counts.items()
    assert ("folders that the pattern matches" in kind, count, found.left_out.first[kind]) == (True, 1, f"{tree}/sub")
    assert not locate("texts/*/**").left_out.counts


def test_hidden_files_and_what_lies_beside_a_saved_set_are_counted(tree: Path) -> None:
    counts = by_noun(locate("texts").left_out.as_dict(), "hidden", "other kinds", "compressed copies")
    assert counts == {
        "hidden": {"count": 2, "first": f"{tree}/.git"},
        "other kinds": {"count": 2, "first": f"{tree}/NOTICE"},
        "compressed copies": {"count": 1, "first": f"{tree}/sub/c.jsonl.xz"},
    }
    saved = tree / "saved"
    saved.mkdir()
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    for name in ("data.arrow", "dataset_info.json", "extra.txt"):
        (saved / name).touch()
    found = locate("texts/saved/..")
    assert str(saved / "data.arrow") in found.files
    ((kind, first),) = [each for each in found.left_out.first.items() if "beside those of a saved" in each[0]]
    assert (found.left_out.counts[kind], Path(first)) == (1, saved / "extra.txt")


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

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.texts import by_noun, made_up_documents, write_text
from support.limits import no_privileges
from support.refusals import refuses

from lmtransfer.data.corpora import corpus as corpus_module
from lmtransfer.data.corpora import text_files
from lmtransfer.data.corpora.corpus import FileCorpus, split_ending
from lmtransfer.data.documents import Document
from lmtransfer.errors import ConfigError, DataError


def corpus(path: Path, **settings: Any) -> FileCorpus:
    return FileCorpus(path=str(path), **settings)


def texts(source: FileCorpus) -> list[str]:
    return [document.text for document in source.documents()]


def sides(source: FileCorpus) -> tuple[list[str], list[str]]:
    found: tuple[list[str], list[str]] = ([], [])
    for document in source.documents():
        found[source.is_validation(document)].append(document.text)
    return found


def test_a_file_has_blank_lines_and_a_folder_a_document_a_file(tmp_path: Path) -> None:
    write_text(tmp_path / "in" / "a.txt", ["One.", "Two."])
    assert texts(corpus(tmp_path / "in", split_unit="document")) == ["One.", "Two."]
    write_text(tmp_path / "in" / "b.txt", ["Three.", "Four."])
    assert texts(corpus(tmp_path / "in" / "a.txt", split_unit="document")) == ["One.", "Two."]
    assert texts(corpus(tmp_path / "in", split_unit="document")) == ["One.\nTwo.", "Three.\nFour."]
    assert texts(corpus(tmp_path / "in", split_unit="document", boundary="blank_line")) == [
        "One.",
        "Two.",
        "Three.",
        "Four.",
    ]


def test_formats_may_be_mixed_and_unknown_suffixes_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "One."}))
    (tmp_path / "b.raw").write_text("Two.")
    source = FileCorpus(path=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.raw")], split_unit="document")
    assert texts(source) == ["One.", "Two."]
    with refuses(DataError, f"{tmp_path / 'a.jsonl'}:1", "'body'", "corpus.text_field"):
        texts(corpus(tmp_path / "a.jsonl", text_field="body"))


def test_files_of_wikiextractor_are_recognised_and_said(tmp_path: Path) -> None:
    article = '<doc id="{0}" url="u" title="T{0}">\nT{0}\n\nText {0}.\n</doc>\n'
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA/wiki_00").write_text("\n" + article.format(1) + article.format(2))
    write_text(tmp_path / "AA/b.txt", ["One.", "Two."])
    source = FileCorpus(path=str(tmp_path / "*/*"), split_unit="document", validation_fraction=0)
    assert texts(source) == ["One.\nTwo.", "T1\nText 1.", "T2\nText 2."]
    assert by_noun(source.notes.counts, "corpus.boundary=doc") == {"corpus.boundary=doc": 1}
    for boundary in ("file", "blank_line", "line"):
        other = FileCorpus(path=str(tmp_path / "AA/wiki_00"), split_unit="document", boundary=boundary)
        assert "</doc>" in "\n".join(texts(other))
        assert other.fingerprint() != FileCorpus(path=str(tmp_path / "AA/wiki_00"), split_unit="document").fingerprint()
    with refuses(DataError, "corpus.path=", str(tmp_path / "empty/**/*")):
        (tmp_path / "empty").mkdir()
        corpus(tmp_path / "empty")


def linked_folder(tmp_path: Path) -> tuple[Path, int]:
    """A folder with a linked disk, a link from that disk back to the folder, one to itself, and a linked file."""
    for number in range(3):
        write_text(tmp_path / "disk" / "deep" / f"{number}.txt", [f"Text {number} of the disk."])
    write_text(tmp_path / "folder" / "own.txt", ["Own text."])
    (tmp_path / "folder" / "scratch").symlink_to("../disk")
    (tmp_path / "folder" / "again").symlink_to(tmp_path / "disk" / "deep", target_is_directory=True)
    (tmp_path / "folder" / "self").symlink_to(".")
    (tmp_path / "folder" / "other.txt").symlink_to("own.txt")
    (tmp_path / "disk" / "back").symlink_to("../folder")
    return tmp_path / "folder", 4


@pytest.mark.parametrize("pattern", ["", "**/*.txt", "**", "**/deep/**/*.txt", "**/s*/**/[0-9o]*.txt"])
def test_links_are_followed_each_file_is_read_once_and_loops_end(pattern: str, tmp_path: Path) -> None:
    folder, num_files = linked_folder(tmp_path)
    source = corpus(folder / pattern, split_unit="document")
    real = {os.path.realpath(name) for name in source.files}
    expected = {str(path) for path in (tmp_path / "disk").rglob("?.txt")} | {str(folder / "own.txt")}
    if "deep/" in pattern:
        expected.remove(str(folder / "own.txt"))
    assert real == expected
    assert len(source.files) == len(expected)
    assert len(texts(source)) == len(expected) <= num_files
    assert any("read anyway, not followed" in kind for kind in source.left_out.counts)


def test_a_link_to_a_file_that_is_read_is_counted(tmp_path: Path) -> None:
    folder, _ = linked_folder(tmp_path)
    found = FileCorpus(path=[str(folder), str(folder / "own.txt"), str(tmp_path / "disk" / "deep" / "1.txt")])
    assert len(found.files) == 4
    (kind,) = [kind for kind in found.left_out.counts if "read once" in kind]
    assert found.left_out.counts[kind] == 3  # own.txt by two names, 1.txt by its own and by the disk's


def test_what_a_folder_holds_beside_its_texts_is_counted_by_kind(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", ["One."])
    for name in ("b.rst", "c.rst", "d.html.gz", "LICENSE", "a.txt.gz", ".hidden.md", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"text")
    (tmp_path / "gone").symlink_to("nowhere")
    counts = corpus(tmp_path, split_unit="document").left_out.counts
    (kinds,) = [kind for kind in counts if "other kinds" in kind]
    assert "(2 .rst, 1 without a suffix, 1 .html;" in kinds
    assert by_noun(counts, "compressed copies", "lead nowhere", "hidden", "other kinds") == {
        "compressed copies": 1,
        "lead nowhere": 1,
        "hidden": 2,
        "other kinds": 4,
    }
    assert sum(counts.values()) == 8
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt.gz").unlink()
    with refuses(DataError, "corpus.path=", f"{tmp_path}/**/*.rst", "2 .rst", "1 .html", "pandoc"):
        corpus(tmp_path)


def test_markdown_is_text_and_html_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n\nWith a [link](x).\n")
    (tmp_path / "b.Markdown").write_text("Two.\n")
    (tmp_path / "c.htm").write_text("<p>Three.</p>\n")
    source = corpus(tmp_path, split_unit="document")
    assert texts(source) == ["# One\nWith a [link](x).", "Two."]
    assert by_noun(source.notes.counts, "Markdown") == {"Markdown": 2}
    for path in (tmp_path / "c.htm", tmp_path / "*.*", [str(tmp_path / "a.md"), str(tmp_path / "c.htm")]):
        with refuses(ConfigError, f"{tmp_path}/c.htm", "HTML", "pandoc", "corpus.format=text"):
            FileCorpus(path=path if isinstance(path, list) else str(path))
    (tmp_path / "c.htm").rename(tmp_path / "c.htm.gz")
    with refuses(ConfigError, f"{tmp_path}/c.htm.gz", "HTML"):
        FileCorpus(path=str(tmp_path / "c.htm"))
    (tmp_path / "page.html").write_text("<p>Four.</p>\n")
    assert texts(corpus(tmp_path / "page.html", format="text", split_unit="document")) == ["<p>Four.</p>"]


def test_the_first_field_of_a_list_that_a_row_has_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "One.", "text": "no"}\n{"text": "Two."}\n')
    (tmp_path / "b.csv").write_text("id,text\n1,Three.\n")
    pq.write_table(pa.table({"n": [1], "body": ["Four."], "text": ["no"]}), tmp_path / "c.parquet")
    path = str(tmp_path / "*.*")
    source = corpus(path, text_field=["body", "text"], split_unit="document")
    assert texts(source) == ["One.", "Two.", "Three.", "Four."]
    other = corpus(path, text_field=["text", "body"], split_unit="document")
    assert texts(other) == ["no", "Two.", "Three.", "no"]
    alone = corpus(path, text_field="text", split_unit="document")
    assert len({each.fingerprint() for each in (source, other, alone)}) == 3
    assert corpus(path, text_field=("body", "text"), split_unit="document").fingerprint() == source.fingerprint()
    with refuses(DataError, f"{tmp_path / 'b.csv'}:1", "'body' or 'title'", "id, text", "corpus.text_field"):
        texts(corpus(tmp_path / "b.csv", text_field=["body", "title"]))
    with refuses(ConfigError, "corpus.text_field=[]"):
        corpus(path, text_field=[])


def test_a_folder_that_cannot_be_read_is_counted_and_the_top_one_is_named(tmp_path: Path) -> None:
    write_text(tmp_path / "in" / "a.txt", ["One."])
    write_text(tmp_path / "in" / "locked" / "b.txt", ["Two."])
    (tmp_path / "in" / "locked").chmod(0)
    with no_privileges():
        assert by_noun(corpus(tmp_path / "in").left_out.counts, "cannot be read") == {"cannot be read": 1}
        with pytest.raises(PermissionError) as caught:
            corpus(tmp_path / "in" / "locked")
    assert caught.value.filename == str(tmp_path / "in" / "locked")


def test_tables_in_a_folder_are_left_out_and_said(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", ["One."])
    (tmp_path / "b.csv").write_text("text\nTwo.\n")
    source = corpus(tmp_path, split_unit="document")
    assert texts(source) == ["One."]
    assert by_noun(source.left_out.counts, "folder/*.csv") == {"folder/*.csv": 1}
    (tmp_path / "a.txt").unlink()
    with refuses(DataError, "corpus.path=", f"{tmp_path}/**/*.csv"):
        corpus(tmp_path)
    assert texts(corpus(tmp_path / "**/*.csv", split_unit="document")) == ["Two."]


def test_caps_keep_the_first_part(tmp_path: Path) -> None:
    documents = made_up_documents(50)
    path = write_text(tmp_path / "a.txt", documents)
    assert texts(corpus(path, max_documents=7, split_unit="document")) == documents[:7]
    words = sum(len(document.split()) for document in documents[:9])
    assert texts(corpus(path, max_words=words, split_unit="document")) == documents[:9]
    assert texts(corpus(path, max_words=words - 1, split_unit="document")) == documents[:9]
    assert texts(corpus(path, max_words=words + 1, split_unit="document")) == documents[:10]


def test_no_text_is_on_both_sides_and_duplicates_stay_together(tmp_path: Path) -> None:
    documents = made_up_documents(2000)
    path = write_text(tmp_path / "a.txt", [*documents, *documents[::-1], *documents[:100]])
    train, validation = sides(corpus(path, validation_fraction=0.1))
    assert set(train) | set(validation) == set(documents)
    assert not set(train) & set(validation)
    assert 0.08 < len(validation) / 4100 < 0.12


def test_the_split_does_not_depend_on_order_or_company(tmp_path: Path) -> None:
    documents = made_up_documents(500)
    first = corpus(write_text(tmp_path / "a.txt", documents), validation_fraction=0.1)
    second = corpus(write_text(tmp_path / "b.txt", documents[250:][::-1]), validation_fraction=0.1)
    assert set(sides(second)[1]) == set(sides(first)[1]) & set(documents[250:])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_both_sides_have_a_document_where_there_are_two(tmp_path: Path, seed: int, fraction: float) -> None:
    documents = made_up_documents(2, seed=seed)
    path = write_text(tmp_path / "a.txt", [*documents, documents[0]])
    train, validation = sides(corpus(path, split_unit="document", validation_fraction=fraction))
    assert {frozenset(train), frozenset(validation)} == {frozenset([document]) for document in documents}


def test_a_single_text_is_for_training(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", ["The same."] * 3)
    assert sides(corpus(path, split_unit="document", validation_fraction=0.5)) == (["The same."] * 3, [])


def test_nothing_is_held_out_on_request(tmp_path: Path) -> None:
    for count in (300, 3):
        path = write_text(tmp_path / f"{count}.txt", made_up_documents(count))
        assert sides(corpus(path, validation_fraction=0))[1] == []


def test_few_documents_give_their_endings(tmp_path: Path) -> None:
    documents = ["\n".join(made_up_documents(100, seed=seed)) for seed in range(5)]
    source = corpus(write_text(tmp_path / "a.txt", documents), validation_fraction=0.05)
    train, validation = sides(source)
    assert [f"{a}\n{b}" for a, b in zip(train, validation, strict=True)] == documents
    share = sum(map(len, validation)) / sum(map(len, documents))
    assert 0.03 < share <= 0.05


def test_many_documents_are_split_whole(tmp_path: Path) -> None:
    documents = made_up_documents(corpus_module.FEW_DOCUMENTS)
    path = write_text(tmp_path / "a.txt", documents)
    assert texts(corpus(path)) == documents
    fewer = texts(corpus(path, max_documents=corpus_module.FEW_DOCUMENTS - 1))
    assert len(fewer) > corpus_module.FEW_DOCUMENTS


@pytest.mark.parametrize(
    ("text", "fraction", "expected"),
    [
        ("a b c\nd\ne f g h", 0.1, ["a b c\nd", "e f g h"]),
        ("aaaa\nbbbb\ncccc\ndddd", 0.5, ["aaaa\nbbbb", "cccc\ndddd"]),
        ("A first one. A second. A third.", 0.1, ["A first one. A second.", "A third."]),
        ("A first one. A second. A third.", 0.9, ["A first one.", "A second. A third."]),
        ("only one sentence here", 0.5, ["only one sentence here"]),
        ("a\nb", 0.0, ["a\nb"]),
    ],
)
def test_where_an_ending_begins(text: str, fraction: float, expected: list[str]) -> None:
    parts = list(split_ending(Document(text, "k"), fraction))
    assert [part.text for part in parts] == expected
    assert [part.held_out for part in parts] == [False, True][: len(parts)]


def test_the_fingerprint_follows_content_and_settings_only(tmp_path: Path) -> None:
    documents = made_up_documents(30)
    path = write_text(tmp_path / "a.txt", documents)
    original = corpus(path).fingerprint()
    os.utime(path, (1, 1))
    assert corpus(path).fingerprint() == original
    assert corpus(write_text(tmp_path / "moved" / "b.txt", documents)).fingerprint() == original
    changed = {
        corpus(path, **settings).fingerprint()
        for settings in (
            {"max_documents": 5},
            {"max_words": 5},
            {"validation_fraction": 0.02},
            {"split_unit": "document"},
            {"boundary": "line"},
            {"encoding_errors": "replace"},
            {"format": "jsonl"},
        )
    }
    documents[3] = documents[3].replace(".", "!", 1)
    changed.add(corpus(write_text(path, documents)).fingerprint())
    assert len(changed - {original}) == 8


def test_remembered_digests_are_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_WORTH_REMEMBERING_BYTES", 1)
    monkeypatch.setattr(text_files, "_UNCHANGED_SECONDS", 0.0)
    path = write_text(tmp_path / "a.txt", ["One.", "Two."])
    memo = tmp_path / "memo"
    first = text_files.source_digest(path, memo)
    calls: list[Path] = []
    real = text_files.file_hash
    monkeypatch.setattr(text_files, "file_hash", lambda file: (calls.append(file), real(file))[1])
    assert text_files.source_digest(path, memo) == first
    assert calls == []
    stamp = path.stat().st_mtime_ns
    path.write_text("Two.\n\nOne.\n")
    os.utime(path, ns=(stamp, stamp))  # same size and modification time, as after rsync
    assert text_files.source_digest(path, memo) == real(path) != first
    (memo / "source_digests.json").write_text("{torn")
    assert text_files.source_digest(path, memo) == real(path)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_WORTH_REMEMBERING_BYTES", 1)
    path = write_text(tmp_path / "a.txt", ["One."])
    text_files.source_digest(path, tmp_path / "memo")
    assert not (tmp_path / "memo").exists()


def test_bad_settings_are_all_named_at_once(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", ["One."])
    names = ("corpus.max_documents=0", "corpus.max_words=-1", "corpus.validation_fraction=1.0")
    with refuses(ConfigError, *names) as raised:
        corpus(path, max_documents=0, max_words=-1, validation_fraction=1.0)
    assert isinstance(raised.value, ConfigError)
    assert len(raised.value.problems) == 3


def test_notes_and_progress_of_a_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\n\nTw\x00o.\n")
    source = corpus(path, split_unit="document")
    assert source.fraction_read() is None
    for _ in range(2):  # a second pass starts counting again
        assert len(texts(source)) == 2
        assert by_noun(source.notes.counts, "byte order", "NUL") == {"byte order": 1, "NUL": 1}
        assert source.fraction_read() == 1.0

"""A corpus, a task, embed and predict read every format in the same way; the expected content is written by hand."""

from __future__ import annotations

import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.refusals import refuses

from lmtransfer.config.types import TextFormat
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import FORMATS, TABLE_FORMATS, delimiter_of
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.embedding_output import open_rows
from lmtransfer.inference.prediction import MaskedTexts
from lmtransfer.inference.prediction_input import PredictionsInOrder, find_input, input_file, input_format
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.files import TextReader

TEXTS = ['He said "no" twice', "a; b, c | d", "caf\u00e9"]
LABELS = ["bad", "good", "bad"]

#: The same three rows in every text format.
WRITTEN: dict[str, str] = {
    "plain.tsv": 'text\tlabel\nHe said "no" twice\tbad\na; b, c | d\tgood\ncaf\u00e9\tbad\n',
    "quoted.tsv": 'text\tlabel\n"He said ""no"" twice"\tbad\na; b, c | d\tgood\ncaf\u00e9\tbad\n',
    "commas.csv": 'text,label\n"He said ""no"" twice",bad\n"a; b, c | d",good\ncaf\u00e9,bad\n',
    "semicolons.csv": 'text;label\n"He said ""no"" twice";bad\n"a; b, c | d";good\ncaf\u00e9;bad\n',
    "bars.csv": 'text|label\n"He said ""no"" twice"|bad\n"a; b, c | d"|good\ncaf\u00e9|bad\n',
    "windows.csv": '\ufefftext,label\r\n"He said ""no"" twice",bad\r\n"a; b, c | d",good\r\ncaf\u00e9,bad\r\n',
    "old_mac.csv": 'text,label\r"He said ""no"" twice",bad\r"a; b, c | d",good\rcaf\u00e9,bad\r',
    "old_mac.tsv": 'text\tlabel\rHe said "no" twice\tbad\ra; b, c | d\tgood\rcaf\u00e9\tbad',
    "old_mac.jsonl": '{"text": "He said \\"no\\" twice", "label": "bad"}\r{"text": "a; b, c | d", "label": "good"}\r'
    '{"text": "caf\\u00e9", "label": "bad"}\r',
    "named_separator.csv": 'sep=;\ntext;label\n"He said ""no"" twice";bad\n"a; b, c | d";good\ncaf\u00e9;bad\n',
    "named_tab.csv": '\ufeff"sep=\t"\r\ntext\tlabel\r\n"He said ""no"" twice"\tbad\r\na; b, c | d\tgood\r\n'
    "caf\u00e9\tbad\r\n",
    "unnamed.csv": '\ufeff,text,label,,\r\n0,"He said ""no"" twice",bad,,\r\n1,"a; b, c | d",good,,x\r\n'
    "2,caf\u00e9,bad,,\r\n",
    "UPPER.CSV": 'text,label\n"He said ""no"" twice",bad\n"a; b, c | d",good\ncaf\u00e9,bad\n',
    "lines.jsonl": '{"text": "He said \\"no\\" twice", "label": "bad"}\n{"text": "a; b, c | d", "label": "good"}\n'
    '{"text": "caf\\u00e9", "label": "bad"}\n',
    "lines.ndjson": '{"label": "bad", "text": "He said \\"no\\" twice"}\n\n{"text": "a; b, c | d", "label": "good"}\n'
    '{"text": "caf\u00e9", "label": "bad"}',
    "lines.json": '{"text": "He said \\"no\\" twice", "label": "bad"}\n{"text": "a; b, c | d", "label": "good"}\n'
    '{"text": "caf\u00e9", "label": "bad"}\n',
    "array.json": '[{"text": "He said \\"no\\" twice", "label": "bad"}, {"text": "a; b, c | d", "label": "good"},\n'
    ' {"text": "caf\u00e9", "label": "bad"}]',
    "indented.json": '[\n {\n  "text": "He said \\"no\\" twice",\n  "label": "bad"\n },\n'
    ' {\n  "text": "a; b, c | d",\n  "label": "good"\n },\n {\n  "text": "caf\u00e9",\n  "label": "bad"\n }\n]\n',
}


def dataset(texts: list[str] = TEXTS, labels: list[str] = LABELS) -> Any:
    datasets = pytest.importorskip("datasets")
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=datasets.Features(features))


def _arrow(path: Path, new: Callable[..., Any]) -> None:
    table = pa.table({"text": TEXTS, "label": LABELS})
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def _two_files(path: Path) -> None:
    dataset().save_to_disk(path, num_shards=2)
    dataset(["cached"], ["bad"]).save_to_disk(path / "other")  # cached by `datasets`
    (path / "other/data-00000-of-00001.arrow").rename(path / "cache-0123456789abcdef.arrow")
    for file in (path / "other").iterdir():
        file.unlink()
    (path / "other").rmdir()


#: The same three rows, written by other libraries.
BY_OTHERS: dict[str, Callable[[Path], Any]] = {
    "a.parquet": lambda path: pq.write_table(pa.table({"text": TEXTS, "label": LABELS}), path, row_group_size=2),
    "numbers.parquet": lambda path: dataset().to_parquet(path),
    "stream.arrow": lambda path: _arrow(path, pa.ipc.new_stream),
    "file.arrow": lambda path: _arrow(path, pa.ipc.new_file),
    "saved": lambda path: dataset().save_to_disk(path),
    "two_files.set": _two_files,
}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}


def make(name: str, folder: Path) -> Path:
    """Write the rows in the format that a file name implies."""
    path = folder / name
    suffix = path.suffix.lower() if path.suffix.lower() in (".gz", ".xz", ".zst") else ""
    plain = {"PLAIN.TSV": "plain.tsv", "a.PARQUET": "a.parquet"}.get(path.stem, path.stem) if suffix else name
    if plain in WRITTEN:
        content = WRITTEN[plain].encode()
    else:
        BY_OTHERS[plain](folder / plain)
        content = (folder / plain).read_bytes() if suffix else b""
    if suffix == ".zst":
        content = pytest.importorskip("zstandard").compress(content)
    elif suffix:
        content = COMPRESSORS[suffix](content)
    if suffix or plain in WRITTEN:
        path.write_bytes(content)
    return path


def of_corpus(path: Path, *, delimiter: str | None = None, notes: Notes | None = None, **columns: Any) -> list[str]:
    settings = {"text_field": columns["text_column"]} if "text_column" in columns else {}
    corpus = FileCorpus(
        path=str(path), split_unit="document", validation_fraction=0, delimiter=delimiter, boundary="line", **settings
    )
    texts = [document.text for document in corpus.documents()]
    for kind, count in corpus.notes.counts.items():
        (notes or Notes()).add(kind, str(path), count)
    return texts


def of_task(path: Path, *, delimiter: str | None = None, notes: Notes | None = None, **columns: Any) -> list[str]:
    columns = {"text_column": ["text", "sentence"], "label_column": "label", **columns}
    task = TextClassification(name="own", train=str(path), labels=["bad", "good"], delimiter=delimiter, **columns)
    examples = task.examples("train")
    assert [task.labels[example.label or 0] for example in examples] == (LABELS * len(examples))[: len(examples)]
    for kind, count in task.notes["train"].counts.items():
        (notes or Notes()).add(kind, str(path), count)
    return [example.text for example in examples]


def of_embed(path: Path, *, delimiter: str | None = None, notes: Notes | None = None, **columns: Any) -> list[str]:
    source, counted = find_input(str(path)), notes or Notes()
    form = input_format(None, source, TextReader("embed", owner="embed"), counted)
    settings: dict[str, Any] = {"text_column": None, "encoding_errors": "strict", "group": 2, **columns}
    rows = open_rows(source, form, counted, delimiter=delimiter, **settings)
    windows = list(rows.windows)
    assert all(len(window.rows) == len(window.texts) <= 256 for window in windows)
    return [text for window in windows for text in window.texts]


def of_predict(path: Path, *, delimiter: str | None = None, notes: Notes | None = None, **columns: Any) -> list[str]:
    task = TextClassification(name="own", train="none", labels=["a", "b"], text_column="text", label_column="label")
    source, reader, counted = find_input(str(path)), task.reader(), notes or Notes()
    answers = PredictionsInOrder(empty={}, group=2, on_error="stop", notes=Notes())
    form = input_format(None, source, reader, counted)
    opened = input_file(source, form, columns, answers, counted, delimiter=delimiter)
    return [row.example.text for row in reader.read(opened).rows]


READERS = {"corpus": of_corpus, "task": of_task, "embed": of_embed, "predict": of_predict}
NAMES = [
    *WRITTEN,
    *BY_OTHERS,
    *("PLAIN.TSV.GZ", "array.json.XZ", "a.PARQUET.Xz", "stream.arrow.GZ"),
    *("plain.tsv.gz", "commas.csv.zst", "lines.jsonl.gz", "indented.json.zst"),
    *("array.json.xz", "a.parquet.xz", "a.parquet.zst", "stream.arrow.gz", "stream.arrow.zst", "file.arrow.xz"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_the_same_texts_for_everyone(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    assert {reader: read(path) for reader, read in READERS.items()} == dict.fromkeys(READERS, TEXTS)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", ("Git LFS", "git lfs pull")),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", ("Git LFS",)),
        ("a.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:22\nsize 12\n", ("Git LFS",)),
        ("a.csv.gz", WRITTEN["commas.csv"].encode(), ("not compressed", "rename it to a.csv")),
        ("a.tsv.XZ", WRITTEN["plain.tsv"].encode(), ("not compressed", "rename it to a.tsv")),
        ("a.tsv.gz", lzma.compress(WRITTEN["plain.tsv"].encode()), ("the name ends in .gz", "xz data")),
        ("a.csv", b'text,label\nsplit\rtext,bad\n"b",good\n', ("a.csv:2", "carriage return")),
        ("a.csv", b'sep=;\ntext;label\none;bad\n"two;good\n', ("a.csv:4", "quotation marks")),
    ],
)
def test_other_content_than_the_name_says_is_named(
    name: str, content: bytes, names: tuple[str, ...], reader: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with refuses(DataError, str(tmp_path / name), *names):
        READERS[reader](tmp_path / name)


def test_embed_leaves_out_columns_without_a_name_and_says_so(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.csv", Notes()
    path.write_text("text,id,,id,\none,1,x,2,y\n")
    source = find_input(str(path))
    rows = open_rows(source, "csv", notes, text_column=None, encoding_errors="strict", group=2)
    (window,) = rows.windows
    assert window.rows.to_pydict() == {"text": ["one"]}
    assert [count for kind, count in notes.counts.items() if "('id', '')" in kind] == [4]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", ["text,label\rone,bad\r", "text,label\r\rone,bad"])
def test_old_line_ends_are_noted(content: str, reader: str, tmp_path: Path) -> None:
    path, notes = tmp_path / "a.csv", Notes()
    path.write_bytes(content.encode())
    assert READERS[reader](path, notes=notes) == ["one"]
    assert [kind for kind in notes.counts if "carriage returns" in kind]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_large_batch_of_arrow_is_read_in_order(new: Callable[..., Any], reader: str, tmp_path: Path) -> None:
    path, texts = tmp_path / "a.arrow", [f"text {number}" for number in range(1000)]
    kind = pa.large_string() if new is pa.ipc.new_file else pa.string()
    table = pa.table({"text": pa.array(texts, kind), "label": (LABELS * 400)[:1000]})
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
    assert READERS[reader](path) == texts


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.tsv", "text\tlabel\none\tbad\n\ntwo\tgood\tx\n", "a.tsv:4"),
        ("a.csv", 'text,label\n"one\nmore",bad\ntwo,good,x\n', "a.csv:4"),
        ("a.jsonl", '{"text": "one", "label": "bad"}\n{"text": "two"\n', "a.jsonl:2"),
        ("a.json", '[\n{"text": "one", "label": "bad"},\n{"text": "two"\n', "a.json:3"),
        ("a.json", '[{"text": "one", "label": "bad"},\n\n["two"]]', "a.json:3, item 2"),
        ("a.jsonl", '{"text": "one", "label": "bad"}\n\n{"text": ["two"], "label": "bad"}', "a.jsonl:3"),
        ("a.parquet", "", "a.parquet:row 2"),
        ("a.arrow", "", "a.arrow:row 2"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(name: str, content: str, where: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    if not content:
        raw = pa.array([b"one", b"caf\xe9"]).buffers()
        table = pa.table({"text": pa.StringArray.from_buffers(2, raw[1], raw[2]), "label": ["bad", "good"]})
        if name == "a.parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
    with refuses(DataError, f"{path.parent}/{where}"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("name", "separator"), [("a.csv", ";"), ("a.csv", "|"), ("a.tsv", ","), ("a.csv", "\t")])
def test_a_separator_is_sniffed_and_said_or_set(name: str, separator: str, reader: str, tmp_path: Path) -> None:
    path, notes = tmp_path / name, Notes()
    path.write_text(f"text{separator}label\none{separator}bad\n")
    assert READERS[reader](path, notes=notes) == ["one"]
    said = {";": "semicolons", "|": "bars", ",": "commas", "\t": "tabs"}[separator]
    assert [kind for kind in notes.counts if "columns are separated by" in kind and said in kind]
    assert READERS[reader](path, delimiter=separator) == ["one"]
    path.write_text("text~label\none~bad\n")  # too rare to be detected
    assert READERS[reader](path, delimiter="~") == ["one"]
    with refuses(DataError, f"{path}:1", "text~label"):
        READERS[reader](path)


def test_a_separator_is_one_character() -> None:
    assert delimiter_of("tab", "delimiter") == delimiter_of("\\t", "delimiter") == "\t"
    assert delimiter_of(None, "delimiter") is None
    with refuses(ConfigError, "corpus.delimiter=ab"):
        FileCorpus(path=__file__, delimiter="ab")


@pytest.mark.parametrize(("name", "file_format"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a.txt", "text")])
def test_a_corpus_refuses_a_delimiter_for_files_without_one(name: str, file_format: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    with refuses(ConfigError, "corpus.delimiter=;", str(path), f"is read as {file_format}", "corpus.format"):
        FileCorpus(path=str(path), delimiter=";")
    FileCorpus(path=str(path), delimiter=";", format="csv")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_which_column_is_the_text_is_asked(name: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        columns = {"id": ["r1"], "body": ["a film that I liked"], "url": ["https://example.org/films/1"]}
        pq.write_table(pa.table({**columns, "label": ["bad"]}), path)
    elif name in ("a.jsonl", "a.json"):
        row = '{"id": "r1", "body": "a film that I liked", "url": "https://example.org/films/1", "label": "bad"}'
        path.write_text(row if name == "a.jsonl" else f"[{row}]")
    else:
        mark = "," if name == "a.csv" else "\t"
        header, row = "id,body,url,label", "r1,a film that I liked,https://example.org/films/1,bad"
        path.write_text(f"{header}\n{row}\n".replace(",", mark))
    setting = "corpus.text_field" if reader == "corpus" else "text_column"
    with refuses(DataError, str(path), "'text'", "id, body, url, label", setting, "body has the longest texts"):
        READERS[reader](path)
    assert READERS[reader](path, text_column="body") == ["a film that I liked"]


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_of_several_splits_names_them(reader: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": dataset(), "test": dataset()}).save_to_disk(tmp_path / "both")
    with refuses(DataError, str(tmp_path / "both"), "test, train", str(tmp_path / "both/train")):
        READERS[reader](tmp_path / "both")
    assert READERS[reader](tmp_path / "both/train") == TEXTS


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["../a.arrow", "/etc/passwd", 3])
def test_a_saved_folder_reads_only_its_own_files(name: object, reader: str, tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved/state.json"
    state.write_text(state.read_text().replace('"data-00000-of-00001.arrow"', json.dumps(name)))
    with refuses(DataError, str(state), str(name)):
        READERS[reader](tmp_path / "saved")


@pytest.mark.parametrize("reader", ["corpus", "embed", "predict"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_lines_of_text(suffix: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    content = "".join(f"{text}\n" for text in TEXTS).encode()
    path.write_bytes(COMPRESSORS[suffix](content) if suffix else content)
    assert READERS[reader](path) == TEXTS


def test_everyone_has_the_same_formats() -> None:
    formats = set(get_args(TextFormat))
    reader = TextClassification(name="own", train="x", labels=["a", "b"], text_column="text", label_column="l").reader()
    assert set(reader.formats) == set(MaskedTexts().formats) == formats
    assert set(FORMATS.values()) | {"quoted_tsv"} == formats == {"text", *TABLE_FORMATS}


@pytest.mark.parametrize("reader", READERS)
def test_a_large_table_is_not_held_in_memory(reader: str, tmp_path: Path) -> None:
    if reader == "task":
        pytest.skip("a task holds its examples")
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" + ",\n".join(f'{{"text": "{"word " * 1000}{number}"}}' for number in range(1_600)) + "]")
    tracemalloc.start()
    if reader == "corpus":
        count = sum(1 for _ in FileCorpus(path=str(path), split_unit="document").documents())
    elif reader == "embed":
        source = find_input(str(path))
        settings: dict[str, Any] = {"text_column": None, "encoding_errors": "strict", "group": 16}
        count = sum(len(window.texts) for window in open_rows(source, "jsonl", Notes(), **settings).windows)
    else:
        task = TextClassification(name="own", train="x", labels=["a", "b"], text_column="text", label_column="label")
        answers = PredictionsInOrder(empty={}, group=2, on_error="stop", notes=Notes())
        opened = input_file(find_input(str(path)), "jsonl", {}, answers, Notes())
        count = sum(1 for _ in task.reader().read(opened).rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, peak < 4e6) == (1_600, True), peak


@pytest.mark.parametrize("name", ["a.jsonl", "lines.json", "array.json", "a.parquet", "stream.arrow", "saved"])
def test_questions_are_read_in_every_format_of_rows(name: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    answers = [{"text": ["Ann"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    columns = {
        "id": ["q1", "q2"],
        "question": ["Who ran?", "Who slept?"],
        "context": ["Ann ran."] * 2,
        "answers": answers,
    }
    table, path = datasets.Dataset.from_dict(columns), tmp_path / name
    if name == "saved":
        table.save_to_disk(path)
    elif name == "a.parquet":
        table.to_parquet(path)
    elif name == "stream.arrow":
        with pa.ipc.new_stream(str(path), table.data.table.schema) as writer:
            writer.write_table(table.data.table)
    else:
        table.to_json(path, lines=name != "array.json")
    task = SpanQa(name="own", file_format="jsonl", train=str(path), no_answer=True)
    found = [
        (example.id, example.question, [a.text for a in example.answers or ()]) for example in task.examples("train")
    ]
    assert found == [("q1", "Who ran?", ["Ann"]), ("q2", "Who slept?", [])]
    source, reader = find_input(str(path)), task.reader()
    answering = PredictionsInOrder(empty={}, group=2, on_error="stop", notes=Notes())
    opened = input_file(source, input_format(None, source, reader, Notes()), {}, answering, Notes())
    assert [(row.example.id, row.example.passage) for row in reader.read(opened).rows] == [
        ("q1", "Ann ran."),
        ("q2", "Ann ran."),
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "lines.json", "array.json", "a.parquet", "saved"])
def test_tagged_sentences_are_read_in_every_format_of_rows(name: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"tokens": [["Ann", "ran"], ["far"]], "tags": [["N", "V"], ["A"]]})
    path = tmp_path / name
    if name == "saved":
        table.save_to_disk(path)
    elif name == "a.parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, lines=name != "array.json")
    for file_format in ("jsonl", "parquet"):
        task = Tagging(name="own", train=str(path), file_format=file_format, scheme="words", labels=["A", "N", "V"])
        assert [(example.words, example.tags) for example in task.examples("train")] == [
            (("Ann", "ran"), (1, 2)),
            (("far",), (0,)),
        ]
    source, reader = find_input(str(path)), task.reader()
    answering = PredictionsInOrder(empty={}, group=2, on_error="stop", notes=Notes())
    opened = input_file(source, input_format(None, source, reader, Notes()), {}, answering, Notes())
    assert [(row.example.id, row.example.words) for row in reader.read(opened).rows] == [
        ("0", ("Ann", "ran")),
        ("1", ("far",)),
    ]

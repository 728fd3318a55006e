"""The user's rows with columns for the predictions: every cell comes back, in every format, without a model."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.refusals import refuses

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction_input import (
    PredictionsInOrder,
    find_input,
    input_file,
    input_format,
    open_file,
)
from lmtransfer.inference.prediction_output import check_output_format, needs_names, open_output
from lmtransfer.inference.prediction_tables import OutputTable
from lmtransfer.tasks.answers import (
    LabelAnswer,
    LabelSetAnswer,
    ScoreAnswer,
    SpanAnswer,
    TagsAnswer,
    answer_columns,
)
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression

SINGLE = TextClassification(
    name="single", labels=["no", "yes"], text_column="text", label_column="gold", files={"train": "x"}
)
ADDED = ["label", "probability"]

#: Cells that readers and writers of tables are known to change.
CELLS = [
    'He said "no".',
    '"quoted"',
    '"',
    '""',
    "a, b; c | d",
    "two\nlines",
    "two\r\nlines",
    "a return\rinside",
    "a\ttab",
    " spaces around ",
    "caf\u00e9 \U0001f600 \u4e2d\u6587 \u00a0",
    "\ufeffmark",
    "007",
    "1e5",
    "1.10",
    "NA",
    "nan",
    "null",
    "TRUE",
    "'",
    "\\N",
    "=1+1",
    "a\u2028b\u0085c\x1cd",
]


def answer(example: Any) -> LabelAnswer:
    """Answer as a function of the text, so that a mix-up of rows shows."""
    share = (len(example.text) % 7 + 1) / 10
    return LabelAnswer(int(share > 0.5), "yes" if share > 0.5 else "no", {"no": 1 - share, "yes": share})


def label(
    path: Path | str,
    output: Path,
    *,
    task: Any = SINGLE,
    answer: Any = answer,
    prefix: str = "",
    on_error: Any = "stop",
    file_format: str | None = None,
    notes: Notes | None = None,
    **columns: str,
) -> PredictionsInOrder:
    """Do as the command does, with answers in place of a model's."""
    source, reader, notes = find_input(str(path)), task.reader(), Notes() if notes is None else notes
    source.check_distinct_from(str(output))
    shape = answer_columns(task.head.kind, task.labels)
    predictions = PredictionsInOrder(empty=dict.fromkeys(shape.keys), group=3, on_error=on_error, notes=notes)
    file = input_file(source, input_format(file_format, source, reader, notes), columns, predictions, notes)
    opened = open_file(file, reader, all_names=needs_names(str(output)))
    table = OutputTable(opened.columns, shape, prefix, has_errors=on_error == "skip")

    def predict(examples: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"id": example.id, **answer(example).as_dict()} for example in examples]

    with open_output(str(output), overwrite=True, table=table, notes=notes) as write:
        predictions.predict_all(opened.rows, predict, write)
    return predictions


def rows_of(path: Path, delimiter: str = ",") -> tuple[list[str], list[list[Any]]]:
    """Read a table with the standard library or pyarrow."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return table.column_names, [list(row) for row in zip(*(column.to_pylist() for column in table), strict=True)]
    if path.suffix == ".jsonl":
        objects = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return list(objects[0]), [list(each.values()) for each in objects]
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file, delimiter=delimiter, strict=True)
    return names, rows


def table_of(seed: int, cells: Sequence[str] = CELLS) -> list[list[str]]:
    rng = random.Random(seed)
    rows = [[f"{number:05}", rng.choice(cells), f"{cell}", rng.choice(cells)] for number, cell in enumerate(cells)]
    return [["no.", "first note", "text", "\u00fcber"], *rows]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_every_cell_of_csv_comes_back(suffix: str, line_end: str, encoding: str, tmp_path: Path) -> None:
    names, *rows = table_of(0)
    path = tmp_path / "in.csv"
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    notes = Notes()
    label(path, tmp_path / f"out{suffix}", notes=notes)
    found = (tmp_path / f"out{suffix}").read_bytes()
    has_mark = encoding == "utf-8-sig" and suffix in (".csv", ".tsv")
    assert found.startswith(b"\xef\xbb\xbf") == has_mark  # Excel needs it to show the umlauts
    assert ("byte order marks dropped" in notes.counts) == (encoding == "utf-8-sig" and not has_mark)
    (tmp_path / f"out{suffix}").write_bytes(found[3 * has_mark :])
    columns, written = rows_of(tmp_path / f"out{suffix}", "\t" if suffix == ".tsv" else ",")
    assert columns == [*names, *ADDED, *(["probabilities"] if suffix == ".jsonl" else [])]
    assert [row[:4] for row in written] == rows
    wanted = [answer(type("Example", (), {"text": row[2].replace("\r\n", "\n")})) for row in rows]
    assert [row[4] for row in written] == [each.name for each in wanted]
    assert [float(row[5]) for row in written] == pytest.approx([max(each.probabilities.values()) for each in wanted])


def test_pandas_reads_the_same_cells_in_input_and_output(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    cells = [cell for cell in CELLS if "\r" not in cell.replace("\r\n", "")]  # pandas does not enclose these
    frame = pandas.DataFrame(table_of(1, cells)[1:], columns=["id", "note", "text", "x"])
    frame.to_csv(tmp_path / "in.csv")  # the first column, the index, has no name
    label(tmp_path / "in.csv", tmp_path / "out.csv")
    as_text = {"dtype": str, "keep_default_na": False}
    before, after = (pandas.read_csv(tmp_path / name, **as_text) for name in ("in.csv", "out.csv"))
    assert list(after.columns) == [*before.columns, *ADDED]
    pandas.testing.assert_frame_equal(after[list(before.columns)], before)
    frame.to_csv(tmp_path / "in.tsv", sep="\t", index=False)
    label(tmp_path / "in.tsv", tmp_path / "out.tsv")
    before, after = (pandas.read_csv(tmp_path / name, sep="\t", **as_text) for name in ("in.tsv", "out.tsv"))
    pandas.testing.assert_frame_equal(after[list(before.columns)], before)


def test_unquoted_tabs_come_back_as_they_are_and_semicolons_stay(tmp_path: Path) -> None:
    path, output = tmp_path / "in.tsv", tmp_path / "out.tsv"
    lines = ["id\ttext", '1\t5" disk', "2\ta, b", "3\t 'c' ", '4\t"said" she', "5\td\re"]
    path.write_bytes("\n".join([*lines, ""]).encode())
    label(path, output)
    found = output.read_bytes().decode().split("\n")
    assert [line.rpartition("\t")[0].rpartition("\t")[0] for line in found[:-1]] == lines
    excel = tmp_path / "in.csv"
    excel.write_text('sep=;\r\nid;text\r\n1;"a; ""b"""\r\n2;c, d\r\n')
    label(excel, tmp_path / "out.csv")
    assert rows_of(tmp_path / "out.csv", ";")[1][1][:2] == ["2", "c, d"]
    assert rows_of(tmp_path / "out.csv", ";")[1][0][:2] == ["1", 'a; "b"']
    label(excel, tmp_path / "out.tsv")
    assert rows_of(tmp_path / "out.tsv", "\t")[1][0][:2] == ["1", 'a; "b"']


def test_objects_keep_their_values_and_their_own_fields(tmp_path: Path) -> None:
    objects: list[dict[str, Any]] = [
        {"text": "a", "n": 1, "f": 1e300, "big": 12345678901234567890, "deep": {"x": [1, None, "\u00e9"]}},
        {"more": "\ud800", "text": "b\r\nc", "n": None, "yes": True},
        {"text": "caf\u00e9", "n": "007", "f": -0.0},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    label(path, tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [
        {key: value for key, value in each.items() if key in before}
        for each, before in zip(written, objects, strict=True)
    ] == objects
    assert [list(each)[: len(before)] for each, before in zip(written, objects, strict=True)] == list(
        map(list, objects)
    )
    label(path, tmp_path / "out.csv")
    names, rows = rows_of(tmp_path / "out.csv")
    assert names == ["text", "n", "f", "big", "deep", "more", "yes", *ADDED]
    assert rows[0][1:5] == ["1", "1e+300", "12345678901234567890", '{"x": [1, null, "\u00e9"]}']
    assert rows[1][:2] == ["b\r\nc", ""]
    assert rows[1][5:7] == ["\ufffd", "true"]
    assert rows[2][1] == "007"
    path.write_text(json.dumps(objects[::2], indent=1))
    path.rename(tmp_path / "in.json")
    label(tmp_path / "in.json", tmp_path / "array.jsonl")
    written = [json.loads(line) for line in (tmp_path / "array.jsonl").read_text().splitlines()]
    assert [each["n"] for each in written] == [1, "007"]


def test_parquet_keeps_its_types_and_dates_become_text_elsewhere(tmp_path: Path) -> None:
    when = datetime.datetime(2026, 1, 31, 12, 30)
    columns = {
        "n": pa.array([1, None, 3], pa.int16()),
        "text": pa.array(["a", None, "caf\u00e9"]),
        "when": pa.array([when, None, when], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("2.00")], pa.decimal128(5, 2)),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int8())),
        "nan": pa.array([float("nan"), 0.5, 1.0], pa.float32()),
    }
    before = pa.table(columns)
    pq.write_table(before, tmp_path / "in.parquet")
    notes = Notes()
    label(tmp_path / "in.parquet", tmp_path / "out.parquet", notes=notes)
    after = pq.read_table(tmp_path / "out.parquet")
    assert after.column_names == [*before.column_names, *ADDED]
    assert [str(after.field(name).type) for name in ADDED] == ["string", "double"]
    for name in before.column_names:
        assert after.field(name).type == before.field(name).type
        assert str(after[name].to_pylist()) == str(before[name].to_pylist())
    assert after["label"].to_pylist()[1] is after["probability"].to_pylist()[1] is None
    assert list(notes.counts.values()) == [1]
    label(tmp_path / "in.parquet", tmp_path / "out.csv")
    names, rows = rows_of(tmp_path / "out.csv")
    assert rows[0][:7] == ["1", "a", "2026-01-31 12:30:00", "1.10", "x", "[1, 2]", ""]
    assert rows[1] == ["", "", "", "", "y", "[]", "0.5", "", ""]
    label(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    first, second, _ = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert (first["n"], first["when"], first["list"], first["nan"]) == (1, "2026-01-31 12:30:00", [1, 2], None)
    assert second["probabilities"] is None


def test_many_row_groups_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtransfer.inference.prediction_tables._GROUP_ROWS", 7)
    names = [f"word {number}" for number in range(40)]
    pq.write_table(pa.table({"text": names, "n": range(40)}), tmp_path / "in.parquet", row_group_size=9)
    label(tmp_path / "in.parquet", tmp_path / "out.parquet")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.num_row_groups > 1
    assert file.read().select(["text", "n"]).to_pydict() == {"text": names, "n": list(range(40))}


def test_an_empty_row_has_an_empty_prediction_and_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text,gold\n1,a,x\n2,,y\n,,\n\n4,   ,z\n5,b,\n")
    notes = Notes()
    label(path, tmp_path / "out.csv", notes=notes)
    rows = rows_of(tmp_path / "out.csv")[1]
    assert [row[:3] for row in rows] == [
        ["1", "a", "x"],
        ["2", "", "y"],
        ["", "", ""],
        ["4", "   ", "z"],
        ["5", "b", ""],
    ]
    assert [row[3:] == ["", ""] for row in rows] == [False, True, True, True, False]
    kind = "inputs without a text, whose prediction is empty"
    assert (notes.counts[kind], notes.first[kind]) == (3, f"{path}:3")
    one = tmp_path / "one.csv"
    one.write_text('text\na\n\n""\nb\n')
    label(one, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["a", "", "", "b"]
    assert lines[1] == {"text": "", "label": None, "probability": None, "probabilities": None}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_column_of_the_same_name_is_not_overwritten(suffix: str, tmp_path: Path) -> None:
    path, output = tmp_path / "in.csv", tmp_path / f"out{suffix}"
    path.write_text("text,label\na,old\nb,older\n")
    with refuses(ConfigError, "column 'label'", "column_prefix=predicted_"):
        label(path, output)
    assert not list(tmp_path.glob("out*"))
    label(path, output, prefix="new ")
    columns, rows = rows_of(output, "\t" if suffix == ".tsv" else ",")
    assert columns[:4] == ["text", "label", "new label", "new probability"]
    assert [row[1] for row in rows] == ["old", "older"]
    objects = tmp_path / "in.jsonl"
    objects.write_text('{"text": "a"}\n{"text": "b", "probability": 1}\n')
    with refuses(ConfigError, "column 'probability'", "column_prefix=predicted_"):
        label(objects, output)


def test_an_error_has_a_column_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n1,a\n2\n3,b\n")
    predictions = label(path, tmp_path / "out.csv", on_error="skip")
    names, rows = rows_of(tmp_path / "out.csv")
    assert (names, predictions.num_errors) == (["id", "text", *ADDED, "error"], 1)
    assert [row[:2] for row in rows] == [["1", "a"], ["", ""], ["3", "b"]]
    assert f"{path}:3" in rows[1][4]
    assert rows[0][4] == ""
    label(path, tmp_path / "out.jsonl", on_error="skip")
    assert set(json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])) == {"id", "error"}
    label(path, tmp_path / "out.parquet", on_error="skip")
    assert pq.read_table(tmp_path / "out.parquet")["text"].to_pylist() == ["a", None, "b"]
    with refuses(DataError, f"{path}:3", "on_error=skip"):
        label(path, tmp_path / "stop.csv")
    assert not (tmp_path / "stop.csv").exists()
    assert (tmp_path / "stop.csv.partial").read_text().startswith("id,text,label,probability\n1,a,")


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\na\n")
    (tmp_path / "hard.csv").hardlink_to(path)
    (tmp_path / "soft.csv").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "other.csv.partial").symlink_to(path)
    for name in ("in.csv", "folder/in.csv", "hard.csv", "soft.csv", "other.csv"):
        with refuses(ConfigError, f"output={tmp_path}/{name}", "is the input file"):
            label(path, Path(f"{tmp_path}/{name}"))
        with refuses(ConfigError, "is the input file"):
            label(tmp_path / "soft.csv", tmp_path / name)
    assert path.read_text() == "text\na\n"


def test_the_file_behind_standard_input_is_not_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\na\n")
    (tmp_path / "soft.csv").symlink_to(path)
    with path.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        for output in (path, tmp_path / "soft.csv"):
            with refuses(ConfigError, f"output={output}", "is the input file"):
                label("-", output, file_format="csv")
        label("-", tmp_path / "out.csv", file_format="csv")
    assert rows_of(tmp_path / "out.csv")[1][0][0] == "a"


def test_a_label_that_a_table_without_quotation_marks_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("text\na\n")
    odd = LabelAnswer(0, "a\tb", {"a\tb": 1.0})
    with refuses(DataError, f"{path}:2", "tab", ".csv"):
        label(path, tmp_path / "out.tsv", answer=lambda _: odd)
    label(path, tmp_path / "out.csv", answer=lambda _: odd)
    assert rows_of(tmp_path / "out.csv")[1] == [["a", "a\tb", "1.0"]]


def test_a_table_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n")
    for suffix in (".csv", ".parquet"):
        label(path, tmp_path / f"out{suffix}")
        assert rows_of(tmp_path / f"out{suffix}") == (["id", "text", *ADDED], [])


def test_several_columns_of_one_name_come_back_where_the_format_allows_it(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(",x,text,x\n0,1,a,2\n1,3,b,4\n")
    label(path, tmp_path / "out.csv")
    assert [row[:4] for row in rows_of(tmp_path / "out.csv")[1]] == [["0", "1", "a", "2"], ["1", "3", "b", "4"]]
    for suffix in (".jsonl", ".parquet"):
        with refuses(ConfigError, "'x' is the name of several columns"):
            label(path, tmp_path / f"out{suffix}")


def test_a_pipe_is_a_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'id,text\r\n1,"a\r\nb"\r\n2,\r\n'

    class Stand:
        buffer = io.BufferedReader(io.BytesIO(text.encode()))  # type: ignore[arg-type]

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Stand())
    label("-", tmp_path / "out.csv", file_format="csv")
    assert [row[:2] for row in rows_of(tmp_path / "out.csv")[1]] == [["1", "a\r\nb"], ["2", ""]]
    Stand.buffer = io.BufferedReader(io.BytesIO(b'{"text": "a"}\n'))  # type: ignore[arg-type]
    with refuses(ConfigError, "pipe", ".jsonl"):
        label("-", tmp_path / "more.csv", file_format="jsonl")


def test_each_kind_of_answer_has_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n7,a\n8,\n")
    several = MultiLabel(name="m", labels=["x", "y z"], text_column="text", label_column="gold", files={"train": "x"})
    answers = LabelSetAnswer((1,), ("y z",), {"x": 0.25, "y z": 0.75})
    label(path, tmp_path / "m.csv", task=several, answer=lambda _: answers)
    assert rows_of(tmp_path / "m.csv") == (
        ["id", "text", "labels", "x", "y z"],
        [["7", "a", '["y z"]', "0.25", "0.75"], ["8", "", "", "", ""]],
    )
    label(path, tmp_path / "m.jsonl", task=several, answer=lambda _: answers)
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    assert first == {"id": "7", "text": "a", **answers.as_dict()}
    number = TextRegression(
        name="r", score_column="gold", text_column="text", files={"train": "x"}, metrics=["pearson"]
    )
    label(path, tmp_path / "r.csv", task=number, answer=lambda _: ScoreAnswer(2.5))
    assert rows_of(tmp_path / "r.csv") == (["id", "text", "score"], [["7", "a", "2.5"], ["8", "", ""]])
    tags = Tagging(name="t", scheme="words", labels=["O", "B"], files={"train": "x"})
    words = tmp_path / "words.jsonl"
    words.write_text('{"words": ["a", "b"], "key": 1}\n{"words": [], "key": 2}\n')
    label(words, tmp_path / "t.csv", task=tags, answer=lambda _: TagsAnswer((0, 1), ("O", "B"), (0.5, 0.75)))
    names, (one, two) = rows_of(tmp_path / "t.csv")
    assert names == ["words", "key", "tags", "probabilities"]
    assert (one, two[1:]) == (['["a", "b"]', "1", '["O", "B"]', "[0.5, 0.75]"], ["2", "", ""])
    conll = tmp_path / "in.conll"
    conll.write_text("a\tO\nb\tO\n\n")
    label(conll, tmp_path / "c.jsonl", task=tags, answer=lambda _: TagsAnswer((0, 1), ("O", "B"), (0.5, 0.75)))
    assert json.loads((tmp_path / "c.jsonl").read_text()) == {
        **{"id": "0", "words": ["a", "b"]},
        **{"tags": ["O", "B"], "probabilities": [0.5, 0.75]},
    }
    spans = SpanQa(name="s", files={"train": "x"})
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"question": "Who?", "context": "Ann.", "key": "k"}\n{"question": "", "context": "Ann."}\n')
    label(asked, tmp_path / "s.parquet", task=spans, answer=lambda _: SpanAnswer("Ann", 0, 3, 1.5, -1.0))
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.column_names == ["question", "context", "key", "answer", "start", "end", "score", "null_score"]
    assert table.to_pylist()[0]["end"] == 3
    assert [row["answer"] for row in table.to_pylist()] == ["Ann", None]


def test_lines_and_questions_become_tables(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a, b\n\nc\n")
    label(path, tmp_path / "out.csv")
    assert [row[:2] for row in rows_of(tmp_path / "out.csv")[1]] == [["0", "a, b"], ["1", ""], ["2", "c"]]
    squad = tmp_path / "in.json"
    question = {"id": "q", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ann ran.", "qas": [question]}]}]}))
    label(
        squad, tmp_path / "s.csv", task=SpanQa(name="s", files={"train": "x"}), answer=lambda _: SpanAnswer("Ann", 0, 3)
    )
    assert rows_of(tmp_path / "s.csv")[1][0][:6] == ["q", "Who?", "Ann ran.", "Ann", "0", "3"]


def test_the_suffix_decides_the_format() -> None:
    for name in ("-", "a.csv", "b.TSV", "c.jsonl", "d.Parquet"):
        check_output_format(name)
    for name in ("a", "a.txt", "a.json", "a.csv.gz", "a.xlsx"):
        with refuses(ConfigError, f"output={name}", ".csv, .tsv, .jsonl", ".parquet"):
            check_output_format(name)


def test_what_interrupts_leaves_no_file_under_the_final_name(tmp_path: Path) -> None:
    path, output = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("text\n" + "a\n" * 9)
    output.write_text("old\n")

    def broken() -> Iterator[Any]:
        yield from (answer(type("Example", (), {"text": "a"})) for _ in range(4))
        raise KeyboardInterrupt

    answers = broken()
    with pytest.raises(KeyboardInterrupt):
        label(path, output, answer=lambda _: next(answers))
    assert output.read_text() == "old\n"
    assert len((tmp_path / "out.csv.partial").read_text().splitlines()) == 1 + 3  # a whole group

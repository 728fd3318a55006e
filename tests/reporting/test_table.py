"""The tables of the report page: numbers as in the entries, sortable, and readable as cards and without colour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.runs import pretraining, transfer, write_run
from support.html_pages import Element, columns, parsed

from lmtransfer.reporting.page.report import html_report
from lmtransfer.reporting.result_tables import table_rows
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.reporting.table import Cell, Group, Line, Mark, ReportTable, TableColumn, mark_of
from lmtransfer.system.printable import count, duration, format_difference, format_metric


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    tmp_path = tmp_path_factory.mktemp("runs")
    pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "finetune" / "good", [0.80, 0.82, 0.81], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "finetune" / "bad", [0.50, 0.52, 0.51], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "finetune" / "even", [0.66, 0.69, 0.64], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "finetune" / "alone", [0.70], controls=[0.66], num_train=None)
    write_run(tmp_path / "finetune" / "going", config={"init": "runs/pretrain/imdb", "task": {"name": "sst2"}})
    return make_entries(collect(tmp_path))


def page_of(entries: list[Entry]) -> Element:
    return parsed(html_report(entries, find_sweeps(entries), [], title="t"))


@pytest.fixture(scope="module")
def page(entries: list[Entry]) -> Element:
    return page_of(entries)


def of_runs(page: Element, *names: str) -> dict[str, dict[str, Element]]:
    """The cells of the table of results by heading, for each of the named runs."""
    table = columns(page.with_id("results").one("table"))

    def place_of(name: str) -> int:
        (place,) = (
            place
            for place, cell in enumerate(table["run"])
            if cell.words.startswith(name) and not cell.words.startswith(f"{name} control")
        )
        return place

    return {name: {heading: cells[place_of(name)] for heading, cells in table.items()} for name in names}


def test_the_table_has_the_numbers_of_the_entries(entries: list[Entry], page: Element) -> None:
    scored = {entry.name: entry for entry in entries if entry.score is not None and not entry.is_pretraining}
    assert sorted(scored) == ["alone", "bad", "even", "good"]
    for name, row in of_runs(page, *scored).items():
        entry = scored[name]
        metric = entry.metric or ""
        score, difference = row["score"], row["difference from control"]
        assert entry.score is not None
        assert entry.difference is not None
        assert float(score.attributes["data-sort"]) == entry.score.mean
        assert score.words.startswith(format_metric(entry.score.mean, metric))
        assert float(difference.attributes["data-sort"]) == entry.difference.delta
        assert format_difference(entry.difference.delta, metric) in difference.words
        assert entry.difference.verdict in difference.words
        for end in entry.difference.interval or ():
            assert format_difference(end, metric) in difference.words
        assert row["transfer"].words.startswith("finetuned")
        costs = {
            "pretraining tokens": (entry.pretraining_tokens, count),
            "pretraining time": (entry.pretraining_seconds, duration),
            "parameters": (entry.num_parameters, count),
        }
        for heading, (value, text) in costs.items():
            assert value is not None
            assert row[heading].words == text(value)
            assert float(row[heading].attributes["data-sort"]) == value


def test_a_verdict_is_a_sign_and_a_word(page: Element) -> None:
    rows = of_runs(page, "good", "bad", "even", "alone")
    cells = {name: row["difference from control"] for name, row in rows.items()}
    signs = {name: (cell.one(css="sign").text, cell.words) for name, cell in cells.items()}
    assert {name: sign for name, (sign, _) in signs.items()} == {
        "good": "\u25b2",
        "bad": "\u25bc",
        "even": "=",
        "alone": "?",
    }
    words = {"good": "better", "bad": "worse", "even": "no difference shown", "alone": "one seed"}
    assert all(word in signs[name][1] for name, word in words.items())


def test_headings_that_sort_are_buttons_and_say_their_order(page: Element) -> None:
    board = page.with_id("results").one("table")
    assert "sorts" in board.classes
    headings = board.one("thead").all("th")
    assert {"score", "difference from control", "pretraining tokens"} <= {heading.words for heading in headings}
    for heading in headings:
        assert heading.attributes["aria-sort"] == "none"
        assert heading.attributes["data-first"] in ("ascending", "descending")
        assert heading.one("button").attributes["type"] == "button"


def test_every_cell_names_its_column_for_a_narrow_screen(page: Element) -> None:
    for table in page.all("table", css="cards"):
        for heading, cells in columns(table).items():
            assert {cell.attributes["data-label"] for cell in cells} == {heading}


def test_costs_that_no_run_knows_have_no_column(page: Element, tmp_path: Path) -> None:
    headings = columns(page.with_id("results").one("table"))
    assert not {"trained parameters", "memory", "difference from word counts"} & set(headings)
    known = tmp_path / "known"
    source = pretraining(known / "pretrain" / "base")
    add(source / "result.json", '"flops": 2.5e15')
    run = transfer(known / "finetune" / "ft", [0.7, 0.72], init=str(source))
    add(run / "result.json", '"num_trained_parameters": 1234567, "peak_memory": 612345678')
    result = json.loads((run / "result.json").read_text())
    share = f"{100 * 1234567 / result['num_parameters']:.0f} %"
    own = page_of(make_entries(collect(known)))
    rows = of_runs(own, "ft", "majority")
    assert rows["ft"]["trained parameters"].words == f"1.2M{share}"
    assert rows["ft"]["memory"].words == "612 MB"
    assert rows["ft"]["time per seed"].words == duration(result["seconds"] / result["n"])
    assert float(rows["ft"]["memory"].attributes["data-sort"]) == 612345678
    assert rows["ft"]["pretraining FLOP"].words == "2.5e+15"
    assert float(rows["ft"]["pretraining FLOP"].attributes["data-sort"]) == 2.5e15
    assert {heading for heading, cell in rows["majority"].items() if cell.words} == {"run", "transfer", "score"}


def test_the_difference_from_word_counts_is_in_the_row_of_its_run(tmp_path: Path) -> None:
    counted = {"TF-IDF": [0.75, 0.77, 0.76], "NB-SVM": [0.5, 0.5, 0.5]}
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.71, 0.72], controls=[0.6, 0.61, 0.62], baselines=counted)
    (entry,) = make_entries(collect(tmp_path))
    assert entry.baseline_difference is not None
    rows = of_runs(page_of([entry]), "ft", "TF-IDF", "NB-SVM")
    cell = rows["ft"]["difference from word counts"]
    assert cell.one(css="sign").text == "\u25bc"
    assert float(cell.attributes["data-sort"]) == entry.baseline_difference.delta
    for part in ("-5.0", "from TF-IDF", "worse", format_difference(entry.baseline_difference.interval[0], "accuracy")):
        assert part in cell.words
    assert [rows[name]["difference from word counts"].words for name in ("TF-IDF", "NB-SVM")] == ["", ""]


def add(path: Path, field: str) -> None:
    path.write_text(path.read_text().replace("{", "{" + field + ", ", 1))


def test_the_table_of_results_has_every_row_and_its_baselines(entries: list[Entry], page: Element) -> None:
    table = page.with_id("results").one("table")
    rows = table_rows(entries)
    shown_rows = columns(table)
    assert len(shown_rows["run"]) == len(rows)
    shown = zip(rows, shown_rows["run"], shown_rows["score"], shown_rows["difference from control"], strict=True)
    for row, run, mean, verdict in shown:
        assert row.run in run.words
        assert row.entry.model in run.words
        if row.entry.score is not None:
            assert mean.words.startswith(format_metric(row.entry.score.mean, row.entry.metric))
        if row.entry.difference is not None:
            assert row.entry.difference.verdict in verdict.words
    groups = [group.words for group in table.all("tr", css="group")]
    assert groups == [
        "sst2",  # the unfinished run
        "sst2, dev, 1,000 labels accuracy (%)",
        "sst2, dev accuracy (%)",
        "pretraining validation loss",
    ]
    kinds = [row.attributes.get("class", "") for row in table.all("tr")]
    assert {"majority", "control"} <= set(kinds)


def test_an_empty_column_is_left_out_and_the_rest_stays() -> None:
    lines = tuple(Line({"x": Cell(name), "y": Cell(), "z": Cell(notes=("n",))}) for name in "ab")
    table = ReportTable("t", tuple(map(TableColumn, "xyz")), (Group(lines),)).without_empty()
    assert table.headings == ["x", "z"]
    assert table.rows == [["a", "n"], ["b", "n"]]


def test_a_column_shows_cells_side_by_side_and_below_each_other_without_those_that_are_empty() -> None:
    line = Line({"a": Cell("1", ("2",), sort=7.0), "b": Cell(), "c": Cell("3"), "d": Cell("careful")})
    assert TableColumn("a").cell(line) == Cell("1 2", sort=7.0)
    assert TableColumn("h", ("a", "({b})", "<{c}>"), separator=", ").cell(line).text == "1, 2, <3>"
    below = TableColumn("h", ("b",), notes=("{a} tokens", "({b})", "c"), problem="d").cell(line)
    assert (below.text, below.notes, below.problem) == ("", ("1 tokens", "2 tokens", "3"), "careful")
    assert below.lines == ["1 tokens", "2 tokens", "3", "careful"]
    assert TableColumn("unknown").cell(line) == Cell()


def test_the_mark_of_a_verdict_is_in_the_column_that_shows_the_verdict() -> None:
    line = Line({"difference": Cell("+1.0", sort=0.01), "verdict": Cell("worse", mark=Mark("worse", "v"))})
    assert TableColumn("difference").cell(line).mark is None
    both = TableColumn("d", ("difference",), notes=("verdict",)).cell(line)
    assert (both.mark, both.sort) == (Mark("worse", "v"), 0.01)
    assert mark_of(None) is None


@pytest.mark.parametrize(
    ("text", "is_number"),
    [("71.0", True), ("0.673 +- 0.011", True), ("+0.356 (+0.197 to +0.515)", False), ("-", False), ("a1", False)],
)
def test_numbers_are_told_from_words(text: str, is_number: bool) -> None:
    assert Cell(text).is_number is is_number

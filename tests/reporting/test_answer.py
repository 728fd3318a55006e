"""Imported runs, and runs that go on from others, in the report."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from fakes.runs import MODEL, pretraining, transfer, write_run

from lmtransfer.reporting.answer import answer, before_and_after
from lmtransfer.reporting.page.report import html_report
from lmtransfer.reporting.result_tables import table_rows
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.write import markdown_report


def imported(folder: Path) -> Path:
    """A run as `lmtransfer import` leaves one."""
    config = {"name": folder.name, "source": "/models/bert", "init": None, "model": MODEL}
    config["objective"] = {"losses": {"mlm": {}, "nsp": {}}}
    result = {"command": "import", "task": None, "metrics": {}, "main_metric": None, "control": None}
    result |= {"split": None, "seconds": None, "tokens": None, "tokens_per_second": None, "num_parameters": 110_000_000}
    return write_run(folder, config=config, result=result)


def world(root: Path, before: list[float], after: list[float], **changed: object) -> list[Entry]:
    """A published model, the same after going on, and a transfer from each."""
    start = imported(root / "import" / "bert")
    adapted = pretraining(root / "pretrain" / "mine", init=str(start))
    transfer(root / "finetune" / "before", before, init=str(start))
    transfer(root / "finetune" / "after", after, init=str(adapted), **changed)
    return make_entries(collect(root))


def test_an_imported_run_is_where_a_transfer_began(tmp_path: Path) -> None:
    found = {entry.run.name: entry for entry in world(tmp_path, [0.7, 0.72], [0.8, 0.82])}
    assert found["before"].source.name == "bert"
    assert (found["before"].objective, found["before"].corpus) == ("mlm+nsp", "published")
    assert found["before"].pretraining_tokens is None
    assert found["after"].source.name == "mine"
    assert found["after"].corpus == "published + imdb_unsup"
    assert found["after"].pretraining_tokens == 409600
    rows = {row.run: row for row in table_rows(list(found.values()))}
    assert (rows["bert"].entry.group, rows["bert"].entry.num_parameters) == ("pretraining", 110_000_000)
    assert rows["before"].entry.group == rows["after"].entry.group == "sst2, dev, 1,000 labels"


def test_before_and_after_are_compared_in_closed_form(tmp_path: Path) -> None:
    (pair,) = before_and_after(entries := world(tmp_path, [0.70, 0.71, 0.72], [0.80, 0.82, 0.84]))
    assert (pair.before.run.name, pair.after.run.name) == ("before", "after")
    assert pair.difference.delta == pytest.approx(0.11)
    assert pair.difference.standard_error == pytest.approx(0.01 / math.sqrt(3))  # of 10, 11 and 12 points
    assert pair.difference.verdict == "better"
    said = answer(entries)
    facts = ("imdb_unsup", "helped", "sst2, dev, 1,000 labels", "after (finetuned)", "82.0 %", "71.0 %", "before")
    assert re.search(".*".join(map(re.escape, facts)), said)
    sentence = said[said.rindex(". ", 0, said.index("imdb_unsup")) + 2 : said.index("82.0 %")]  # how much is after it
    assert sentence in markdown_report(entries, [], [], title="t")
    assert sentence in html_report(entries, [], [], title="t")


@pytest.mark.parametrize(
    ("after", "verdict"),
    [([0.60, 0.6201], "hurt"), ([0.70, 0.73], "no difference"), ([0.9], "one seed")],
)
def test_the_verdict_is_that_of_the_numbers(tmp_path: Path, after: list[float], verdict: str) -> None:
    said = answer(world(tmp_path, [0.70, 0.72], after))
    assert verdict in said[said.index("imdb_unsup") :].partition(":")[0]


def test_what_differs_in_more_is_not_compared(tmp_path: Path) -> None:
    assert before_and_after(world(tmp_path / "labels", [0.7, 0.72], [0.8, 0.82], num_train=300)) == []
    assert before_and_after(world(tmp_path / "way", [0.7, 0.72], [0.8, 0.82], command="probe")) == []
    for number, changed in enumerate(({"checkpoint": "last"}, {"learning_rates": [0.1, 0.2]}, {"schedule.end": 0.1})):
        assert before_and_after(world(tmp_path / f"set-{number}", [0.7, 0.72], [0.8, 0.82], settings=changed)) == []
    entries = world(tmp_path / "two", [0.7, 0.72], [0.8, 0.82])
    transfer(tmp_path / "two" / "finetune" / "again", [0.5, 0.52], init=str(tmp_path / "two" / "import" / "bert"))
    assert len(before_and_after(entries)) == 1
    assert before_and_after(make_entries(collect(tmp_path / "two"))) == []  # which of two it is, nobody said


def test_the_nearest_run_before_is_the_one_compared_with(tmp_path: Path) -> None:
    world(tmp_path, [0.7, 0.72], [0.8, 0.82])
    further = pretraining(tmp_path / "pretrain" / "further", init=str(tmp_path / "pretrain" / "mine"))
    transfer(tmp_path / "finetune" / "last", [0.9, 0.92], init=str(further))
    pairs = before_and_after(make_entries(collect(tmp_path)))
    assert {(pair.before.run.name, pair.after.run.name) for pair in pairs} == {("before", "after"), ("after", "last")}

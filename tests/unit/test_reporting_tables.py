from __future__ import annotations

import io
import json

import pytest
from fakes.runs import pretraining, transfer, write_run
from rich.console import Console

from lmtransfer.reporting.render.markdown import markdown_table
from lmtransfer.reporting.render.terminal import print_report
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.reporting.write import to_json

LONG = "a-run-with-a-name-that-says-everything-there-is-to-say-about-it-and-then-some"


@pytest.fixture
def entries(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    for rate in (0.15, 0.4):
        pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate}", mask_prob=rate)
    transfer(tmp_path / "finetune" / LONG, [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "finetune" / "[red]x|y[/red]", [0.665, 0.675], controls=[0.66, 0.68])
    write_run(tmp_path / "pretrain" / "going", config={"init": None})
    return make_entries(collect(tmp_path))


def printed(entries, *, encoding="utf-8", width=100, **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    console = Console(file=stream, width=width, highlight=False, **options)
    print_report(entries, find_sweeps(entries), console)
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_fits_a_hundred_columns_and_shows_all_numbers(entries):
    text = printed(entries)
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "71.0 \u00b1 1.0",
        "median 71.0",
        "+5.0",
        "+1.4 to +8.6",
        "better",
        "no difference",
        "410k tokens",
        "5.4M",
    ):
        assert part in text
    assert "[red]x|y[/red]" in text  # names are text, not markup
    assert "unfinished" in text
    assert "objective.mask_prob" in text


def test_without_colour_there_are_no_escape_codes(entries):
    assert "\x1b" not in printed(entries, no_color=True, force_terminal=False)
    assert "\x1b[1m" in printed(entries, force_terminal=True)


def test_an_ascii_terminal_gets_ascii(entries):
    text = printed(entries, encoding="ascii")
    assert "71.0 +- 1.0" in text


@pytest.mark.parametrize("width", [60, 200])
def test_other_widths_do_not_break(entries, width):
    assert max(map(len, printed(entries, width=width).splitlines())) <= width


def test_markdown_has_one_line_a_run_and_escapes_names(entries):
    rows = table_rows(entries)
    lines = markdown_table(rows).splitlines()
    assert len(lines) == len(rows) + 2
    widths = {len(line.replace("\\|", "").split("|")) for line in lines}
    assert len(widths) == 1
    assert r"\[red\]x\|y\[/red\]" in "\n".join(lines)
    (line,) = (line for line in lines if line.startswith(f"| {LONG} |"))
    # three pairs 4, 5 and 6 points apart; of two comparisons the first is judged at 0.025: 6.205 times 1 / root 3
    assert "| 71.0 \u00b1 1.0 | 71.0 | +5.0 (+1.4 to +8.6) | better, " in line
    assert " this checkpoint | 4.6 |  | 410k tokens, 30 s | 5.4M | 9.0k |" in line


def test_json_has_plain_numbers(entries):
    content = json.loads(to_json(table_rows(entries), find_sweeps(entries), "yes"))
    assert content["answer"] == "yes"
    (row,) = (row for row in content["rows"] if row["run"] == LONG)
    assert row["score"]["mean"] == pytest.approx(0.71)
    assert row["difference"]["delta"] == pytest.approx(0.05)
    assert row["difference"]["verdict"] == "better"
    assert row["pretraining_tokens"] == 409600
    assert content["sweeps"][0]["points"][1]["values"] == {"objective.mask_prob": 0.4}

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from fakes.runs import pretraining, transfer, write_run
from rich.console import Console

from lmtransfer.reporting.result_tables import PAGE, print_points, results_table, sweep_table, table_rows
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps, make_sweep
from lmtransfer.reporting.table import markdown_table
from lmtransfer.reporting.write import print_report, to_json

LONG = "a-run-with-a-name-that-says-everything-there-is-to-say-about-it-and-then-some"


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("runs")
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


@pytest.mark.parametrize("metrics", [["accuracy", "macro_f1"], ["accuracy", "macro_f1", "matthews"]])
def test_every_chosen_metric_of_runs_controls_and_baselines_is_in_every_table(tmp_path, metrics):
    folder = tmp_path / "finetune" / "ft"
    counted, given = {"TF-IDF": [0.6, 0.61]}, {"task.metrics": metrics}
    transfer(folder, [0.70, 0.72], controls=[0.66, 0.67], baselines=counted, settings=given)
    result = json.loads((folder / "result.json").read_text())
    for part, first in ((result, 0.5), (result["control"], 0.3), (result["baselines"]["TF-IDF"], 0.4)):
        for place, seed in enumerate(part["seeds"]):
            seed["metrics"] |= {name: first + place / 10 for name in metrics[1:]}
    result["majority"] = {"accuracy": 0.5, **dict.fromkeys(metrics[1:], 0.25)}
    (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    entries = make_entries(collect(tmp_path))
    rows = table_rows(entries)
    means = {row.entry.transfer: {name: one.mean for name, one in row.other_metrics.items()} for row in rows}
    wanted = {"majority": 0.25, "baseline": 0.45, "control": 0.35, "finetuned": 0.55}
    assert means == {way: dict.fromkeys(metrics[1:], pytest.approx(mean)) for way, mean in wanted.items()}
    board = results_table(table_rows(entries)).select(PAGE)
    notes = [note for line in board.lines for column in board.columns for note in column.cell(line).notes]
    for name in metrics[1:]:
        shown = {"macro_f1": "macro_f1 (%) 55.0 \u00b1 7.1", "matthews": "matthews 0.550 \u00b1 0.071"}[name]
        assert shown in notes
        assert shown in markdown_table(results_table(table_rows(entries))).replace("\\_", "_")
        assert name in printed(entries)
        rows = {row["transfer"]: row for row in json.loads(to_json(table_rows(entries), [], ""))["rows"]}
        assert rows["majority"]["other_metrics"][name]["mean"] == 0.25


def test_a_metric_that_is_not_defined_is_said_beside_its_score(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72], controls=[0.66, 0.67])
    path = tmp_path / "finetune" / "ft" / "result.json"
    result = json.loads(path.read_text())
    result["control"]["undefined"] = ["pearson is not defined and counts as 0: every prediction is the same"]
    path.write_text(json.dumps(result))
    notes = {row.entry.transfer: row.note for row in table_rows(make_entries(collect(tmp_path)))}
    assert notes == {"majority": "", "control": result["control"]["undefined"][0], "finetuned": ""}


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
    lines = markdown_table(results_table(rows).without_empty()).splitlines()
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


def test_a_point_that_failed_has_its_values_and_no_score(tmp_path: Path) -> None:
    for value in (0.15, 0.4):
        pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={value},seed=1", mask_prob=value)
    sweep = make_sweep("masks", make_entries(collect(tmp_path)))
    assert sweep is not None
    found = sweep_table(sweep, failed=["objective.mask_prob=0.8,seed=1", "other=1"]).rows
    assert [row[0] for row in found] == ["0.15", "0.4", "0.8", "other=1"]
    assert ["failed" in row for row in found] == [False, False, True, True]
    assert len(sweep_table(sweep).rows) == 2


@pytest.mark.parametrize("names", [("seed=1", "seed=2"), ("train.steps=1", "train.steps=2")])
def test_pretrain_shows_points_that_failed(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pretrain" / "x"
    print_points("pretrain", [pretraining(folder / names[0], final=4.0), pretraining(folder / names[1])], ["lost=9"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[:1] == ["lost=9"]] == [["lost=9", "failed"]]


def test_finetune_shows_points_that_failed_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "finetune" / "x"
    runs = []
    for row, scores in enumerate([(0.7, 0.8), (0.8, 0.9)]):
        run = transfer(folder / f"lr={row}", scores)
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace('"mean"', '"deviation": 0.07, "mean"'))
        runs.append(run)
    print_points("finetune", runs, ["lr=3"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line and line[0].startswith("lr=")] == [
        ["lr=1", "85.0"],
        ["lr=0", "75.0"],
        ["lr=3", "failed"],
    ]

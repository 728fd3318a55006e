"""Charts of what was logged during training."""

from __future__ import annotations

import json

import pytest
from fakes.runs import loss_lines, pretraining, task_lines, transfer, write_run

from lmtransfer.reporting.figures.logged import detection_curves, loss_curve, part_panels
from lmtransfer.reporting.figures.scores import make_charts
from lmtransfer.reporting.figures.style import MAX_CURVES
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps


def charts(root):
    entries = make_entries(collect(root))
    return {chart.name: chart for chart in make_charts(entries, find_sweeps(entries))}


def test_the_losses_of_all_pretraining_runs_are_one_chart(tmp_path):
    for number in range(MAX_CURVES + 1):
        pretraining(tmp_path / "pretrain" / f"run{number}")
    write_run(tmp_path / "pretrain" / "a", config={"init": None}, metrics=loss_lines(5.9)[:90])
    for seed, final in enumerate((4.5, 4.6)):
        pretraining(tmp_path / "pretrain" / "a-two" / f"seed-{seed}", final=final, seed=seed)
    assert list(charts(tmp_path)) == ["pretraining-loss-mlm"]
    chart = charts(tmp_path)["pretraining-loss-mlm"]
    assert f"{MAX_CURVES} of {MAX_CURVES + 3} runs" in chart.title
    assert [panel.x for panel in chart.panels] == ["tokens", "seconds"]
    labels = [curve.label for curve in chart.panels[0].losses]
    assert labels == ["a", "a-two", "a-two", *(f"run{number}" for number in range(MAX_CURVES - 2))]


def test_the_curve_holds_what_was_logged(tmp_path):
    folder = pretraining(tmp_path / "pretrain" / "imdb")
    (run,) = collect(folder)
    curve = loss_curve(run, "imdb", "mlm")
    lines = loss_lines(4.5)
    assert curve.loss == tuple(line["loss/mlm"] for line in lines)
    assert curve.tokens == tuple(line["tokens"] for line in lines)
    assert curve.validation[0] == (2048 * 50, pytest.approx(7.5), lines[49]["validation/mlm"])
    assert curve.plateau == 6.01
    assert loss_curve(run, "imdb").plateau is None  # the total has other parts in it


def test_a_curve_is_marked_where_phases_change(tmp_path):
    names = ["words", "masks & more", "masks & more", "fewer"]
    lines = [line | {"phase": names[min(place * 4 // 190, 3)]} for place, line in enumerate(loss_lines(4.5))]
    first = next(place for place, line in enumerate(lines) if line["phase"] != "words")
    lines = [  # word vectors have no masked loss
        {key: value for key, value in line.items() if place >= first or "mlm" not in key}
        for place, line in enumerate(lines)
    ]
    folder = write_run(tmp_path / "runs" / "pretrain" / "run", config={"init": None}, metrics=lines)
    (run,) = collect(folder)
    curve = loss_curve(run, "run", "mlm")
    second = next(place for place, line in enumerate(lines) if line["phase"] == "fewer")
    assert curve.changes == tuple(
        (lines[place - 1]["tokens"], lines[place - 1]["seconds"], lines[place]["phase"]) for place in (first, second)
    )
    assert len(curve.loss) == len(lines) - first


def test_losses_that_are_not_finite_leave_a_gap(tmp_path):
    lines = loss_lines(4.5)
    for line in lines[10:20]:
        line["loss"] = line["loss/mlm"] = None
    folder = write_run(tmp_path / "run", config={}, metrics=lines)
    (run,) = collect(folder)
    assert len(loss_curve(run, "x", "mlm").loss) == 190


def with_result(folder, **more):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return folder


def test_each_part_of_a_mixture_has_its_loss_and_its_shares(tmp_path):
    run = pretraining(tmp_path / "pretrain" / "wikis")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[49] |= {"validation/mlm/fra": 5.0, "validation/mlm/spa": 6.0, "validation/mlm_accuracy/fra": 0.1}
    lines[99] |= {"validation/loss/fra": 9.0, "validation/mlm/fra": 4.5, "validation/mlm/spa": 5.5}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with_result(run, parts={"fra": {"share": 0.8, "sampled": 0.7, "own": 0.6}, "spa": {"share": 0.2}})
    (collected,) = collect(run)
    losses, shares = part_panels(collected)
    assert losses.y == "validation mlm (nats)"
    curves = {line.label.split()[0]: [(tokens, loss.mean) for tokens, loss in line.points] for line in losses.series}
    assert curves == {"fra": [(102400, 5.0), (204800, 4.5)], "spa": [(102400, 6.0), (204800, 5.5)]}
    values = [[(part, share.mean) for part, share in bars.points] for bars in shares.series]
    assert values == [[("fra", 0.8), ("spa", 0.2)], [("fra", 0.7), ("spa", 0.0)], [("fra", 0.6), ("spa", 0.0)]]
    assert charts(tmp_path)["parts-1"].panels == (losses, shares)
    assert [line.label for line in losses.series] == ["fra  4.500", "spa  5.500"]
    assert shares.series[0].label == "of the text"
    pretraining(tmp_path / "other" / "pretrain" / "single")
    assert part_panels(collect(tmp_path / "other")[0]) == ()


def test_the_parts_of_a_mixture_have_every_seed(tmp_path):
    for seed, final in enumerate((4.5, 4.6, 4.8)):
        run = pretraining(tmp_path / "pretrain" / "wikis" / f"seed-{seed}", final=final, seed=seed)
        lines = loss_lines(final)
        for line in lines[49::50]:
            line |= {"validation/mlm/fra": line["validation/mlm"] + 1}
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (line,) = charts(tmp_path)["parts-1"].panels[0].series
    expected = [[row["validation/mlm"] + 1 for row in loss_lines(final)[49::50]] for final in (4.5, 4.6, 4.8)]
    assert [score.values for _, score in line.points] == list(zip(*expected, strict=True))


def test_the_metric_of_runs_and_controls_has_every_seed(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67])
    (panel,) = charts(tmp_path)["learning-sst2-dev-1-000-labels-accuracy"].panels
    assert (panel.kind, panel.x, panel.y) == ("curves", "optimizer steps", "accuracy")
    assert {line.label: line.is_control for line in panel.series} == {"ft": False, "ft control": True}
    for line, finals in zip(panel.series, ((0.70, 0.72, 0.71), (0.66, 0.67)), strict=True):
        values = [[row["validation/accuracy"] for row in task_lines(final)] for final in finals]
        assert [score.values for _, score in line.points] == list(zip(*values, strict=True))


def with_detection(folder, *, tells=True, logs=True):
    """A pretraining run that logs what it finds of replaced tokens, and in its first validation tells nothing."""
    lines = []
    for number in range(4):
        line = {"step": 10 * (number + 1), "tokens": 1000 * (number + 1), "seconds": 1.0 + number, "loss": 30.0}
        line |= {"validation/rtd": 0.4, "validation/rtd_replaced": 0.9}
        if logs:
            line |= {"validation/rtd_base_rate": 0.12, "validation/rtd_recall": 0.2 * number * tells}
        if number and tells and logs:
            line |= {"validation/rtd_precision": 0.3 + 0.1 * number}
        lines.append(line)
    return write_run(folder, config={"init": None, "model": {"dim": 8}}, metrics=lines)


def test_replaced_tokens_are_drawn_beside_the_base_rate(tmp_path):
    with_detection(tmp_path / "runs" / "pretrain" / "small")
    with_detection(tmp_path / "runs" / "pretrain" / "old", logs=False)
    with_detection(tmp_path / "runs" / "pretrain" / "silent", tells=False)
    entries = make_entries(collect(tmp_path / "runs"))
    by_name = {entry.name: detection_curves(entry) for entry in entries}
    assert by_name["old"] is None
    precision, recall, _ = by_name["silent"]
    assert precision == ()
    assert [value.mean for _, value in recall] == [0.0] * 4
    precision, recall, base_rate = by_name["small"]
    assert [(tokens, value.mean) for tokens, value in precision] == [
        (2000, 0.4),
        (3000, 0.5),
        (4000, pytest.approx(0.6)),
    ]
    assert [tokens for tokens, _ in recall] == [1000, 2000, 3000, 4000]
    assert {value.mean for _, value in base_rate} == {0.12}
    precision, recall = charts(tmp_path / "runs")["replaced-tokens"].panels
    assert (precision.y, recall.y) == ("precision", "recall")
    assert {line.label: line.is_reference for line in precision.series} == {
        "silent": False,
        "small": False,
        "base rate": True,
    }
    assert [line.label for line in recall.series] == ["silent", "small"]

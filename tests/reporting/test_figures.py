from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import yaml
from fakes.runs import loss_lines, pretraining, transfer, write_run

from lmtransfer.reporting.figures.logged import detection_curves, loss_curve, part_panels
from lmtransfer.reporting.figures.scores import draw_figures, setting_charts
from lmtransfer.reporting.figures.spec import moving_average
from lmtransfer.reporting.figures.style import MAX_CURVES, label_ends, new_figure, spread_apart
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.details import languages_text, read_layer_weights
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps

SVG = "{http://www.w3.org/2000/svg}"


def draw(root, to):
    entries = make_entries(collect(root))
    return {figure.name: figure for figure in draw_figures(entries, find_sweeps(entries), to)}


def texts(figure):
    return ["".join(node.itertext()).strip() for node in ElementTree.parse(figure.svg).iter(f"{SVG}text")]


def num_paths(figure):
    return sum(1 for _ in ElementTree.parse(figure.svg).iter(f"{SVG}path"))


def test_learning_curves_with_validation_and_plateau(tmp_path):
    pretraining(tmp_path / "runs" / "pretrain" / "imdb")
    write_run(tmp_path / "runs" / "pretrain" / "going", config={"init": None}, metrics=loss_lines(5.9)[:90])
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    assert list(figures) == ["pretraining-loss-mlm"]
    found = texts(figures["pretraining-loss-mlm"])
    for label in ("imdb", "going", "tokens", "training time (s)", "mlm (nats)", "unigram entropy 6.01"):
        assert label in found
    assert figures["pretraining-loss-mlm"].png.read_bytes().startswith(b"\x89PNG")
    assert figures["pretraining-loss-mlm"].png.stat().st_size > 20_000
    assert num_paths(figures["pretraining-loss-mlm"]) > 20


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
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    found = texts(figures["pretraining-loss-mlm"])
    assert "phase masks & more" in found
    assert "phase fewer" in found


def with_result(folder, **more):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return folder


def test_a_setting_of_pretraining_is_drawn_with_what_it_is_worth(tmp_path):
    for rate, loss, score in ((0.05, 3.6, 0.66), (0.15, 4.1, 0.69), (0.8, 5.8, 0.65)):
        source = pretraining(tmp_path / "pretrain" / f"mask_{rate}", final=loss, mask_prob=rate)
        config = yaml.safe_load((source / "config.yaml").read_text())
        config["objective"]["corruption"] = {"mask_prob": rate}  # refers to the key that was set
        (source / "config.yaml").write_text(yaml.safe_dump(config))
        scores = [score, score + 0.01]
        transfer(tmp_path / "finetune" / source.name, scores, controls=[0.6, 0.62], init=str(source))
    (chart,) = setting_charts(make_entries(collect(tmp_path)))
    losses, scores = chart.panels
    assert losses.x == scores.x == "objective.mask_prob"
    (loss,) = losses.series
    assert [(value, score.mean) for value, score in loss.points] == [(0.05, 4.1), (0.15, 4.6), (0.8, 6.3)]
    assert {line.label: line.is_control for line in scores.series} == {"finetuned": False, "finetuned, control": True}
    values = {line.label: [(value, score.mean) for value, score in line.points] for line in scores.series}
    assert dict(values["finetuned"]) == pytest.approx({0.05: 0.665, 0.15: 0.695, 0.8: 0.655})
    assert [mean for _, mean in values["finetuned, control"]] == pytest.approx([0.61] * 3)
    figure = draw(tmp_path, tmp_path / "figures")["setting-1"]
    for label in ("objective.mask_prob", "validation loss", "accuracy (%)", "finetuned", "finetuned, control", "0.15"):
        assert label in texts(figure)


def test_runs_with_several_seeds_at_a_value_of_a_setting_are_one_point(tmp_path):
    for rate, seed, loss, score in ((0.1, 0, 3.6, 0.6), (0.1, 1, 3.8, 0.7), (0.4, 0, 4.1, 0.8), (0.4, 1, 4.1, 0.8)):
        source = pretraining(tmp_path / "pretrain" / f"{rate}_{seed}", final=loss, mask_prob=rate, seed=seed)
        transfer(tmp_path / "finetune" / source.name, [score], init=str(source))
    (chart,) = setting_charts(make_entries(collect(tmp_path)))
    (loss,), (line,) = (panel.series for panel in chart.panels)
    assert [(value, score.n) for value, score in loss.points] == [(0.1, 2), (0.4, 2)]
    assert [score.mean for _, score in loss.points] == pytest.approx([4.2, 4.6])
    assert [score.mean for _, score in line.points] == pytest.approx([0.65, 0.8])


def test_runs_that_differ_in_more_than_one_number_are_no_setting(tmp_path):
    for rate, name in ((0.05, "a"), (0.15, "b")):
        source = pretraining(tmp_path / "pretrain" / name, mask_prob=rate, seed=1, corpus={"name": name})
        transfer(tmp_path / "finetune" / name, [0.6, 0.7], init=str(source))
    assert setting_charts(make_entries(collect(tmp_path))) == []


def test_layer_weights_are_bars_with_their_control_in_grey(tmp_path):
    run = transfer(tmp_path / "probe" / "elmo", [0.70, 0.72], controls=[0.55, 0.56], command="probe")
    result = json.loads((run / "result.json").read_text())
    learned = {"gamma": 1.21, "weights": [0.2, 0.5, 0.3], "deviation": {"gamma": 0.1, "weights": [0.02, 0.03, 0.01]}}
    control = {**result["control"], "layer_weights": {"gamma": 1.0, "weights": [0.4, 0.3, 0.3], "deviation": None}}
    with_result(run, layer_weights=learned, control=control)
    figure = draw(tmp_path, tmp_path / "figures")["layers-1"]
    found = texts(figure)
    labels = ("embeddings", "layer 1", "layer 2", "elmo  (gamma 1.21)", "elmo control  (gamma 1.00)", "equal weights")
    for label in labels:
        assert label in found
    assert "#8a8a8a" in figure.svg.read_text().lower()
    weights = read_layer_weights({"layer_weights": learned}, "elmo")
    assert (weights.gamma, weights.weights, weights.deviations) == (1.21, (0.2, 0.5, 0.3), (0.02, 0.03, 0.01))
    assert read_layer_weights({}, "none") is None


def test_a_loss_against_the_memory_of_evaluation(tmp_path):
    values, losses = [0, 32, 64, 256, 900], [4.6, 4.4, 4.2, 4.1, 4.0]
    result = {"command": "evaluate", "metrics": {"loss": 4.0}, "main_metric": "loss"}
    result["curve"] = {"key": "memory_length", "values": values, "losses": losses}
    write_run(tmp_path / "evaluate" / "xl-memory", config={"run": "/elsewhere/pretrain/xl"}, result=result)
    figure = draw(tmp_path, tmp_path / "figures")["loss-against-1"]
    found = texts(figure)
    assert figure.title == "Validation loss by memory length: xl"
    for label in ("memory in evaluation (tokens)", "0", "64", "900", "4.600", "4.000"):
        assert label in found
    assert "32" not in found  # its tick would lie on its neighbours'


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
    figure = draw(tmp_path, tmp_path / "figures")["parts-1"]
    for label in ("fra  4.500", "spa  5.500", "validation mlm (nats)", "of the text", "80.0", "70.0"):
        assert label in texts(figure)
    pretraining(tmp_path / "other" / "pretrain" / "single")
    assert part_panels(collect(tmp_path / "other")[0]) == ()


def test_losses_that_are_not_finite_leave_a_gap(tmp_path):
    lines = loss_lines(4.5)
    for line in lines[10:20]:
        line["loss"] = line["loss/mlm"] = None
    folder = write_run(tmp_path / "run", config={}, metrics=lines)
    (run,) = collect(folder)
    assert len(loss_curve(run, "x", "mlm").loss) == 190


def test_comparison_bars_have_every_way_to_the_task(tmp_path):
    pretraining(tmp_path / "runs" / "pretrain" / "imdb")
    transfer(tmp_path / "runs" / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "runs" / "probe" / "probe", [0.60, 0.61, 0.62], command="probe")
    figure = draw(tmp_path / "runs", tmp_path / "figures")["comparison-sst2-dev-1-000-labels-accuracy"]
    found = texts(figure)
    for label in (
        "majority",
        "ft control",
        "probe",
        "ft",
        "50.9",
        "66.0 \u00b1 1.0",
        "61.0 \u00b1 1.0",
        "71.0 \u00b1 1.0",
    ):
        assert label in found
    assert "+5.0  better" in found
    places = [found.index(label) for label in ("majority", "ft control", "probe", "ft")]
    assert places == sorted(places)


def test_development_metric_of_runs_and_controls(tmp_path):
    transfer(tmp_path / "runs" / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    figure = draw(tmp_path / "runs", tmp_path / "figures")["learning-sst2-dev-1-000-labels-accuracy"]
    found = texts(figure)
    assert {"ft", "ft control", "optimizer steps", "accuracy (%)"} <= set(found)


def test_accuracy_by_number_of_labels(tmp_path):
    for size in (100, 300, 1000):
        name = f"ft-{size}"
        transfer(tmp_path / "runs" / "finetune" / name, [0.6, 0.62], controls=[0.5, 0.52], num_train=size)
    found = texts(draw(tmp_path / "runs", tmp_path / "figures")["labels-sst2-dev-accuracy"])
    assert {"100", "300", "1k", "labelled training examples", "finetuned", "control"} <= set(found)


def test_a_sweep_has_a_figure_with_its_values(tmp_path):
    for rate, loss in ((0.05, 4.9), (0.15, 4.5), (0.8, 5.6)):
        pretraining(
            tmp_path / "runs" / "pretrain" / "masks" / f"objective.mask_prob={rate}", final=loss, mask_prob=rate
        )
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    found = texts(figures["sweep-1-pretrain-masks"])
    assert {"0.05", "0.15", "0.8", "objective.mask_prob", "5.400", "5.000", "6.100"} <= set(found)
    assert "mask_prob=0.15" in texts(figures["pretraining-loss-mlm"])


def test_more_runs_than_colours_are_said_to_be_left_out(tmp_path):
    for number in range(MAX_CURVES + 2):
        pretraining(tmp_path / "runs" / "pretrain" / f"run{number}")
    figure = draw(tmp_path / "runs", tmp_path / "figures")["pretraining-loss-mlm"]
    assert f"{MAX_CURVES} of {MAX_CURVES + 2} runs" in figure.title
    assert f"run{MAX_CURVES}" not in texts(figure)


def test_more_runs_of_a_task_than_colours_are_said_to_be_left_out(tmp_path):
    plain = {"ece": 0.124, "loss": 0.6, "counts": [5, 7], "confidences": [0.5, 0.9], "accuracies": [0.4, 0.7]}
    for number in range(MAX_CURVES + 2):
        run = transfer(tmp_path / "runs" / "finetune" / f"run{number}", [0.7, 0.8])
        with_result(run, calibration={"plain": plain, "scaled": None, "temperature": None})
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    told = [figure for name, figure in figures.items() if name.startswith(("learning-", "reliability-"))]
    assert len(told) == 2
    for figure in told:
        assert f"{MAX_CURVES} of {MAX_CURVES + 2} runs" in figure.title
        assert not any(text.startswith(f"run{MAX_CURVES}") for text in texts(figure))


def test_a_probe_and_a_finetuned_run_of_one_name_are_told_apart(tmp_path):
    for command in ("probe", "finetune"):
        transfer(tmp_path / "runs" / command / "imdb", [0.7, 0.72], controls=[0.6, 0.61], command=command)
        transfer(tmp_path / "runs" / command / f"only_{command}", [0.7, 0.72], command=command)
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    for figure in (figure for name, figure in figures.items() if name.startswith(("comparison-", "learning-"))):
        found = texts(figure)
        assert {"imdb frozen", "imdb finetuned", "only_probe", "only_finetune"} <= set(found)
        assert "imdb" not in found


def test_names_are_text_and_no_mathematics(tmp_path):
    pretraining(tmp_path / "runs" / "pretrain" / "$x_1$ & <b>")
    figure = draw(tmp_path / "runs", tmp_path / "figures")["pretraining-loss-mlm"]
    assert "$x_1$ & <b>" in texts(figure)
    assert "<b>" not in re.sub(r"<!--.*?-->", "", figure.svg.read_text(), flags=re.DOTALL)


def test_the_same_runs_give_the_same_bytes(tmp_path):
    pretraining(tmp_path / "runs" / "pretrain" / "imdb")
    first = draw(tmp_path / "runs", tmp_path / "a")["pretraining-loss-mlm"]
    second = draw(tmp_path / "runs", tmp_path / "b")["pretraining-loss-mlm"]
    assert first.svg.read_bytes() == second.svg.read_bytes()
    assert first.png.read_bytes() == second.png.read_bytes()


def test_smoothing_is_a_centred_mean_that_ends_one_sided():
    values = np.array([9.0, 1.0, 2.0, np.nan, 6.0, 4.0])
    assert moving_average(values, 2).tolist() == [9.0, 4.0, 1.5, 4.0, 5.0, 5.0]
    assert moving_average(np.array([1.0, 5.0]), 1).tolist() == [1.0, 5.0]


def test_labels_move_apart_as_little_as_needed():
    assert spread_apart([1.0, 3.0, 2.0], 0.5) == [1.0, 3.0, 2.0]
    assert spread_apart([1.0, 1.0], 1.0) == [0.5, 1.5]
    moved = spread_apart([0.0, 0.1, 0.2, 5.0], 1.0)
    assert moved == pytest.approx([-0.9, 0.1, 1.1, 5.0])  # around the mean of the three that overlap


def test_end_labels_do_not_overlap():
    figure = new_figure("title", width=4, height=2)
    axes = figure.subplots()
    axes.set_ylim(0, 1)
    figure.canvas.draw()
    label_ends(axes, [(0.5, "a", "black"), (0.51, "b", "black"), (0.5, "c", "black")])
    heights = sorted(text.get_window_extent().y0 for text in axes.texts)
    tallest = max(text.get_window_extent().height for text in axes.texts)
    assert min(np.diff(heights)) >= 0.9 * tallest


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
    figure = draw(tmp_path / "runs", tmp_path / "figures")["replaced-tokens"]
    found = texts(figure)
    for label in ("precision (%)", "recall (%)", "small", "silent", "tokens"):
        assert label in found
    assert "old" not in found
    assert any("base rate" in text for text in found)


def test_reliability_of_the_runs_of_a_task(tmp_path):
    bins = {"counts": [0, 5, 7], "confidences": [0.0, 0.5, 0.9], "accuracies": [0.0, 0.4, 0.7]}
    for name, scaled in (("sharp", {"ece": 0.02, "loss": 0.5, **bins}), ("few", None)):
        part = {"plain": {"ece": 0.124, "loss": 0.6, **bins}, "scaled": scaled, "temperature": 1.5 if scaled else None}
        folder = transfer(tmp_path / "runs" / "finetune" / name, [0.7])
        found = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({"format": 1, **found, "calibration": part}))
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    (name,) = (name for name in figures if name.startswith("reliability-"))
    found = texts(figures[name])
    assert {"sharp, ECE 12.4", "few, ECE 12.4", "sharp, ECE 2.0", "confidence (%)", "accuracy (%)"} <= set(found)
    assert "few, ECE 2.0" not in found


def test_scores_by_language(tmp_path):
    folder = transfer(tmp_path / "runs" / "finetune" / "mine", [0.7])
    found = json.loads((folder / "result.json").read_text())
    found["metrics"] |= {"language/de/accuracy": 0.612, "language/sw/accuracy": 0.5}
    (folder / "result.json").write_text(json.dumps({"format": 1, **found}))
    figures = draw(tmp_path / "runs", tmp_path / "figures")
    (name,) = (name for name in figures if name.startswith("languages-"))
    assert {"de", "sw", "mine", "accuracy (%)"} <= set(texts(figures[name]))
    assert languages_text(found) == "accuracy by language: de 61.2, sw 50.0"
    assert languages_text({"metrics": {"accuracy": 0.5}, "main_metric": "accuracy"}) == ""

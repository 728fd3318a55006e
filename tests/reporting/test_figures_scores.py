"""Charts of final scores."""

from __future__ import annotations

import itertools
import json

import pytest
import yaml
from fakes.runs import pretraining, transfer, write_run

from lmtransfer.reporting.figures.scores import draw_figures, make_charts, setting_charts
from lmtransfer.reporting.figures.style import MAX_CURVES
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.details import languages_text, rate_scores, read_layer_weights, search_text
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.verdicts.spread import expected_best


def charts(root):
    entries = make_entries(collect(root))
    return {chart.name: chart for chart in make_charts(entries, find_sweeps(entries))}


def values(series):
    return {line.label: {place: score.values for place, score in line.points} for line in series}


def means(series):
    return {line.label: {place: pytest.approx(score.mean) for place, score in line.points} for line in series}


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


def test_layer_weights_are_columns_with_their_control_and_every_seed(tmp_path):
    run = transfer(tmp_path / "probe" / "elmo", [0.70, 0.72], controls=[0.55, 0.56], command="probe")
    result = json.loads((run / "result.json").read_text())
    learned = {"gamma": 1.21, "weights": [0.2, 0.5, 0.3], "deviation": {"gamma": 0.1, "weights": [0.02, 0.03, 0.01]}}
    control = {**result["control"], "layer_weights": {"gamma": 1.0, "weights": [0.4, 0.3, 0.3], "deviation": None}}
    with_result(run, layer_weights=learned, control=control)
    for seed, shift in enumerate((-0.02, 0.02)):
        own = {"gamma": 1.2, "weights": [0.2, 0.5 + shift, 0.3 - shift]}
        with_result(run / f"seed-{seed}", layer_weights=own)
    (panel,) = charts(tmp_path)["layers-1"].panels
    own, control, equal = panel.series
    assert [line.label for line in panel.series] == [
        "elmo  (gamma 1.21)",
        "elmo control  (gamma 1.00)",
        "equal weights",
    ]
    assert (own.is_control, control.is_control, equal.is_reference) == (False, True, True)
    assert [place for place, _ in own.points] == ["embeddings", "layer 1", "layer 2"]
    for (_, score), seeds in zip(own.points, ((0.2, 0.2), (0.48, 0.52), (0.32, 0.28)), strict=True):
        assert score.values == pytest.approx(seeds)
    weights = read_layer_weights({"layer_weights": learned}, "elmo")
    assert (weights.gamma, weights.weights, weights.deviations) == (1.21, (0.2, 0.5, 0.3), (0.02, 0.03, 0.01))
    assert read_layer_weights({}, "none") is None


def test_a_loss_against_the_memory_of_evaluation_by_the_seeds_of_a_run(tmp_path):
    for seed, losses in enumerate(([4.6, 4.2], [4.8, 4.3])):
        result = {"command": "evaluate", "metrics": {"loss": losses[-1]}, "main_metric": "loss"}
        result["curve"] = {"key": "memory_length", "values": [0, 64], "losses": losses}
        config = {"run": f"/elsewhere/pretrain/xl/seed-{seed}"}
        write_run(tmp_path / "evaluate" / f"of-{seed}", config=config, result=result)
    chart = charts(tmp_path)["loss-against-1"]
    assert chart.title == "Validation loss by memory length: xl"
    (line,) = chart.panels[0].series
    assert {place: score.values for place, score in line.points} == {0: (4.6, 4.8), 64: (4.2, 4.3)}


def test_comparison_bars_have_every_way_to_the_task(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    transfer(tmp_path / "probe" / "probe", [0.60, 0.61, 0.62], command="probe")
    bars, differences = charts(tmp_path)["comparison-sst2-dev-1-000-labels-accuracy"].panels
    assert bars.places == ["majority", "ft control", "probe", "ft"]
    assert [line.points[0][1].values for line in bars.series] == [
        (0.509,),
        (0.66, 0.67, 0.65),
        (0.60, 0.61, 0.62),
        (0.70, 0.72, 0.71),
    ]
    found = {place: one.verdict for line in differences.series for place, one in line.differences.items()}
    assert found == {"ft": "better"}
    drawn = draw_figures(make_entries(collect(tmp_path / "probe")), [], tmp_path / "figures")
    assert {figure.name for figure in drawn} == set(charts(tmp_path / "probe"))
    assert all(figure.svg.is_file() and figure.png.is_file() for figure in drawn)


def test_accuracy_by_number_of_labels(tmp_path):
    for size in (100, 300, 1000):
        transfer(tmp_path / "finetune" / f"ft-{size}", [0.6, 0.62], controls=[0.5, 0.52], num_train=size)
    (panel,) = charts(tmp_path)["labels-sst2-dev-accuracy"].panels
    assert panel.x == "num_train"
    sizes = (100.0, 300.0, 1000.0)
    assert values(panel.series) == {
        "finetuned": dict.fromkeys(sizes, (0.6, 0.62)),
        "finetuned control": dict.fromkeys(sizes, (0.5, 0.52)),
    }


def test_a_sweep_has_a_chart_with_its_values(tmp_path):
    for rate in (0.05, 0.15, 0.8):
        folder = tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate}"
        seeds = [{"seed": seed, "metrics": {"loss": 5 + rate + seed}} for seed in range(2)]
        with_result(pretraining(folder, mask_prob=rate), seeds=seeds)
    found = charts(tmp_path)
    (panel,) = found["sweep-1-pretrain-masks"].panels
    assert (panel.x, panel.y) == ("objective.mask_prob", "validation loss")
    assert values(panel.series) == {"": {rate: (5 + rate, 6 + rate) for rate in (0.05, 0.15, 0.8)}}
    labels = [curve.label for curve in found["pretraining-loss-mlm"].panels[0].losses]
    assert sorted(labels) == ["mask_prob=0.05", "mask_prob=0.15", "mask_prob=0.8"], labels


def test_more_runs_of_a_task_than_colours_are_said_to_be_left_out(tmp_path):
    plain = {"ece": 0.124, "loss": 0.6, "counts": [5, 7], "confidences": [0.5, 0.9], "accuracies": [0.4, 0.7]}
    for number in range(MAX_CURVES + 2):
        run = transfer(tmp_path / "finetune" / f"run{number}", [0.7, 0.8])
        with_result(run, calibration={"plain": plain, "scaled": None, "temperature": None})
    told = [chart for name, chart in charts(tmp_path).items() if name.startswith(("learning-", "reliability-"))]
    assert len(told) == 2
    for chart in told:
        assert f"{MAX_CURVES} of {MAX_CURVES + 2} runs" in chart.title
        assert len(chart.panels[0].series) == MAX_CURVES


def test_a_probe_and_a_finetuned_run_of_one_name_are_told_apart(tmp_path):
    for command in ("probe", "finetune"):
        transfer(tmp_path / command / "imdb", [0.7, 0.72], controls=[0.6, 0.61], command=command)
        transfer(tmp_path / command / f"only_{command}", [0.7, 0.72], command=command)
    found = charts(tmp_path)
    (bars,) = (chart.panels[0].places for name, chart in found.items() if name.startswith("comparison-"))
    (curves,) = (chart.panels[0].series for name, chart in found.items() if name.startswith("learning-"))
    for labels in (set(bars), {line.label for line in curves}):
        assert {"imdb frozen", "imdb finetuned", "only_probe", "only_finetune"} <= labels
        assert "imdb" not in labels


def test_reliability_of_the_runs_of_a_task(tmp_path):
    bins = {"counts": [0, 5, 7], "confidences": [0.0, 0.5, 0.9], "accuracies": [0.0, 0.4, 0.7]}
    for name, scaled in (("sharp", {"ece": 0.02, "loss": 0.5, **bins}), ("few", None)):
        part = {"plain": {"ece": 0.124, "loss": 0.6, **bins}, "scaled": scaled, "temperature": 1.5 if scaled else None}
        with_result(transfer(tmp_path / "finetune" / name, [0.7]), calibration=part)
    (chart,) = (chart for name, chart in charts(tmp_path).items() if name.startswith("reliability-"))
    points = {0.5: 0.4, 0.9: 0.7}
    assert means(chart.panels[0].series) == {"few, ECE 12.4": points, "sharp, ECE 12.4": points}
    assert means(chart.panels[1].series) == {"few": {}, "sharp, ECE 2.0": points}


def test_scores_by_language(tmp_path):
    folder = transfer(tmp_path / "finetune" / "mine", [0.7])
    found = json.loads((folder / "result.json").read_text())
    found["metrics"] |= {"language/de/accuracy": 0.612, "language/sw/accuracy": 0.5}
    with_result(folder, **found)
    (chart,) = (chart for name, chart in charts(tmp_path).items() if name.startswith("languages-"))
    assert means(chart.panels[0].series) == {"mine": {"de": 0.612, "sw": 0.5}}
    assert languages_text(found) == "accuracy by language: de 61.2, sw 50.0"
    assert languages_text({"metrics": {"accuracy": 0.5}, "main_metric": "accuracy"}) == ""


@pytest.mark.parametrize("values", [[0.3], [0.5, 0.5], [0.61, 0.4, 0.7, 0.52]])
@pytest.mark.parametrize("higher", [True, False])
def test_the_expected_best_is_that_of_all_draws(values, higher):
    choose = max if higher else min
    for k, found in enumerate(expected_best(values, higher_is_better=higher), start=1):
        draws = [choose(drawn) for drawn in itertools.product(values, repeat=k)]
        assert found == pytest.approx(sum(draws) / len(draws))


def test_a_search_is_charted_with_its_control(tmp_path):
    scores = {0.001: (0.5, 0.9), 0.01: (0.8, 0.7), 0.1: (0.2, 0.3)}
    tries = [
        {"arm": arm, "seed": seed, "learning_rate": rate, "score": score - worse}
        for arm, worse in (("pretrained", 0.0), ("control", 0.1))
        for rate, of_rate in scores.items()
        for seed, score in enumerate(of_rate)
    ]
    run = transfer(tmp_path / "finetune" / "ft", [0.7, 0.72], controls=[0.6, 0.63])
    with_result(run, learning_rate_tries=[*tries, {"arm": "pretrained", "learning_rate": 0.1}])
    (entry,) = make_entries(collect(tmp_path))
    tried = rate_scores(entry.run, "pretrained")
    assert {rate: score.values for rate, score in tried.items()} == scores
    chart = charts(tmp_path)["search-1"]
    assert "expected best held-out accuracy of ft" in chart.title
    own, control = chart.panels[0].series
    assert (own.is_control, control.is_control) == (False, True)
    # Draws with replacement of the 3 rates, the best by the mean over seeds, by brute force.
    for k, score in own.points:
        chosen = [max(drawn, key=lambda rate: sum(scores[rate])) for drawn in itertools.product(scores, repeat=int(k))]
        expected = [sum(scores[rate][seed] for rate in chosen) / len(chosen) for seed in range(2)]
        assert score.values == pytest.approx(expected)
    assert [score.mean for _, score in control.points] == pytest.approx([score.mean - 0.1 for _, score in own.points])


def test_a_choice_is_said():
    assert "best of 2" in search_text([1e-3, 1e-2, 1e-2])
    assert search_text([1e-3, 1e-2, 1e-1], 1e-2) == search_text([1e-3, 1e-2, 1e-1])
    for rate, edge in ((1e-3, "smallest (0.001)"), (1e-2, "largest (0.01)")):
        assert edge in search_text([1e-3, 3e-3, 1e-2], rate)
        assert edge not in search_text([1e-3, 1e-2], rate)  # of two rates each is at an edge
    assert [search_text(grid) for grid in ([1e-3], None)] == [""] * 2

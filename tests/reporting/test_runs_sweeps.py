from __future__ import annotations

import pytest
from fakes.runs import pretraining, transfer

from lmtransfer.reporting.result_tables import sweep_table
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import entries_outside, find_sweeps
from lmtransfer.reporting.table import markdown_table


def sweeps_of(root):
    return find_sweeps(make_entries(collect(root)))


def test_a_sweep_is_read_from_the_names_of_its_folders(tmp_path):
    for rate, loss in ((0.8, 5.6), (0.05, 4.9), (0.15, 4.5)):
        pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate}", final=loss, mask_prob=rate)
    pretraining(tmp_path / "pretrain" / "other")
    entries = make_entries(collect(tmp_path))
    (sweep,) = find_sweeps(entries)
    assert sweep.name == "pretrain/masks"
    assert sweep.keys == ("objective.mask_prob",)
    assert [point.values for point in sweep.points] == [(0.05,), (0.15,), (0.8,)]
    assert sweep.best.values == (0.15,)  # a loss is best when small
    assert [entry.run.name for entry in entries_outside(entries, [sweep])] == ["other"]


def test_a_choice_of_a_group_is_one_key_though_it_changes_many(tmp_path):
    for name, layers in (("bert_tiny", 2), ("bert_mini", 4)):
        for rate in ("0.01", "0.02"):
            folder = tmp_path / "pretrain" / "sizes" / f"model={name},optimizer.learning_rate={rate}"
            pretraining(
                folder, model={"num_layers": layers, "dim": 64 * layers}, optimizer={"learning_rate": float(rate)}
            )
    (sweep,) = sweeps_of(tmp_path)
    assert sweep.keys == ("model", "optimizer.learning_rate")
    assert [point.values for point in sweep.points] == [
        ("bert_mini", 0.01),
        ("bert_mini", 0.02),
        ("bert_tiny", 0.01),
        ("bert_tiny", 0.02),
    ]


def test_without_telling_names_the_configurations_are_compared(tmp_path):
    pretraining(tmp_path / "pretrain" / "masks" / "low", mask_prob=0.15, output_root="a")
    pretraining(tmp_path / "pretrain" / "masks" / "high", mask_prob=0.4, output_root="b")
    (sweep,) = sweeps_of(tmp_path)
    assert sweep.keys == ("objective.mask_prob",)


def test_points_that_differ_in_their_seed_only_become_one(tmp_path):
    losses = {(0.15, 0): 4.4, (0.15, 1): 4.6, (0.4, 0): 4.0, (0.4, 1): 4.2}
    for (rate, seed), loss in losses.items():
        folder = tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate},seed={seed}"
        pretraining(folder, final=loss, mask_prob=rate, seed=seed)
    (sweep,) = sweeps_of(tmp_path)
    assert sweep.keys == ("objective.mask_prob",)
    assert [(point.values, point.score.n) for point in sweep.points] == [((0.15,), 2), ((0.4,), 2)]
    assert sweep.points[0].score.mean == pytest.approx(5.0)  # the fakes add half a nat for the second loss
    assert sweep.points[0].score.deviation == pytest.approx(0.2 / 2**0.5)


def test_a_sweep_over_pretrained_runs_is_told_apart_by_what_was_swept_there(tmp_path):
    for rate, score in ((0.15, 0.7), (0.4, 0.72)):
        source = pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate}", mask_prob=rate)
        folder = tmp_path / "finetune" / "ft" / f"init=runs-pretrain-masks-objective.mask_prob={rate}"
        transfer(folder, [score, score + 0.01], init=str(source), controls=[0.6, 0.61])
    found = {sweep.name: sweep for sweep in sweeps_of(tmp_path)}
    sweep = found["finetune/ft"]
    assert sweep.keys == ("objective.mask_prob",)
    assert [point.values for point in sweep.points] == [(0.15,), (0.4,)]
    assert sweep.best.values == (0.4,)  # an accuracy is best when large


def test_a_table_over_the_swept_keys_marks_the_best_point(tmp_path):
    for size, score in ((300, 0.62), (1000, 0.7)):
        folder = tmp_path / "finetune" / "sizes" / f"task.num_train={size}"
        transfer(folder, [score, score + 0.02], controls=[0.6, 0.6201], num_train=size)
    (tmp_path / "finetune" / "sizes" / "task.num_train=300" / "result.json").unlink()
    for seed in (0, 1):
        (tmp_path / "finetune" / "sizes" / "task.num_train=300" / f"seed-{seed}" / "result.json").unlink()
    (sweep,) = sweeps_of(tmp_path)
    table = sweep_table(sweep)
    assert table.headings[:2] == ["task.num_train", "accuracy (%)"]
    cells = table.rows
    assert cells[0][:2] == ["300", "unfinished"]
    assert cells[1][:4] == ["1000", "71.0 \u00b1 1.4 *", "2", "+10.0 (+9.9 to +10.1)"]
    assert all(name in cells[1][4] for name in ("better", "this checkpoint"))
    assert "| 1000 | 71.0 \u00b1 1.4 \\* | 2 |" in markdown_table(table)


def test_runs_side_by_side_are_no_sweep(tmp_path):
    pretraining(tmp_path / "pretrain" / "one")
    pretraining(tmp_path / "pretrain" / "two", mask_prob=0.4)
    pretraining(tmp_path / "demo" / "pretrain" / "one")
    pretraining(tmp_path / "demo" / "pretrain" / "two", mask_prob=0.4)
    transfer(tmp_path / "finetune" / "ft", [0.7, 0.8], controls=[0.5, 0.6])
    assert sweeps_of(tmp_path) == []


def test_runs_of_several_tasks_are_a_sweep_for_each_task_or_lie_in_the_table(tmp_path):
    folder = tmp_path / "finetune" / "glue"
    for task in ("cola", "rte"):
        for rate, score in ((0.1, 0.6), (0.2, 0.7)):
            settings = {"task.name": task, "optimizer.learning_rate": rate}
            transfer(folder / f"task={task},optimizer.learning_rate={rate}", [score], settings=settings)
    transfer(folder / "task=sst2,optimizer.learning_rate=0.1", [0.9], settings={"optimizer.learning_rate": 0.1})
    entries = make_entries(collect(tmp_path))
    found = {sweep.name: sweep for sweep in find_sweeps(entries)}
    assert sorted(found) == ["finetune/glue, cola", "finetune/glue, rte"]
    for sweep in found.values():
        assert sweep.keys == ("optimizer.learning_rate",)
        assert [point.score.mean for point in sweep.points] == [0.6, 0.7]
    assert [entry.task for entry in entries_outside(entries, list(found.values()))] == ["sst2"]


def test_a_point_of_several_runs_shows_no_difference_of_one_of_them(tmp_path):
    for size, seeds in ((100, 2), (1000, 1)):
        for seed in range(seeds):
            run = tmp_path / "finetune" / "sizes" / f"task.num_train={size},seed={seed}"
            transfer(run, [0.7, 0.71, 0.72], controls=[0.5, 0.51, 0.5], num_train=size, settings={"seed": seed})
    (sweep,) = sweeps_of(tmp_path)
    table = sweep_table(sweep)
    place = table.headings.index("difference from control")
    assert [bool(row[place]) for row in table.rows] == [False, True]

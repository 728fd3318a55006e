from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
from fakes.runs import loss_lines, pretraining, transfer, write_run

from lmtransfer.reporting.answer import answer, comparison
from lmtransfer.reporting.result_tables import results_table, table_rows
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.table import markdown_table
from lmtransfer.runs.labels import objective_label
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.transfer.experiment.messages import below_majority


def entries_of(root):
    return {entry.name: entry for entry in make_entries(collect(root))}


def tells(text, *names):
    """Whether a sentence names all of these, in this order."""
    return re.search(".*".join(map(re.escape, names)), text) is not None


def test_a_run_in_phases_is_named_by_all_its_losses():
    own = {"losses": {"mlm": {}, "sop": {}}}
    words = {"share": 0.3, "objective": {"losses": {"skipgram": {}}}}
    assert objective_label(own) == objective_label(own, None) == "mlm+sop"
    assert objective_label(own, {"words": words, "rest": {"share": 0.7}}) == "skipgram, mlm+sop"
    assert objective_label(own, {"a": {"objective": own}, "b": {"objective": own}, "c": {}}) == "mlm+sop"


def test_seeds_and_controls_are_folded_into_one_entry(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65])
    found = entries_of(tmp_path)
    assert sorted(found) == ["ft", "imdb"]
    entry = found["ft"]
    assert (len(entry.seeds), len(entry.controls)) == (3, 3)
    assert entry.score.values == (0.70, 0.72, 0.71)
    assert entry.score.deviation == pytest.approx(0.01)
    assert entry.control.mean == pytest.approx(0.66)
    assert entry.difference.delta == pytest.approx(0.05)
    assert entry.difference.verdict == "better"
    assert entry.majority == 0.509
    assert (entry.model, entry.objective, entry.corpus) == ("bert 4x256 pre-norm", "mlm+nsp", "imdb_unsup")
    assert (entry.task, entry.split, entry.transfer, entry.num_train) == ("sst2", "dev", "finetuned", 1000)
    assert (entry.pretraining_tokens, entry.pretraining_seconds) == (409600, 30.0)


def named_task(folder, fingerprint, *, name="mine", metric="accuracy", labels=2, majority=0.5, dev="dev.tsv"):
    """A run of a task with this name."""
    transfer(folder, [0.7, 0.8], controls=[0.6, 0.7], majority=majority, settings={"task.name": name, "task.dev": dev})
    written = json.loads((folder / "result.json").read_text())
    values = written | {"task_fingerprint": fingerprint, "labels": [str(label) for label in range(labels)]}
    text = json.dumps(values).replace('"accuracy"', f'"{metric}"')
    (folder / "result.json").write_text(text)


@pytest.mark.parametrize(("other", "heading"), [
    ({"dev": "my/b.tsv"}, "mine (b.tsv), dev"),
    ({"labels": 4}, "mine (4 classes), dev"),
    ({"metric": "macro_f1"}, "mine (macro_f1), dev"),
    ({}, "mine (other), dev"),
])  # fmt: skip
def test_tasks_are_told_apart_by_what_they_are_and_not_by_their_name(tmp_path, other, heading):
    named_task(tmp_path / "finetune" / "a", "first")
    named_task(tmp_path / "finetune" / "b", "other", majority=0.25, **other)
    named_task(tmp_path / "finetune" / "c", "first", name="same task")
    found = entries_of(tmp_path)
    assert found["a"].task == found["c"].task
    assert found["b"].group.removesuffix(", 1,000 labels") == heading
    rows = table_rows(list(found.values()))
    groups = {entry: {row.run for row in rows if row.entry.group == found[entry].group} for entry in ("a", "b")}
    assert groups == {"a": {"majority", "a", "a control", "c", "c control"}, "b": {"majority", "b", "b control"}}
    baselines = {row.entry.group: row.entry.score.mean for row in rows if row.run == "majority"}
    assert baselines == {found["a"].group: 0.5, found["b"].group: 0.25}


def test_one_seed_with_a_control_has_a_difference_but_no_verdict(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70], controls=[0.66])
    entry = entries_of(tmp_path)["ft"]
    assert entry.score.n == 1
    assert entry.difference.delta == pytest.approx(0.04)
    assert entry.difference.verdict == "one seed, no spread"


def test_a_control_that_is_a_run_of_its_own_is_found(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72])
    transfer(tmp_path / "finetune" / "scratch", [0.66, 0.68], init=None)
    transfer(tmp_path / "finetune" / "scratch-300", [0.50, 0.52], init=None, num_train=300)
    found = entries_of(tmp_path)
    assert found["scratch"].is_control
    assert found["scratch"].difference is None
    assert found["ft"].control.mean == pytest.approx(0.67)
    rows = table_rows(list(found.values()))
    assert [row.run for row in rows if row.entry.transfer == "control"] == ["scratch-300", "scratch"]


def test_two_candidates_for_a_control_are_not_chosen_from(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72])
    transfer(tmp_path / "finetune" / "scratch-a", [0.66, 0.68], init=None)
    transfer(tmp_path / "finetune" / "scratch-b", [0.60, 0.61], init=None)
    assert entries_of(tmp_path)["ft"].control is None


def test_a_probe_is_not_held_against_a_finetuned_control(tmp_path):
    transfer(tmp_path / "probe" / "p", [0.70, 0.72], command="probe")
    transfer(tmp_path / "finetune" / "scratch", [0.66, 0.68], init=None)
    entry = entries_of(tmp_path)["p"]
    assert entry.transfer == "frozen"
    assert entry.control is None


def test_pretraining_is_found_after_the_runs_were_moved(tmp_path):
    pretraining(tmp_path / "a" / "pretrain" / "imdb")
    transfer(tmp_path / "a" / "finetune" / "ft", [0.7], init=str(tmp_path / "a" / "pretrain" / "imdb"))
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert entries_of(tmp_path / "b")["ft"].corpus == "imdb_unsup"


def test_pretraining_outside_of_the_report_is_read_from_disk(tmp_path):
    source = pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "finetune" / "ft", [0.7], init=str(source))
    assert entries_of(tmp_path / "finetune")["ft"].pretraining_tokens is None  # whoever made it names another's folder
    mark_as_own(tmp_path / "finetune" / "ft")
    assert entries_of(tmp_path / "finetune")["ft"].pretraining_tokens == 409600


def test_budgets_of_pretraining_in_stages_add_up_even_in_a_circle(tmp_path):
    pretraining(tmp_path / "pretrain" / "one")
    pretraining(tmp_path / "pretrain" / "two", init="runs/pretrain/one")
    pretraining(tmp_path / "pretrain" / "loop", init="runs/pretrain/pool")
    pretraining(tmp_path / "pretrain" / "pool", init="runs/pretrain/loop")
    found = entries_of(tmp_path)
    assert found["two"].pretraining_tokens == 2 * 409600
    assert found["two"].pretraining_seconds == 60.0
    assert found["loop"].pretraining_tokens == 2 * 409600


def test_an_evaluation_takes_over_what_its_run_was(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "probe" / "p", [0.70, 0.72], command="probe")
    config = {"run": "runs/probe/p", "task": {"name": "sst2"}}
    result = {
        "command": "evaluate",
        "task": "sst2",
        "split": "test",
        "main_metric": "accuracy",
        "metrics": {"accuracy": 0.69},
    }
    write_run(tmp_path / "evaluate" / "probe-p-test", config=config, result=result)
    entry = entries_of(tmp_path)["probe-p-test"]
    assert (entry.transfer, entry.corpus, entry.num_train) == ("frozen", "imdb_unsup", 1000)
    assert entry.group == "sst2, test, 1,000 labels"

    shutil.rmtree(tmp_path / "probe")
    assert entries_of(tmp_path)["probe-p-test"].transfer == ""  # not known, and not called a control


def test_unfinished_torn_and_collapsed_runs_say_so(tmp_path):
    write_run(tmp_path / "pretrain" / "going", config={"init": None}, metrics=loss_lines(4.0)[:30])
    torn = transfer(tmp_path / "finetune" / "torn", [0.7])
    (torn / "result.json").write_text("{")
    waiting = transfer(tmp_path / "finetune" / "waiting", [0.7, 0.8, 0.9])
    (waiting / "result.json").unlink()
    (waiting / "config.yaml").unlink()
    (waiting / "versions.json").unlink()
    (waiting / "seed-2" / "result.json").unlink()
    transfer(tmp_path / "finetune" / "flat", [0.5, 0.6], collapsed=1)
    rows = {row.run: row for row in table_rows(list(entries_of(tmp_path).values()))}
    assert rows["going"].entry.run.state == "unfinished"
    assert tells(rows["going"].note, "step 30", "loss ")
    assert rows["torn"].entry.run.state == "torn"
    assert rows["torn"].entry.score is None
    assert "result.json" in rows["torn"].note
    assert rows["waiting"].entry.run.state == "unfinished"
    assert "2 of 3 seeds" in rows["waiting"].note
    assert rows["waiting"].entry.score.mean == pytest.approx(0.75)
    assert "1 of 2 seeds" in rows["flat"].note


def test_rows_go_from_majority_to_finetuned_and_from_few_labels_to_many(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    transfer(tmp_path / "finetune" / "all", [0.8, 0.81], num_train=None)
    transfer(tmp_path / "finetune" / "a-1000", [0.7, 0.71], controls=[0.66, 0.67])
    transfer(tmp_path / "finetune" / "b-300", [0.6, 0.61], num_train=300)
    transfer(tmp_path / "probe" / "z", [0.65, 0.66], command="probe")
    rows = table_rows(list(entries_of(tmp_path).values()))
    assert [(row.entry.group, row.entry.transfer) for row in rows] == [
        ("sst2, dev, 300 labels", "majority"),
        ("sst2, dev, 300 labels", "finetuned"),
        ("sst2, dev, 1,000 labels", "majority"),
        ("sst2, dev, 1,000 labels", "control"),
        ("sst2, dev, 1,000 labels", "frozen"),
        ("sst2, dev, 1,000 labels", "finetuned"),
        ("sst2, dev", "majority"),
        ("sst2, dev", "finetuned"),
        ("pretraining", ""),
    ]


def test_the_answer_says_whether_how_much_and_how_certain(tmp_path):
    assert "probe" in answer([])
    transfer(tmp_path / "a" / "finetune" / "ft", [0.70, 0.72])
    assert "control=true" in answer(make_entries(collect(tmp_path / "a")))

    transfer(tmp_path / "b" / "finetune" / "ft", [0.70, 0.72, 0.74], controls=[0.60, 0.62, 0.628])
    # three pairs 10, 10 and 11.2 points apart: a standard error of 0.4, 4.303 of which are 1.72
    assert tells(
        answer(make_entries(collect(tmp_path / "b"))),
        *("helped", "sst2, dev, 1,000 labels", "ft (finetuned)", "72.0 % accuracy", "61.6 %", "+10.4 points"),
        *("95 % interval +8.7 to +12.1", "3 pairs", "these examples", "this checkpoint", "2.3 points", "80 of 100"),
    )
    transfer(tmp_path / "b" / "finetune" / "same", [0.70, 0.72], controls=[0.72, 0.70])
    transfer(tmp_path / "b" / "finetune" / "hurt", [0.50, 0.52, 0.53], controls=[0.70, 0.72, 0.7301])
    transfer(tmp_path / "b" / "finetune" / "single", [0.50], controls=[0.40])
    assert tells(
        answer(make_entries(collect(tmp_path / "b"))),
        *("helped", "1 of 4", "hurt", "in 1", "no difference", "in 1", "seed", "in 1"),
        *("sst2, dev, 1,000 labels", "hurt (finetuned)"),
    )


def test_a_run_that_answers_one_label_is_flagged_and_not_called_better(tmp_path):
    transfer(tmp_path / "finetune" / "flat", [0.509] * 3, controls=[0.491] * 3, collapsed=3)
    transfer(tmp_path / "finetune" / "fine", [0.69, 0.70, 0.71], controls=[0.64, 0.65, 0.661])
    entries = make_entries(collect(tmp_path))
    verdicts = {entry.run.name: entry.difference.verdict for entry in entries}
    assert verdicts == {"flat": "collapsed", "fine": "better"}
    text = answer(entries)
    assert tells(text, "helped", "1 of 2", "same label", "in 1", "fine (finetuned)", "70.0 %")
    notes = {row.run: row.note for row in table_rows(entries)}
    assert "3 of 3 seeds" in notes["flat"]
    flat = next(entry for entry in entries if entry.run.name == "flat")
    assert tells(comparison(flat), "label", "sst2")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.dim", 16, ("model.dim (16", "256)")),
        ("model.num_layers", 1, ("model.num_layers (1", "4)")),
        (
            "model._target_",
            "lmtransfer.models.gpt.GptEncoder",
            ("model._target_ (lmtransfer.models.gpt.GptEncoder",),
        ),
        ("train.epochs", 1, ("train.epochs (1", "20)")),
        ("task.max_length", 32, ("task.max_length (32", "none)")),
        ("transfer.pooling", "mean", ("transfer.pooling (mean", "none)")),
        ("optimizer.learning_rate", 0.1, ("learning_rates ([0.1]", "[0.001])")),
        ("learning_rates", [0.1, 0.2], ("learning_rates ([0.1, 0.2]", "[0.001])")),
        ("checkpoint", "last", ("checkpoint (last", "best)")),
        ("schedule.warmup_steps", 7, ("schedule.warmup_steps (7", "none)")),
    ],
)
def test_a_control_that_differs_in_more_than_the_weights_is_none(tmp_path, key, value, said):
    shared = {"train.epochs": 20, "optimizer.learning_rate": 0.001, "checkpoint": "best", "train.save_every": 5}
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72], settings=shared)
    transfer(tmp_path / "finetune" / "scratch", [0.50, 0.521], init=None, settings=shared | {"train.save_every": 9})
    assert entries_of(tmp_path)["ft"].difference.verdict == "better"
    transfer(tmp_path / "finetune" / "scratch", [0.50, 0.52], init=None, settings=shared | {key: value})
    entry = entries_of(tmp_path)["ft"]
    assert (entry.control, entry.difference) == (None, None)
    assert tells(entry.without_control, "scratch", *said)
    entries = make_entries(collect(tmp_path))
    assert tells(answer(entries), "control", "ft", entry.without_control)
    assert {row.run: row.note for row in table_rows(entries)}["ft"] == entry.without_control


def test_a_control_has_the_tokenizer_of_its_run(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72], fingerprint="abc")
    transfer(tmp_path / "finetune" / "scratch", [0.60, 0.621], init=None, fingerprint="abc")
    assert entries_of(tmp_path)["ft"].difference.verdict == "better"
    transfer(tmp_path / "finetune" / "scratch", [0.60, 0.62], init=None, fingerprint="xyz")
    assert tells(entries_of(tmp_path)["ft"].without_control, "scratch", "tokenizer")


def test_of_several_runs_the_one_that_is_the_same_is_the_control(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72], settings={"train.epochs": 20})
    transfer(tmp_path / "finetune" / "short", [0.50, 0.52], init=None, settings={"train.epochs": 1})
    transfer(tmp_path / "finetune" / "scratch", [0.60, 0.62], init=None, settings={"train.epochs": 20})
    assert entries_of(tmp_path)["ft"].control.mean == pytest.approx(0.61)


def test_an_evaluation_has_the_evaluation_of_its_control(tmp_path):
    def scored(name, value):
        config = {"run": f"runs/finetune/{name}", "task": {"name": "sst2"}}
        result = {"command": "evaluate", "task": "sst2", "split": "test", "main_metric": "accuracy"}
        write_run(
            tmp_path / "evaluate" / f"{name}-test", config=config, result=result | {"metrics": {"accuracy": value}}
        )

    transfer(tmp_path / "finetune" / "ft", [0.70], settings={"train.epochs": 20})
    transfer(tmp_path / "finetune" / "scratch", [0.60], init=None, settings={"train.epochs": 20})
    scored("ft", 0.69)
    scored("scratch", 0.59)
    assert entries_of(tmp_path)["ft-test"].difference.delta == pytest.approx(0.1)
    transfer(tmp_path / "finetune" / "scratch", [0.60], init=None, settings={"train.epochs": 1})
    assert tells(entries_of(tmp_path)["ft-test"].without_control, "train.epochs (1", "20)")


@pytest.mark.parametrize("controls", [[0.509] * 3, [0.491] * 3])
def test_a_control_without_spread_makes_nothing_better(tmp_path, controls):
    transfer(tmp_path / "finetune" / "ft", [0.69, 0.70, 0.71], controls=controls)
    (entry,) = make_entries(collect(tmp_path))
    assert entry.difference.verdict == ("control collapsed" if controls[0] == 0.509 else "seeds all alike")
    helped = replace(entry, difference=replace(entry.difference, verdict="better"))
    assert answer([entry]).partition(":")[0] != answer([helped]).partition(":")[0]
    assert "interval" not in answer([entry])
    assert "learning rate" in answer([entry])


@pytest.mark.parametrize(
    ("scores", "controls", "flagged"),
    [
        ([0.11, 0.12], [0.3, 0.32], {"run", "run control"}),
        ([0.7, 0.72], [0.5, 0.48], {"run control"}),
        ([0.7, 0.72], [0.6, 0.58], set()),
    ],
)
def test_what_is_worse_than_the_majority_is_flagged(tmp_path, scores, controls, flagged):
    folder = transfer(tmp_path / "finetune/run", scores, controls=controls)
    rows = table_rows(make_entries(collect(tmp_path)))
    assert {row.run for row in rows if tells(row.note, "worse", "majority")} == flagged
    result = json.loads((folder / "result.json").read_text())
    warning = below_majority(result)
    assert ("this run" in warning, "the control" in warning) == ("run" in flagged, "run control" in flagged)
    assert not warning or tells(warning, "majority label (50.9)")
    assert bool(below_majority(result | {"higher_is_better": False})) == (not flagged or len(flagged) == 1)


def test_a_rate_at_the_edge_of_its_grid_is_flagged(tmp_path):
    grid = {"learning_rates": [0.001, 0.01, 0.1]}
    for name, rate in (("low", 0.001), ("middle", 0.01), ("high", 0.1)):
        folder = transfer(tmp_path / "finetune" / name, [0.7, 0.72], controls=[0.6, 0.62], settings=grid)
        result = json.loads((folder / "result.json").read_text())
        result["learning_rate"], result["control"]["learning_rate"] = rate, 0.1
        (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    notes = {row.run: row.note for row in table_rows(make_entries(collect(tmp_path)))}
    searched = notes["middle"]
    assert tells(searched, "learning rate", "best of 3")
    assert tells(notes["low"], searched, "smallest", "0.001")
    assert tells(notes["high"], searched, "largest", "0.1")
    assert notes["middle control"] == notes["high"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checkpoint": "best"}, True),
        ({"checkpoint": "last", "learning_rates": [0.1, 0.2]}, True),
        ({"checkpoint": "last"}, False),
        ({"checkpoint": "best", "task.dev_from_train": 0.1}, False),
        ({"checkpoint": "best", "split": "test"}, False),
    ],
)
def test_the_sentence_says_what_was_chosen_on_the_split_that_scores(tmp_path, changed, said):
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72], controls=[0.60, 0.62], settings={"split": "dev"} | changed)
    assert ("(dev)" in answer(make_entries(collect(tmp_path)))) == said


@pytest.mark.parametrize(
    ("counted", "verdict", "said"),
    [
        ([0.80, 0.81, 0.79], "better but below a baseline", "worse"),
        ([0.69, 0.76, 0.74], "better but below a baseline", "no difference shown"),
        ([0.72, 0.64, 0.68], "better", "no difference shown"),
        ([0.60, 0.62, 0.60], "better", ""),
    ],
)
def test_a_run_below_a_baseline_is_not_plainly_better(tmp_path, counted, verdict, said):
    baselines = {"TF-IDF": [0.55, 0.56, 0.53], "NB-SVM": counted}
    transfer(tmp_path / "finetune" / "ft", [0.70, 0.72, 0.71], controls=[0.66, 0.67, 0.65], baselines=baselines)
    (entry,) = make_entries(collect(tmp_path))
    assert (entry.difference.verdict, entry.better_baseline) == (verdict, "NB-SVM")
    assert entry.baseline_difference.delta == pytest.approx(0.71 - sum(counted) / 3)
    assert entry.baseline_difference.verdict == (said or "better")
    low, high = (100 * limit for limit in entry.baseline_difference.interval)
    mean = sum(counted) / 3
    words = (
        f"Against counting words: {said or 'better'}; on sst2, dev, 1,000 labels, ft (finetuned) reaches 71.0 % "
        "accuracy against "
        f"{100 * mean:.1f} % for NB-SVM, a difference of {71 - 100 * mean:+.1f} points (95 % interval {low:+.1f} to "
        f"{high:+.1f} over 3 "
    )
    assert words in answer([entry])
    assert not tells(answer([entry]), "as well")
    rows = {row.run: row for row in table_rows([entry])}
    assert list(rows) == ["majority", "NB-SVM", "TF-IDF", "ft control", "ft"]
    assert rows["NB-SVM"].entry.score.values == tuple(counted)
    assert "NB-SVM: " in markdown_table(results_table(list(rows.values())))


def test_the_verdicts_against_counting_words_are_counted(tmp_path):
    for name, counted in (("worse", [0.80, 0.81, 0.79]), ("better", [0.6, 0.62, 0.6]), ("unclear", [0.69, 0.76, 0.74])):
        transfer(tmp_path / "finetune" / name, [0.70, 0.72, 0.71], baselines={"TF-IDF": counted})
    said = answer(make_entries(collect(tmp_path)))
    assert "Against counting words, of 3 runs: worse in 1, no difference shown in 1, better in 1." in said
    assert tells(said, "For example", "worse (finetuned) reaches 71.0 %", "against 80.0 % for TF-IDF", "-9.0 points")


def test_one_seed_has_no_verdict_against_counting_words(tmp_path):
    transfer(tmp_path / "finetune" / "ft", [0.70], baselines={"TF-IDF": [0.75]})
    said = answer(make_entries(collect(tmp_path)))
    assert tells(said, "Against counting words: no verdict (one seed has no spread)", "-5.0 points.")

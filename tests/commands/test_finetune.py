"""``probe``, ``finetune`` and ``evaluate`` from the command line, on tiny encoders and labeled sentences."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.transfer_files import (
    QUICK,
    TASK,
    check_refused,
    killed_at_save,
    lmtransfer,
    make_world,
    result,
    train_from_base,
    write_split,
)
from safetensors.torch import load_file, save_file
from support.refusals import refuses
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.errors import CheckpointError
from lmtransfer.reporting.verdict_text import WHY_NO_VERDICT
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.trackers.base import Jsonl

#: The overrides that resume a run of the world below.
WORDS: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs: ``one`` with one seed, ``two`` with two seeds and a control."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    WORDS["one"] = train_from_base(folder, "finetune", *QUICK, "transfer.pooling=mean", name="one")
    two = ["finetune", *QUICK, "hardware.threads=1", "seeds=2", "control=true"]
    WORDS["two"] = train_from_base(folder, *two, name="two")
    return folder


def _weights(run: str, checkpoint: str = "best") -> dict[str, torch.Tensor]:
    return load_file(Path(run) / "checkpoints" / checkpoint / "model.safetensors")


def _metrics(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_finetuning_learns_the_task_end_to_end(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["transfer.pooling=mean", "train.epochs=12", "optimizer.learning_rate=0.02", "name=ft"]
    assert lmtransfer("finetune", *QUICK, *words) == 0
    found = result("runs/finetune/ft")
    assert found["metrics"]["accuracy"] >= 0.95
    assert found["labels"] == ["negative", "positive"]
    assert "layer_weights" not in found
    assert found["majority"]["accuracy"] == pytest.approx(0.6)
    assert (found["num_train"], found["num_held_out"], found["num_scored"]) == (108, 12, 60)
    assert (found["task"], found["split"], found["main_metric"]) == ("toy", "dev", "accuracy")
    assert re.search(r"checkpoint .*\baccuracy\b.*\bheld-out training examples", capsys.readouterr().out)
    keys = {"step", "tokens", "seconds", "loss", "learning_rate", "tokens_per_second"}
    assert all(keys <= set(line) for line in _metrics("runs/finetune/ft"))

    assert lmtransfer("evaluate", "run=runs/finetune/ft", "split=dev", "hardware=exact") == 0
    again = result("runs/evaluate/finetune-ft-dev")
    assert again["metrics"] == found["metrics"]
    assert again["majority"] == found["majority"]
    assert lmtransfer("evaluate", "run=runs/finetune/ft", "hardware=exact", "name=mine") == 0
    assert result("runs/evaluate/mine")["split"] == "test"
    assert result("runs/evaluate/mine")["num_scored"] == 50


@pytest.mark.slow
def test_baselines_that_count_words_stand_beside_the_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, "train.epochs=1", "task.num_train=60", "seeds=2", "control=true"]
    assert lmtransfer("finetune", *words, "baseline=true", "name=ft") == 0
    printed = capsys.readouterr().out
    found = result("runs/finetune/ft")
    assert set(found["baselines"]) == {"TF-IDF", "NB-SVM"}
    best = max(found["baselines"].values(), key=lambda part: part["mean"])["mean"]
    assert best > 0.8 > found["mean"]  # the words alone determine the labels, and the run learns nothing
    assert found["baselines"][found["better_baseline"]]["mean"] == best
    assert found["baseline_difference"]["difference"] == pytest.approx(found["mean"] - best)
    assert {"examples", "finetuning"} == {part["source"] for part in found["baseline_difference"]["parts"]}
    assert all(name in printed for name in ("TF-IDF", "NB-SVM", f"difference from {found['better_baseline']} -"))
    assert "as well" not in printed
    kept = {file.name for file in Path("runs/finetune/ft/baselines/predictions").iterdir()}
    assert kept == {f"dev-{name}-seed-{seed}.parquet" for name in ("TF-IDF", "NB-SVM") for seed in range(2)}
    assert lmtransfer("report", "runs") == 0
    verdict = found["baseline_difference"]["verdict"]
    said = f"no verdict ({WHY_NO_VERDICT[verdict]})" if verdict in WHY_NO_VERDICT else verdict
    assert f"Against counting words: {said};" in " ".join(capsys.readouterr().out.split())
    assert "baselines" not in result("runs/finetune/two")


@pytest.mark.slow
def test_seeds_and_control_give_statistics_in_closed_form(world: Path) -> None:
    words = ["transfer.pooling=mean", "train.epochs=8", "optimizer.learning_rate=0.02", "task.num_train=60"]
    assert lmtransfer("finetune", *QUICK, *words, "seeds=3", "control=true", "name=ft") == 0
    found = result("runs/finetune/ft")
    ours = [result(f"runs/finetune/ft/seed-{seed}") for seed in range(3)]
    theirs = [result(f"runs/finetune/ft/control/seed-{seed}") for seed in range(3)]
    for part, runs in ((found, ours), (found["control"], theirs)):
        scores = [run["metrics"]["accuracy"] for run in runs]
        assert part["mean"] == pytest.approx(statistics.fmean(scores))
        assert part["metrics"]["accuracy"] == pytest.approx(statistics.fmean(scores))
        assert part["median"] == statistics.median(scores)
        assert part["deviation"] == pytest.approx(statistics.stdev(scores))
        assert part["n"] == 3
        assert [entry["metrics"]["accuracy"] for entry in part["seeds"]] == scores
    difference = found["difference"]
    pairs = [
        run["metrics"]["accuracy"] - control["metrics"]["accuracy"] for run, control in zip(ours, theirs, strict=True)
    ]
    error = statistics.stdev(pairs) / math.sqrt(3)
    of_parts = {part["source"]: part["variance"] for part in difference["parts"]}
    assert of_parts["finetuning"] == pytest.approx(error**2)
    assert difference["standard_error"] == pytest.approx(math.sqrt(of_parts["finetuning"] + of_parts["examples"]))
    assert difference["difference"] == pytest.approx(found["mean"] - found["control"]["mean"])
    assert error > 0
    low, high = difference["interval"]
    assert (difference["verdict"] in ("better", "worse")) == (low > 0 or high < 0)
    assert (difference["paired"], difference["num_seeds"], difference["scope"]) == (True, [3, 3], "this checkpoint")
    assert all(run["control"] is None for run in ours)
    assert all(run["control"] is True for run in theirs)
    assert [run["seed"] for run in ours] == [0, 1, 2]


def test_the_control_has_other_weights_the_same_head_and_the_same_budget(world: Path) -> None:
    words = ["control=true", "name=ft", "train.epochs=0.01", "optimizer.learning_rate=1e-12"]  # the initial weights
    assert lmtransfer("finetune", *QUICK, *words) == 0
    base = _weights("runs/pretrain/base", "last")
    ours, theirs = _weights("runs/finetune/ft"), _weights("runs/finetune/ft/control")
    assert set(ours) == set(theirs)
    name = "encoder.stack.layers.0.feed_forward.expand.weight"
    torch.testing.assert_close(ours[name], base[name], rtol=0, atol=1e-8)
    assert not torch.allclose(theirs[name], base[name], atol=1e-3)
    torch.testing.assert_close(ours["head.output.weight"], theirs["head.output.weight"], rtol=0, atol=1e-8)
    found, control = result("runs/finetune/ft"), result("runs/finetune/ft/control")
    for key in ("steps", "tokens", "num_train", "num_parameters", "learning_rate"):
        assert found[key] == control[key]
    assert found["control"]["n"] == 1
    assert found["difference"]["standard_error"] is None
    assert found["difference"]["verdict"] == "one seed, no spread"


def test_a_linear_probe_is_fitted_and_settings_of_training_have_no_effect(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("probe", *QUICK, "seeds=2", "control=true", "name=p") == 0
    said = capsys.readouterr().out
    assert "train.epochs" in said
    assert "optimizer.learning_rate" in said
    assert "transfer.fit=trainer" in said
    found = result("runs/probe/p")
    assert (found["deviation"], found["learning_rate"], found["steps"]) == (0.0, None, 0)
    assert found["deterministic"]
    assert found["difference"]["num_seeds"] == [0, 2]  # the run is constant; only the control has seeds
    assert found["control"]["deviation"] > 0
    assert not found["control"]["deterministic"]
    assert found["C"] in [one["C"] for one in found["C_tries"]]
    assert lmtransfer("evaluate", "run=runs/probe/p", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["deterministic"]
    assert lmtransfer("probe", *QUICK, "seeds=2", "task.num_train=60", "name=drawn") == 0
    assert not result("runs/probe/drawn")["deterministic"]


@pytest.mark.parametrize("word", ["transfer.fit=trainer", "transfer.dropout=0.1", "transfer.head_hidden_dim=4"])
def test_other_probes_are_trained(world: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("probe", *QUICK, word, "name=p") == 0
    assert "no effect" not in capsys.readouterr().out
    found = result("runs/probe/p")
    assert found["steps"] > 0
    assert (found["learning_rate"], found["deterministic"]) == (0.01, False)


def test_a_probe_leaves_the_encoder_as_it_was_and_keeps_the_scale_of_its_training_part(world: Path) -> None:
    assert lmtransfer("probe", *QUICK, "control=true", "name=p") == 0
    base = _weights("runs/pretrain/base", "last")
    for run, same in (("runs/probe/p", True), ("runs/probe/p/control", False)):
        saved = {name: tensor for name, tensor in _weights(run, "last").items() if name.startswith("encoder.")}
        assert {name for name in base if name.startswith("encoder.")} == set(saved)
        assert all(torch.equal(saved[name], base[name]) for name in saved) == same
    saved = _weights("runs/probe/p", "last")
    encoder, tokenizer, _ = load_encoder("runs/pretrain/base")
    texts = [line.partition("\t")[0] for line in Path("data/train.tsv").read_text().splitlines()[1:]]
    vectors = []
    with torch.no_grad():
        for text in texts:
            ids = [tokenizer.cls_id, *map(int, tokenizer.encode(text).ids), tokenizer.sep_id]
            packed = pack(
                [torch.tensor(ids).numpy()], [torch.zeros(len(ids)).int().numpy()], capacity=len(ids), max_length=24
            )
            vectors.append(encoder.eval()(packed).last[: len(ids)].mean(0))
    values = torch.stack(vectors).double()
    torch.testing.assert_close(saved["standardising.mean"].double(), values.mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        saved["standardising.deviation"].double(), values.std(0, correction=0), atol=1e-5, rtol=1e-3
    )
    assert lmtransfer("evaluate", "run=runs/probe/p", "split=dev", "hardware=exact") == 0
    found, again = result("runs/probe/p"), result("runs/evaluate/probe-p-dev")
    assert again["metrics"] == pytest.approx(found["metrics"])
    assert again["control"]["mean"] == found["control"]["mean"]


@pytest.mark.slow
def test_learning_rates_are_chosen_on_held_out_labels_with_as_many_tries_for_the_control(world: Path) -> None:
    words = ["learning_rates=[1e-6,2e-2]", "seeds=2", "control=true", "name=ft", "transfer.pooling=mean"]
    assert lmtransfer("finetune", *QUICK, *words) == 0
    found = result("runs/finetune/ft")
    tries = found["learning_rate_tries"]
    for condition, part in (("pretrained", found), ("control", found["control"])):
        of_condition = [tried for tried in tries if tried["arm"] == condition]
        assert sorted((t["learning_rate"], t["seed"]) for t in of_condition) == [
            (1e-6, 0),
            (1e-6, 1),
            (2e-2, 0),
            (2e-2, 1),
        ]
        score, loss = (
            {
                rate: statistics.fmean(t[name] for t in of_condition if t["learning_rate"] == rate)
                for rate in (1e-6, 2e-2)
            }
            for name in ("score", "loss")
        )
        assert part["learning_rate"] == max(score, key=lambda rate: (score[rate], -loss[rate]))
    assert re.search(r"learning rate .*\baccuracy\b.*\bheld-out training examples", found["chosen_by"])
    config = yaml.safe_load(Path("runs/finetune/ft/seed-1/config.yaml").read_text())
    assert config["optimizer"]["learning_rate"] == found["learning_rate"]
    assert (config["seed"], config["seeds"], config["learning_rates"]) == (1, 1, None)


def test_without_a_choice_all_labels_are_trained_on(world: Path) -> None:
    assert lmtransfer("finetune", *QUICK, "checkpoint=last", "name=ft") == 0
    found = result("runs/finetune/ft")
    assert (found["num_train"], found["num_held_out"]) == (120, 0)
    assert "accuracy" not in found["chosen_by"]
    assert "end of training" in found["chosen_by"]


def test_choosing_on_what_is_reported_is_said(world: Path) -> None:
    assert lmtransfer("finetune", *QUICK, "task.dev_from_train=null", "name=ft") == 0
    found = result("runs/finetune/ft")
    assert re.search(r"checkpoint .*\baccuracy\b.*\bdev, .*\balso\b", found["chosen_by"])
    assert found["num_train"] == 120
    lines = _metrics("runs/finetune/ft")
    best = max(line["validation/accuracy"] for line in lines if "validation/accuracy" in line)
    assert found["metrics"]["accuracy"] == found["chosen_score"] == best


def test_finished_seeds_are_kept_and_the_rest_is_done_on_resume(world: Path) -> None:
    words = WORDS["two"]
    whole = result("runs/finetune/two")
    kept = Path("runs/finetune/two/seed-0/checkpoints/best/model.safetensors").stat().st_mtime_ns
    Path("runs/finetune/two/result.json").unlink()
    shutil.rmtree("runs/finetune/two/control/seed-1")
    Path("runs/finetune/two/seed-1/result.json").unlink()
    assert lmtransfer(*words[:-1]) == 2
    assert lmtransfer(*words) == 0
    again = result("runs/finetune/two")
    assert Path("runs/finetune/two/seed-0/checkpoints/best/model.safetensors").stat().st_mtime_ns == kept
    assert again["seeds"] == whole["seeds"]
    assert again["control"]["seeds"] == whole["control"]["seeds"]
    Path("runs/finetune/two/result.json").unlink()  # as after a kill
    assert lmtransfer(*words, "keep_weights=false") == 0
    assert not list(Path("runs/finetune/two").rglob("*.safetensors"))


@pytest.mark.slow
def test_weights_of_seeds_need_not_be_kept(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *QUICK, "hardware.threads=1"]
    assert lmtransfer(*WORDS["two"]) == 0
    assert "lmtransfer evaluate" in capsys.readouterr().out
    assert lmtransfer(*words, "seeds=2", "control=true", "name=ft", "keep_weights=false") == 0
    assert "lmtransfer evaluate" not in capsys.readouterr().out
    assert not list(Path("runs/finetune/ft").rglob("*.safetensors"))
    assert result("runs/finetune/ft")["seeds"] == result("runs/finetune/two")["seeds"]
    assert len(list(Path("runs/finetune/ft").rglob("seed-*/predictions/*"))) == 4
    first = Path("runs/finetune/ft/seed-0/result.json").stat().st_mtime_ns
    assert lmtransfer(*words, "seeds=3", "name=ft", "keep_weights=false", "resume=true") == 0
    assert Path("runs/finetune/ft/seed-0/result.json").stat().st_mtime_ns == first
    assert result("runs/finetune/ft")["control"]["n"] == 3
    capsys.readouterr()
    for command in (
        ("evaluate", "run=runs/finetune/ft"),
        ("predict", "run=runs/finetune/ft", "text=a"),
        ("predict", "run=runs/finetune/ft/seed-1", "text=a"),
        ("export", "run=runs/finetune/ft/seed-1", "to=out"),
        ("probe", *QUICK, "init=runs/finetune/ft/seed-0", "name=p"),
    ):
        check_refused(capsys, [*command], "runs/finetune/ft", "keep_weights=false", "keep_weights=true")


def test_a_control_can_be_added_later(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = WORDS["one"]
    before = result("runs/finetune/one")
    tokenizer = {path.name: path.stat().st_mtime_ns for path in Path("runs/finetune/one/tokenizer").iterdir()}
    assert lmtransfer(*words) == 0
    assert "seeds=5 control=true" in capsys.readouterr().out  # a spread and a control, in a run of its own
    assert lmtransfer(*words, "control=true", "keep_weights=false") == 0
    after = result("runs/finetune/one")
    assert before["control"] is None
    assert after["control"]["n"] == 1
    assert after["metrics"] == before["metrics"]
    assert after["tokens"] == before["tokens"]
    # A second run of the command could be killed while it writes this file again, and leave it incomplete.
    assert tokenizer == {path.name: path.stat().st_mtime_ns for path in Path("runs/finetune/one/tokenizer").iterdir()}
    assert lmtransfer("evaluate", "run=runs/finetune/one", "hardware=exact") == 0  # a single seed keeps its weights


@pytest.mark.slow
def test_more_seeds_can_be_added_later(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = [*QUICK, "train.epochs=1"]
    words = ["finetune", *quick, "control=true"]
    assert lmtransfer(*words, "seeds=3", "name=whole") == 0
    assert lmtransfer(*words, "seeds=2", "name=ft") == 0
    first = Path("runs/finetune/ft/seed-0/checkpoints/best/model.safetensors").stat().st_mtime_ns
    assert lmtransfer(*words, "seeds=3", "name=ft", "resume=true") == 0
    assert Path("runs/finetune/ft/seed-0/checkpoints/best/model.safetensors").stat().st_mtime_ns == first
    whole, grown = result("runs/finetune/whole"), result("runs/finetune/ft")
    assert grown["seeds"] == whole["seeds"]
    assert grown["control"]["seeds"] == whole["control"]["seeds"]
    capsys.readouterr()
    assert lmtransfer(*words, "seeds=3", "name=ft", "resume=true") == 0
    assert "nothing is left to do" in capsys.readouterr().out
    assert lmtransfer("finetune", *quick, "seeds=4", "name=ft", "resume=true") == 0
    assert result("runs/finetune/ft")["control"]["n"] == 4  # the control is kept even without control=true
    assert lmtransfer(*words, "seeds=3", "name=whole", "resume=true") == 0
    assert lmtransfer(*words, "seeds=2", "name=whole", "resume=true") == 2
    assert "seeds was 3" in capsys.readouterr().err


@pytest.mark.slow
def test_with_another_rate_for_more_seeds_all_are_trained_again(world: Path) -> None:
    quick = [*QUICK, "train.epochs=1"]
    words = ["finetune", *quick, "learning_rates=[1e-5,5e-3]"]
    assert lmtransfer(*words, "seeds=2", "name=ft") == 0
    chosen = result("runs/finetune/ft")["learning_rate"]
    tries = Path("runs/finetune/ft/tries")
    for path in list(tries.iterdir()):  # now the other rate is better
        one = json.loads(path.read_text())
        one["score"] = float(one["learning_rate"] != chosen)
        path.write_text(json.dumps(one))
        other_seed = path.name.replace(f"seed-{one['seed']}", f"seed-{one['seed'] + 2}")
        (tries / other_seed).write_text(json.dumps({**one, "seed": one["seed"] + 2}))
    assert lmtransfer(*words, "seeds=4", "name=ft", "resume=true") == 0
    (other,) = {1e-5, 5e-3} - {chosen}
    assert result("runs/finetune/ft")["learning_rate"] == other
    assert lmtransfer("finetune", *quick, f"optimizer.learning_rate={other}", "seeds=4", "name=alone") == 0
    metrics = [[seed["metrics"] for seed in result(f"runs/finetune/{name}")["seeds"]] for name in ("ft", "alone")]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_parts_in_processes_of_their_own_make_the_same_result(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *QUICK, "learning_rates=[1e-5,5e-3]", "control=true", "hardware.threads=1"]
    assert lmtransfer(*words, "name=alone") == 0
    assert lmtransfer(*words, "name=apart", "jobs=2") == 0
    said = capsys.readouterr().out
    assert "[4/4] control, seed 0, learning rate 0.005:" in said
    assert "[1/1] control, seed 0:" in said
    alone, apart = (result(f"runs/finetune/{name}") for name in ("alone", "apart"))
    changing = {"seconds", "tokens_per_second", "peak_memory", "findings"}  # whose commands have the run's name
    assert {key: value for key, value in alone.items() if key not in changing} == {
        key: value for key, value in apart.items() if key not in changing
    }
    assert lmtransfer(*words, "name=alone", "resume=true", "jobs=2") == 0
    assert "nothing is left to do" in capsys.readouterr().out


@pytest.mark.slow
def test_a_part_that_fails_is_told_as_if_it_ran_here(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = WORDS["two"]
    Path("runs/finetune/two/result.json").unlink()
    Path("runs/finetune/two/seed-1/result.json").unlink()
    Path("runs/finetune/two/seed-1/config.yaml").write_text("name: [")
    assert lmtransfer(*words, "jobs=2") == 2
    assert "seed-1/config.yaml" in capsys.readouterr().err
    assert lmtransfer(*words, "part=seed-7") == 2
    assert "part=seed-7" in capsys.readouterr().err


def test_an_interrupted_run_goes_on_to_the_same_result(world: Path) -> None:
    words = ["finetune", *QUICK, "train.save_every=1"]
    assert lmtransfer(*words, "name=whole") == 0
    with killed_at_save(3):
        assert lmtransfer(*words, "name=torn") != 0
    assert not Path("runs/finetune/torn/result.json").exists()
    assert lmtransfer(*words, "name=torn", "resume=true") == 0
    whole, torn = result("runs/finetune/whole"), result("runs/finetune/torn")
    assert torn["metrics"] == whole["metrics"]
    assert torn["steps"] == whole["steps"]
    losses = [[line["loss"] for line in _metrics(f"runs/finetune/{name}")] for name in ("whole", "torn")]
    assert losses[0] == losses[1]


def test_a_run_killed_before_its_first_save_logs_each_step_once(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["finetune", *QUICK, "train.log_every=1"]
    assert lmtransfer(*words, "name=whole") == 0
    log = Jsonl.log

    def log_and_die(self: Jsonl, record: dict[str, Any]) -> None:
        log(self, record)
        if record["step"] == 2:
            shutil.copytree(self.path.parent, "killed")  # as if nothing had cleaned up
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Jsonl, "log", log_and_die)
        assert lmtransfer(*words, "name=torn") != 0
    assert not Path("runs/finetune/torn").exists()
    shutil.move("killed", "runs/finetune/torn")
    assert lmtransfer(*words, "name=torn", "resume=true") == 0
    losses = [[line["loss"] for line in _metrics(f"runs/finetune/{name}")] for name in ("whole", "torn")]
    assert losses[0] == losses[1]


def test_labels_are_matched_by_name(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("evaluate", "run=runs/finetune/one", "hardware=exact", "name=plain") == 0
    write_split(Path("data/test.tsv"), 50, seed=2, values=("n", "p"))
    swapped = [*TASK[:3], "task.labels=[positive,negative]", "task.label_values=[p,n]", TASK[5]]
    assert lmtransfer("evaluate", "run=runs/finetune/one", *swapped, "hardware=exact", "name=swapped") == 0
    plain, other = result("runs/evaluate/plain"), result("runs/evaluate/swapped")
    assert other["metrics"] == pytest.approx(plain["metrics"])
    assert other["labels"] == ["positive", "negative"]
    capsys.readouterr()
    renamed = [*TASK[:3], "task.labels=[yes,no]", "task.label_values=[p,n]", TASK[5]]
    check_refused(
        capsys,
        ["evaluate", "run=runs/finetune/one", *renamed, "name=other"],
        "negative, positive",
        "yes, no",
        "task.labels",
    )


def test_hidden_test_labels_are_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_split(Path("data/test.tsv"), 50, seed=2, values=("-1", "-1"))
    check_refused(
        capsys, ["evaluate", "run=runs/finetune/one", *TASK, "task.hidden_values=[-1]"], "split test", "50 of 50"
    )
    assert not Path("runs/evaluate").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["init=null"], ("init is missing", "init=runs/pretrain/<name>", "tokenizer_from=")),
        (
            ["init=null", "model=bert_tiny", "tokenizer_from=runs/pretrain/base", "control=true"],
            ("control=true", "init"),
        ),
        (["init=data"], ("data", "config.yaml")),
        (["model=bert_tiny", "checkpoint=last", "train.patience=2"], ("model=", "init=", "train.patience")),
        (["task.num_train=1000"], ("task.num_train=1000", "120 examples")),
        (["task.max_length=600"], ("task.max_length=600", "24 tokens")),
        (["split=train"], ("split=train",)),
        (["split=validation"], ("split=validation", "toy", "train, dev, test")),
        (["task.files.train=data/none.tsv"], ("data/none.tsv", "task.files.train=")),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(
    world: Path, capsys: pytest.CaptureFixture[str], words: list[str], names: tuple[str, ...]
) -> None:
    check_refused(capsys, ["finetune", *QUICK, *words, "name=ft"], *names)
    assert not Path("runs/finetune/ft").exists()


def test_training_from_scratch_takes_a_run_s_tokenizer(world: Path) -> None:
    words = ["init=null", "model=bert_tiny", "model.dim=16", "model.hidden_dim=32", "model.max_length=24"]
    assert lmtransfer("finetune", *QUICK, *words, "tokenizer_from=runs/pretrain/base", "name=scratch") == 0
    assert lmtransfer("evaluate", "run=runs/finetune/scratch", "hardware=exact") == 0
    assert result("runs/evaluate/finetune-scratch-test")["n"] == 1


def test_evaluate_says_what_it_needs(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, ["evaluate", "run=runs/pretrain/base"], "runs/pretrain/base", "lmtransfer finetune")
    assert lmtransfer("evaluate", "run=runs/finetune/one", "name=e") == 0
    check_refused(capsys, ["evaluate", "run=runs/finetune/one", "name=e"], "runs/evaluate/e", "name=")
    assert lmtransfer("evaluate", "run=runs/finetune/one", "name=e", "overwrite=true") == 0


def test_a_run_directory_can_be_moved(world: Path) -> None:
    shutil.move("runs/finetune/two", "moved")
    shutil.rmtree("runs")
    assert lmtransfer("evaluate", "run=moved", "hardware=exact", "name=e", "split=dev") == 0
    assert result("runs/evaluate/e")["mean"] == pytest.approx(result("moved")["mean"])


def test_a_run_of_several_seeds_is_no_starting_point(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, ["probe", *QUICK, "init=runs/finetune/two", "name=p"], "runs/finetune/two", "seed-0")
    assert lmtransfer("probe", *QUICK, "init=runs/finetune/two/seed-1", "name=p") == 0


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda weights: weights.pop("encoder.pooler.dense.bias"), ("pooler.dense.bias",)),
        (lambda weights: weights.update({"encoder.extra": torch.zeros(1)}), ("extra",)),
        (lambda weights: weights.update({"encoder.pooler.dense.bias": torch.zeros(2)}), ("pooler.dense.bias", "[2]")),
    ],
)
def test_an_encoder_tensor_that_does_not_fit_is_named(world: Path, change: Any, names: tuple[str, ...]) -> None:
    weights = _weights("runs/pretrain/base", "last")
    change(weights)
    Checkpoints(Path("runs/pretrain/base/checkpoints")).save("last", tensors={"model": weights}, state={"step": 1})
    with refuses(CheckpointError, *names):
        load_encoder("runs/pretrain/base")


def test_a_torn_checkpoint_is_one_message(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("runs/pretrain/base/checkpoints/last/model.safetensors")
    save_file({"encoder.x": torch.zeros(1)}, path)
    assert lmtransfer("probe", *QUICK, "name=p") == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert not Path("runs/probe").exists()

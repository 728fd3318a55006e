"""Saved predictions and ``lmtransfer compare``, from the command line."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.task_files import FILES, make_task_world
from fakes.transfer_files import MASKED, MODEL, TASK, lmtransfer, result

from lmtransfer.config.component import build
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.runs.predictions import read_predictions
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tokenizers.load import load_tokenizer

QUICK = ["hardware=exact", "train.epochs=2", "train.batch_examples=16", "optimizer.learning_rate=0.03"]
QUICK += ["transfer.pooling=mean", "baseline=null"]
INIT = "init=runs/pretrain/base"
OTHER_RUN = ["init=runs/pretrain/other", "seeds=2", "baseline=true"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs: ``a`` with a control, ``b`` with other weights, and one per other kind of task."""
    folder = tmp_path_factory.mktemp("world")
    make_task_world(folder)
    other = RunDirectory.create(folder / "runs", "pretrain", "other")
    base = RunDirectory.open(folder / "runs/pretrain/base")
    load_tokenizer(base.tokenizer).save(other.tokenizer)
    other.write_config({"model": MODEL, "objective": MASKED, "seed": 7})
    torch.manual_seed(2)
    encoder = build(MODEL, vocab_size=load_tokenizer(base.tokenizer).vocab_size)
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    other.checkpoints.save("last", tensors={"model": weights}, state={"step": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        threads = torch.get_num_threads()
        assert lmtransfer("finetune", *TASK, *QUICK, INIT, "seeds=2", "control=true", "name=a") == 0
        assert lmtransfer("finetune", *TASK, *QUICK, *OTHER_RUN, "name=b") == 0
        for kind in FILES:
            assert lmtransfer("finetune", *FILES[kind], *QUICK, INIT, f"name={kind}") == 0
        torch.set_num_threads(threads)
    return folder


def kept(run: str, split: str = "dev") -> ScoredExamples:
    return read_predictions(Path(run) / "predictions" / f"{split}.parquet").examples


def compared(*words: str) -> dict[str, Any]:
    """Return the JSON of a comparison."""
    assert lmtransfer("compare", *words, "to=page") == 0
    (page,) = Path("page").glob("*.json")
    found: dict[str, Any] = json.loads(page.read_text())
    return found


def test_labels_are_kept_with_what_the_file_says(world: Path) -> None:
    rows = [line.split("\t") for line in Path("data/dev.tsv").read_text().splitlines()[1:]]
    for seed in range(2):
        for condition in ("", "control/"):
            found = kept(f"runs/finetune/a/{condition}seed-{seed}")
            assert found.gold.tolist() == [int(label) for _, label in rows]
            assert found.lengths.tolist() == [len(text) for text, _ in rows]
            right = sum(int(label) == said for (_, label), said in zip(rows, found.predicted.tolist(), strict=True))
            metrics = result(f"runs/finetune/a/{condition}seed-{seed}")["metrics"]
            assert metrics["accuracy"] == pytest.approx(right / len(rows))


def test_scores_are_kept(world: Path) -> None:
    with open("data/scores_dev.csv", newline="") as file:
        gold = [float(row["score"]) for row in csv.DictReader(file)]
    found = kept("runs/finetune/regression")
    assert found.gold.tolist() == pytest.approx(gold)
    told = result("runs/finetune/regression")["metrics"]
    assert told["pearson"] == pytest.approx(np.corrcoef(found.predicted, gold)[0, 1], abs=1e-5)
    assert told["loss"] == pytest.approx(np.mean((found.predicted - np.array(gold)) ** 2), rel=1e-4)
    assert found.ratios["squared_error"].value() == pytest.approx(told["loss"], rel=1e-4)


def test_tags_are_kept(world: Path) -> None:
    sentences = Path("data/tags_dev.conll").read_text().strip().split("\n\n")
    gold = [[line.split("\t")[1] for line in sentence.split("\n")] for sentence in sentences]
    found = kept("runs/finetune/tagging")
    assert np.diff(found.offsets).tolist() == [len(tags) for tags in gold]
    flat = [tag for tags in gold for tag in tags]
    assert [found.labels[tag] for tag in found.gold] == flat
    right = sum(found.labels[said] == tag for said, tag in zip(found.predicted, flat, strict=True))
    assert result("runs/finetune/tagging")["metrics"]["accuracy"] == pytest.approx(right / len(flat))


def test_answers_are_kept(world: Path) -> None:
    rows = [json.loads(line) for line in Path("data/questions_dev.jsonl").read_text().splitlines()]
    gold = [row["answers"][0]["text"] for row in rows]
    found = kept("runs/finetune/span_qa")
    assert [*found.ids] == [row["id"] for row in rows]
    assert [*found.gold_answers] == gold
    exact, f1 = [], []
    for said, wanted in zip(found.answers, gold, strict=True):
        words = [Counter(re.sub(r"\b(a|an|the)\b", " ", text.lower()).split()) for text in (said, wanted)]
        common = (words[0] & words[1]).total()
        f1.append(2 * common / (words[0].total() + words[1].total()) if common else 0.0)
        exact.append(words[0] == words[1] and bool(common))
    told = result("runs/finetune/span_qa")["metrics"]
    assert told["f1"] == pytest.approx(np.mean(f1))
    assert told["exact"] == pytest.approx(np.mean(exact))


def test_a_resumed_run_keeps_the_same_predictions(world: Path) -> None:
    run = Path("runs/finetune/again")
    words = ["finetune", *TASK, *QUICK, *OTHER_RUN, "name=again"]
    assert lmtransfer(*words) == 0
    before = {file: file.read_bytes() for file in run.rglob("*.parquet")}
    assert len(before) == 2 + 2 * 2  # each seed, and two baselines per seed
    assert [*before.values()] == [Path(str(file).replace("again", "b")).read_bytes() for file in before]
    (run / "result.json").unlink()
    (run / "seed-0/result.json").unlink()
    shutil.rmtree(run / "seed-0/predictions")
    shutil.rmtree(run / "seed-1")
    assert lmtransfer(*words, "resume=true") == 0
    assert {file: file.read_bytes() for file in run.rglob("*.parquet")} == before


def test_an_evaluation_keeps_those_of_every_seed_and_of_the_control(world: Path) -> None:
    assert lmtransfer("evaluate", "run=runs/finetune/a", "split=dev", "hardware=exact", "name=again") == 0
    files = sorted(path.name for path in Path("runs/evaluate/again/predictions").iterdir())
    assert files == [
        f"dev-{condition}-seed-{seed}.parquet" for condition in ("control", "pretraining-0") for seed in range(2)
    ]
    for seed in range(2):
        one = read_predictions(Path(f"runs/evaluate/again/predictions/dev-pretraining-0-seed-{seed}.parquet"))
        assert one.examples.predicted.tolist() == kept(f"runs/finetune/a/seed-{seed}").predicted.tolist()
        control = read_predictions(Path(f"runs/evaluate/again/predictions/dev-control-seed-{seed}.parquet"))
        assert control.is_control
        assert control.examples.predicted.tolist() == kept(f"runs/finetune/a/control/seed-{seed}").predicted.tolist()
    entry = next(entry for entry in make_entries(collect(Path("runs"))) if entry.run.name == "again")
    assert entry.condition is not None
    assert entry.condition.examples is not None
    assert entry.control_condition is not None
    assert entry.control_condition.examples is not None
    # Another evaluation with this name and fewer seeds leaves no earlier predictions.
    words = ["evaluate", "run=runs/finetune/a/seed-0", "split=dev", "hardware=exact", "name=again", "overwrite=true"]
    assert lmtransfer(*words) == 0
    assert [path.name for path in Path("runs/evaluate/again/predictions").iterdir()] == ["dev.parquet"]


def test_the_report_counts_the_luck_of_the_examples_where_predictions_are_kept(world: Path) -> None:
    def difference() -> Any:
        entry = next(entry for entry in make_entries(collect(Path("runs"))) if entry.run.name == "a")
        assert entry.difference is not None
        return entry.difference

    assert difference().counts_examples
    for folder in [*Path("runs/finetune/a").rglob("predictions")]:
        shutil.rmtree(folder)
    assert not difference().counts_examples
    assert lmtransfer("report", "runs", "figures=false") == 0


def test_two_runs_are_compared_on_the_terminal_and_as_a_page(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("compare", "runs/finetune/a", "runs/finetune/b", "most=2") == 0
    said = capsys.readouterr().out
    assert "toy, dev" in said
    for title in ("Scores on 60 examples", "By class: accuracy (%)", "By length of the input", "Settings that differ"):
        assert title in said
    page = Path("runs/finetune/compare/a-against-b.html").read_text()
    assert "<h2>By class: accuracy (%)</h2>" in page
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)
    found = json.loads(Path("runs/finetune/compare/a-against-b.json").read_text())
    scores = [[run["metrics"]["accuracy"] for run in result(f"runs/finetune/{name}")["seeds"]] for name in "ab"]
    for side, wanted in zip(found["sides"], scores, strict=True):
        assert [score["value"] for score in side["scores"]] == pytest.approx(wanted)
    assert found["difference"]["difference"] == pytest.approx(np.mean(scores[0]) - np.mean(scores[1]))
    assert found["difference"]["paired"]
    assert found["examples"] == 60
    settings = {setting["key"]: (setting["one"], setting["other"]) for setting in found["settings"]}
    assert settings["weights"][1].endswith("runs/pretrain/other")
    assert not [key for key in settings if key.startswith("transfer")]


def test_classes_lengths_and_flips_by_hand(world: Path) -> None:
    found = compared("runs/finetune/a", "runs/finetune/b")
    right: dict[str, np.ndarray] = {}
    for name in "ab":
        runs = [kept(f"runs/finetune/{name}/seed-{seed}") for seed in range(2)]
        right[name] = np.mean([run.predicted == run.gold for run in runs], axis=0)
    examples = kept("runs/finetune/a/seed-0")
    for place, name in enumerate(("negative", "positive")):
        row = next(row for row in found["classes"] if row["name"] == name)
        rows = examples.gold == place
        assert row["examples"] == rows.sum()
        assert row["one"] == pytest.approx(right["a"][rows].mean())
        assert row["other"] == pytest.approx(right["b"][rows].mean())
    assert sum(row["examples"] for row in found["lengths"]) == 60
    for row in found["lengths"]:
        low, _, high = row["name"].removesuffix(" characters").partition(" to ")
        rows = (examples.lengths >= int(low)) & (examples.lengths <= int(high or low))
        assert row["examples"] == rows.sum()
        assert row["one"] == pytest.approx(right["a"][rows].mean())
    a, b = (np.where(right[n] == 0.5, np.nan, right[n] > 0.5) for n in "ab")  # one of two seeds is not enough
    a, b = (np.stack([side == 1, side == 0]) for side in (a, b))
    assert found["flipped"]["counts"] == [int((a[i] & b[j]).sum()) for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for side, rows in (("to_one", a[0] & b[1]), ("to_other", a[1] & b[0])):
        assert {flip["id"] for flip in found["flipped"][side]} == {f"dev:{row}" for row in np.flatnonzero(rows)}


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_task_is_compared(kind: str, world: Path) -> None:
    shutil.copytree(f"runs/finetune/{kind}", "runs/finetune/other")
    found = compared(f"runs/finetune/{kind}", "runs/finetune/other")
    assert found["difference"]["difference"] == 0
    assert found["difference"]["verdict"] == "one seed, no spread"
    assert any("one seed" in line and "seeds=5" in line for line in found["missing"])
    assert found["lengths"]
    assert bool(found["classes"]) == (kind in ("text_pair", "tagging"))
    if kind == "tagging":
        words = Counter(
            line.split("\t")[1] for line in Path("data/tags_dev.conll").read_text().splitlines() if line.strip()
        )
        assert {row["name"]: row["examples"] for row in found["classes"]} == dict(words)
        examples = kept("runs/finetune/tagging")
        tag = examples.labels.index("GOOD")
        rows = examples.gold == tag
        good = next(row for row in found["classes"] if row["name"] == "GOOD")
        assert good["one"] == pytest.approx((examples.predicted[rows] == tag).mean())


def test_a_run_is_compared_with_its_control_and_a_group_with_a_run(world: Path) -> None:
    found = compared("runs/finetune/a", "runs/finetune/a/control")
    assert [[s["pretraining"] is None for s in side["scores"]] for side in found["sides"]] == [[False] * 2, [True] * 2]
    stated = result("runs/finetune/a")["difference"]
    assert found["difference"]["difference"] == pytest.approx(stated["difference"])
    assert found["difference"]["standard_error"] == pytest.approx(stated["standard_error"])
    shutil.rmtree("page")
    Path("group").mkdir()
    for name in "ab":
        shutil.copytree(f"runs/finetune/{name}", f"four/{name}")
    for name in "ab":
        shutil.copytree(f"runs/finetune/{name}/seed-0", f"group/{name}")
    group = compared("group", "four")
    assert len(group["sides"][0]["scores"]) == 2
    assert len({score["pretraining"] for score in group["sides"][0]["scores"]}) == 2
    assert any("2 and 4" in line and "seeds" in line for line in group["missing"])


def test_a_run_that_searched_its_rate_is_compared_with_its_control(world: Path) -> None:
    searched = ["learning_rates=[0.01,0.03]", "seeds=2", "control=true", "name=searched"]
    assert lmtransfer("finetune", *TASK, *QUICK[:3], *QUICK[4:], INIT, *searched) == 0
    found = compared("runs/finetune/searched", "runs/finetune/searched/control")
    assert [setting["key"] for setting in found["settings"]] == ["weights"]
    assert found["difference"]["verdict"] == result("runs/finetune/searched")["difference"]["verdict"]


def test_predictions_that_are_too_many_are_not_kept(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmtransfer.transfer.scoring.MOST_EXAMPLES", 30)
    words = [*FILES["regression"], *QUICK, INIT, "name=many", "control=true"]
    assert lmtransfer("finetune", *words) == 0
    assert "predictions" in capsys.readouterr().out
    assert not [*Path("runs/finetune/many").rglob("*.parquet")]
    found = compared("runs/finetune/many", "runs/finetune/regression")
    assert any("many" in line and "predictions" in line for line in found["missing"])
    assert found["difference"]["difference"] == 0
    assert (found["classes"], found["lengths"], found["flipped"]) == ([], [], None)

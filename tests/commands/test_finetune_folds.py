"""Cross-validation from the command line: one result for all folds, its control, a report, and a killed run."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from fakes.transfer_files import TASK, lmtransfer, make_world, result

from lmtransfer.runs.predictions import read_predictions
from lmtransfer.tasks.subsets import fold_of

RUN = [
    *(word for word in TASK if not word.startswith("task.files")),
    "task.train=data/train.tsv",
    "task.folds=3",
    "hardware=exact",
    "baseline=null",
    "init=runs/pretrain/base",
    "train.epochs=2",
    "transfer.pooling=mean",
    "optimizer.learning_rate=0.02",
]


SAID = "said.txt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cross-validated run of two seeds and a control, and the command's output."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer("finetune", *RUN, "seeds=2", "control=true", "baseline=true", "name=cv") == 0
    (folder / SAID).write_text(said.getvalue())
    return folder


@pytest.mark.slow
def test_folds_give_one_result_with_a_control(world: Path) -> None:
    said = Path(SAID).read_text()
    assert "fold 3 of 3" in said
    assert "lmtransfer evaluate" not in said
    found = result("runs/finetune/cv")
    assert (found["split"], found["num_scored"], found["n"]) == ("folds", 120, 2)
    assert found["difference"]["paired"]
    assert {part["source"] for part in found["difference"]["parts"]} == {"finetuning", "examples"}
    for condition in ("", "control/"):
        for seed in (0, 1):
            run = Path(f"runs/finetune/cv/{condition}seed-{seed}")
            own, kept = result(run), read_predictions(run / "predictions/folds.parquet").examples
            right = kept.predicted == kept.gold
            assert len(kept) == 120
            assert own["metrics"]["accuracy"] == pytest.approx(right.mean())
            folds = [result(run / f"folds/fold-{fold}") for fold in range(3)]
            assert [fold["metrics"]["accuracy"] for fold in folds] == [part["score"] for part in own["folds"]]
            assert sum(fold["num_scored"] for fold in folds) == 120
            weighted = sum(fold["num_scored"] * fold["metrics"]["loss"] for fold in folds) / 120
            assert own["metrics"]["loss"] == pytest.approx(weighted)
    # The predictions of all folds of a seed are in one file.
    assert len(list(Path("runs/finetune/cv").rglob("folds.parquet"))) == 4
    assert lmtransfer("report", "runs/") == 0
    page = Path("runs/report/report.html").read_text()
    assert "fold-0" not in page
    assert json.loads(Path("runs/report/report.json").read_text())
    assert lmtransfer("compare", "runs/finetune/cv", "runs/finetune/cv/control") == 0


def test_a_fold_is_answered_by_the_run_that_has_not_seen_it(world: Path) -> None:
    """Each fold's run, evaluated again on the whole file, gives the saved predictions for its own fold."""
    run = Path("runs/finetune/cv/seed-0")
    whole = read_predictions(run / "predictions/folds.parquet").examples
    texts = [line.split("\t")[0] for line in Path("data/train.tsv").read_text().splitlines()[1:]]
    division = fold_of(whole.gold, texts, folds=3, seed=0, names=whole.labels)
    elsewhere = []
    for fold in range(3):
        words = [f"run={run}/folds/fold-{fold}", "input=data/train.tsv", "column_prefix=predicted_"]
        assert lmtransfer("predict", *words, f"output=answers-{fold}.jsonl", "hardware=exact") == 0
        answers = [
            json.loads(line)["predicted_label"] for line in Path(f"answers-{fold}.jsonl").read_text().splitlines()
        ]
        agree = np.array(answers) == np.array(whole.labels)[whole.predicted]
        assert agree[division == fold].all()
        elsewhere.append(agree[division != fold])
    assert not np.concatenate(elsewhere).all()


def test_probing_with_folds_and_without_a_held_out_part(world: Path) -> None:
    words = [word for word in RUN if not word.startswith("optimizer")]
    words += ["optimizer.learning_rate=0.05", "checkpoint=last", "task.dev_from_train=null"]
    assert lmtransfer("probe", *words, "control=true", "name=cv") == 0
    found = result("runs/probe/cv")
    assert len(found["folds"]) == len(result("runs/probe/cv/control")["folds"]) == 3


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_fold_it_was_in(world: Path) -> None:
    assert lmtransfer("finetune", *RUN, "name=torn") == 0
    run, expected = Path("runs/finetune/torn"), result("runs/finetune/torn")
    (run / "result.json").unlink()
    shutil.rmtree(run / "predictions")
    shutil.rmtree(run / "folds/fold-1")
    before = (run / "folds/fold-0/result.json").stat().st_mtime_ns
    assert lmtransfer("finetune", *RUN, "name=torn", "resume=true") == 0
    found = result(run)
    assert found["metrics"] == expected["metrics"]
    assert found["folds"] == expected["folds"]
    assert (run / "folds/fold-0/result.json").stat().st_mtime_ns == before


def test_sets_of_labels(world: Path) -> None:
    rows = [line.split("\t") for line in Path("data/train.tsv").read_text().splitlines()[1:]]
    sets = [["kind"] * int(label) + ["long"] * (len(text) > 30) for text, label in rows]
    lines = ["text\tlabels", *(f"{row[0]}\t{','.join(labels)}" for row, labels in zip(rows, sets, strict=True))]
    Path("data/own.tsv").write_text("\n".join(lines) + "\n")
    words = ["task=multi_label", "task.train=data/own.tsv", *RUN[-7:], "name=own"]
    assert lmtransfer("finetune", *words) == 0
    found = result("runs/finetune/own")
    assert found["num_scored"] == 120
    assert len(found["folds"]) == 3


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["task.folds=1"], ("task.folds",)),
        (["task.folds=100"], ("task.folds=100", "positive", "(4")),
        (["task.dev=data/dev.tsv"], ("task.folds=3", "task.dev")),
        (["task.num_train=50"], ("task.folds=3", "task.num_train=50")),
        (["learning_rates=[1e-3,1e-2]"], ("learning_rates", "task.folds=3")),
        (["split=test"], ("split=test", "task.folds=3")),
        (["task.dev_from_train=null"], ("task.dev_from_train=null", "task.folds=3", "checkpoint=last")),
    ],
)
def test_refusals(words: list[str], names: tuple[str, ...], world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word for word in RUN if not any(word.split("=")[0] == other.split("=")[0] for other in words)]
    assert lmtransfer("finetune", *given, *words, "name=x") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert not Path("runs/finetune/x").exists()


def test_a_run_of_folds_has_no_single_model(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["predict", "run=runs/finetune/cv", "text=good"],
        ["evaluate", "run=runs/finetune/cv", "split=test"],
        ["export", "run=runs/finetune/cv/seed-0", "to=out"],
        ["finetune", *RUN, "init=runs/finetune/cv/seed-1", "name=next"],
    ):
        words = [word for word in command if word != "init=runs/pretrain/base"]
        capsys.readouterr()
        assert lmtransfer(*words) == 2
        said = capsys.readouterr().err
        assert "folds/fold-0" in said, said

"""``final=true``: a model trained on all labels, beside the scores of models trained on fewer.

The reference is a run by hand on one file with all labels, with the steps and the learning rate read off the scored
models' own results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.task_files import FILES, SPLITS, make_task_world
from fakes.transfer_files import check_refused, lmtransfer, log_of, result, weights_of
from safetensors.torch import load_file

from lmtransfer.api import TransferRun
from lmtransfer.errors import RunDirectoryError
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.transfer.experiment.experiment import Experiment

COMMON = ["hardware=exact", "baseline=null", "init=runs/pretrain/base", "transfer.pooling=mean"]
LABELS = ["task=text_classification", "task.name=toy", "task.text_column=sentence", "task.train=data/train.tsv"]
DEV = "task.dev=data/dev.tsv"
TRAINED = [*COMMON, "optimizer.learning_rate=0.02", "train.epochs=3", "train.batch_examples=16"]
FOLDS = ["finetune", *LABELS, *TRAINED, "task.folds=3", "train.eval_every=2", "name=folds"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several tasks, and a cross-validated run with a final model."""
    folder = tmp_path_factory.mktemp("world")
    make_task_world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer(*FOLDS, "final=true") == 0
    return folder


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _join(*files: str) -> str:
    """All rows of some files, with one header; returns the new file's name."""
    joint = Path("data", f"all{Path(files[0]).suffix}")
    texts = [Path(file).read_text() for file in files]
    if joint.suffix in (".tsv", ".csv"):
        texts[1:] = [text.partition("\n")[2] for text in texts[1:]]
    if joint.suffix == ".jsonl":  # questions have ids, which a file may have once
        texts = [text.replace('"id": "', f'"id": "{number}-') for number, text in enumerate(texts)]
    joint.write_text("".join(texts))
    return str(joint)


def _answers(run: str, file: str, *words: str) -> list[dict[str, Any]]:
    Path("answers.jsonl").unlink(missing_ok=True)
    words = (f"run={run}", f"input={file}", "output=answers.jsonl", "hardware=exact", "column_prefix=new_", *words)
    assert lmtransfer("predict", *words) == 0
    return [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]


def _by_hand(words: Sequence[str], *, steps: float, rate: float, name: str = "hand") -> None:
    """A run of so many steps at this rate on all examples of its training file."""
    dropped = ("train.epochs", "task.folds", "learning_rates", "checkpoint", "optimizer.learning_rate", "name")
    kept = [word for word in words if word.split("=")[0] not in dropped]
    own = [f"train.steps={steps:.0f}", f"optimizer.learning_rate={rate}", "checkpoint=last", f"name={name}"]
    assert lmtransfer(*kept, *own) == 0


def test_after_folds_it_is_the_run_on_the_whole_file_for_the_median_of_the_steps(world: Path) -> None:
    found, final = result("runs/finetune/folds"), result("runs/finetune/folds/final")
    best = [result(f"runs/finetune/folds/folds/fold-{fold}")["chosen_step"] for fold in range(3)]
    assert len(set(best)) > 1  # otherwise any of them would do
    assert found["final"]["steps"] == final["steps"] == np.median(best)
    assert (found["final"]["learning_rate"], found["final"]["num_train"]) == (0.02, 120)
    _by_hand([*FOLDS, DEV], steps=np.median(best), rate=0.02)
    assert _same(weights_of("runs/finetune/folds/final"), weights_of("runs/finetune/hand"))
    columns = ["text_column=sentence"]
    assert _answers("runs/finetune/folds", "data/test.tsv", *columns) == _answers(
        "runs/finetune/hand", "data/test.tsv", *columns
    )


@pytest.mark.slow
def test_the_scores_do_not_depend_on_it(world: Path) -> None:
    assert lmtransfer(*FOLDS[:-1], "name=scores") == 0
    with_final, without = result("runs/finetune/folds"), result("runs/finetune/scores")
    assert set(with_final) - set(without) == {"final"}
    for key in ("metrics", "folds", "seeds", "num_train", "chosen_by", "majority", "classes"):
        assert with_final[key] == without[key]
    assert set(result("runs/finetune/folds/final")["metrics"]) == set()


@pytest.mark.slow
def test_with_a_dev_file_and_seeds_it_has_the_chosen_rate_and_the_median_of_the_steps(world: Path) -> None:
    words = ["finetune", *LABELS, *TRAINED, "train.eval_every=2", "seed=3"]
    several = ["seeds=3", "control=true", "learning_rates=[1e-6,3e-2]", "train.patience=2", "keep_weights=false"]
    assert lmtransfer(*words, *several, DEV, "final=true", "name=seeds") == 0
    found = result("runs/finetune/seeds")
    seeds = [result(f"runs/finetune/seeds/seed-{seed}") for seed in (3, 4, 5)]
    steps = np.median([seed["chosen_step"] for seed in seeds])
    assert found["final"]["steps"] == steps != found["steps"]
    assert found["final"]["learning_rate"] == found["learning_rate"] == 0.03
    assert found["final"]["num_train"] == 180
    assert "median best step of the 3" in found["final"]["chosen_by"]
    rows = _join("data/train.tsv", "data/dev.tsv")
    _by_hand([*words[:4], f"task.train={rows}", *words[5:], DEV], steps=steps, rate=0.03)
    assert _same(weights_of("runs/finetune/seeds/final"), weights_of("runs/finetune/hand"))
    assert [path.parents[2].name for path in Path("runs/finetune/seeds").rglob("*.safetensors")] == ["final"]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("tagging", []),
        pytest.param("tagging", ["transfer=lora", "transfer.lora_rank=2"], marks=pytest.mark.slow),
        pytest.param(
            "regression", ["transfer.standardise=true", "transfer=gradual", "checkpoint=last"], marks=pytest.mark.slow
        ),
        pytest.param("multi_label", ["schedule=cosine"], marks=pytest.mark.slow),
        pytest.param("span_qa", ["transfer.layers=mix"], marks=pytest.mark.slow),
        pytest.param("text_pair", ["task.class_weights=balanced", "task.dev_from_train=null"], marks=pytest.mark.slow),
    ],
)
def test_other_kinds_of_task(kind: str, more: list[str], world: Path) -> None:
    words = ["finetune", *FILES[kind], *TRAINED, "train.eval_every=3", *more]
    assert lmtransfer(*words, "final=true", "name=own") == 0
    files = [word.partition("=")[2] for word in words if word.startswith(("task.train=", "task.files.train="))]
    train = files[0]
    rows = _join(train, train.replace("train", "dev"))
    found = result("runs/finetune/own")
    assert found["final"]["num_train"] == SPLITS["train"] + SPLITS["dev"] > found["num_train"]
    by_hand = [word.replace(train, rows) for word in words]
    _by_hand(by_hand, steps=found["chosen_step"], rate=0.02)
    assert _same(weights_of("runs/finetune/own/final"), weights_of("runs/finetune/hand"))
    if kind in ("tagging", "regression"):
        test = train.replace("train", "test")
        assert _answers("runs/finetune/own", test) == _answers("runs/finetune/hand", test)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("text_pair", []),
        pytest.param("regression", ["task.folds=3"], marks=pytest.mark.slow),
        pytest.param("tagging", ["transfer.layers=mix"], marks=pytest.mark.slow),  # trained in steps
        pytest.param("tagging", [], marks=pytest.mark.slow),
    ],
)
def test_a_probe_is_fitted_to_all_examples(kind: str, more: list[str], world: Path) -> None:
    dropped = (".dev=",) if more == ["task.folds=3"] else ()
    files = [word for word in FILES[kind] if not any(part in word for part in dropped)]
    words = ["probe", *files, *COMMON[:3], *more]
    assert lmtransfer(*words, "final=true", "name=own") == 0
    found = result("runs/probe/own")
    train = next(word.partition("=")[2] for word in words if word.startswith(("task.train=", "task.files.train=")))
    dev = train.replace("train", "dev")
    rows = train if dropped else _join(train, dev)
    by_hand = [word.replace(train, rows) for word in ("probe", *FILES[kind], *COMMON[:3], *more[: 0 if dropped else 1])]
    if found["final"].get("C") is None:
        _by_hand(
            [*by_hand, "train.epochs=null", "train.min_steps=null"],
            steps=found["chosen_step"],
            rate=found["learning_rate"],
        )
    else:
        assert lmtransfer(*by_hand, "name=hand") == 0
        assert result("runs/probe/hand")["C"] == found["final"]["C"]
        assert found["final"]["learning_rate"] is None
    assert result("runs/probe/hand")["num_train"] == found["final"]["num_train"]
    assert _same(weights_of("runs/probe/own/final"), weights_of("runs/probe/hand"))


def test_without_a_dev_file_and_folds_there_is_only_the_model(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *LABELS, *TRAINED, "baseline=true"]
    check_refused(capsys, [*words, "name=none"], "task.dev", "task.folds", "final=true")
    assert lmtransfer(*words, "final=true", "name=only") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not measured" in said
    assert "task.folds=5" in said
    found = result("runs/finetune/only")
    assert (found["metrics"], found["split"], found["final"]["num_train"]) == ({}, None, 120)
    assert lmtransfer(*words, DEV, "checkpoint=last", "name=hand") == 0
    assert _same(weights_of("runs/finetune/only/final"), weights_of("runs/finetune/hand"))
    assert lmtransfer(*words, "final=true", "name=only", "resume=true") == 0
    assert "nothing is left to do" in capsys.readouterr().out
    with pytest.raises(RunDirectoryError, match="nothing was measured"):
        _ = TransferRun(Path("runs/finetune/only")).result


@pytest.mark.slow
def test_without_scores_a_rate_is_still_chosen_on_held_out_examples(world: Path) -> None:
    words = ["finetune", *LABELS, *TRAINED]
    assert lmtransfer(*words, "learning_rates=[1e-6,3e-2]", "final=true", "name=only") == 0
    final = result("runs/finetune/only")["final"]
    assert final["learning_rate"] == 0.03
    assert "held-out" in final["chosen_by"]
    words = [word for word in words if not word.startswith("optimizer")]
    assert lmtransfer(*words, DEV, "optimizer.learning_rate=0.03", "checkpoint=last", "name=hand") == 0
    assert _same(weights_of("runs/finetune/only/final"), weights_of("runs/finetune/hand"))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["seeds=2"], ("seeds=2", "task.folds")),
        (["control=true", "train.patience=2"], ("control=true", "train.patience=2")),
        (["learning_rates=[1e-3,1e-2]", "task.dev_from_train=null"], ("learning_rates", "task.dev_from_train")),
        ([DEV, "task.num_train=20"], ("task.num_train=20", "final=true")),
        (["split=test"], ("split=test", "task.test")),
    ],
)
def test_refusals(words: list[str], names: tuple[str, ...], world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, ["finetune", *LABELS, *TRAINED, "final=true", "name=x", *words], *names)
    assert not Path("runs/finetune/x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_killed_run_goes_on(
    when: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FOLDS[:-1], "train.save_every=3", "name=torn"]
    run, whole = Path("runs/finetune/torn"), Path("runs/finetune/folds")
    if when == "before":  # the scores are there, and the final training has not begun
        with monkeypatch.context() as patch:
            patch.setattr(Experiment, "_train_final", _interrupt)
            assert lmtransfer(*words, "final=true") == 130
        assert not (run / "final").exists()
        check_refused(capsys, ["predict", f"run={run}", "text=a"], "not finished", "resume=true")
    elif when == "during":
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", _save_and_interrupt)
            assert lmtransfer(*words, "final=true") == 130
        state = json.loads((run / "final/checkpoints/last/state.json").read_text())
        assert state["step"] == 3 < result(whole)["final"]["steps"]
    else:  # only the results are missing
        assert lmtransfer(*words, "final=true") == 0
        (run / "final/result.json").unlink()
        (run / "result.json").unlink()
    before = (run / "folds/fold-0/result.json").stat().st_mtime_ns
    assert lmtransfer(*words, "resume=true") == 0
    assert (run / "folds/fold-0/result.json").stat().st_mtime_ns == before
    assert _same(weights_of(run / "final"), weights_of(whole / "final"))
    assert log_of(run / "final") == log_of(whole / "final")
    assert result(run)["metrics"] == result(whole)["metrics"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


_save = Checkpoints.save


def _save_and_interrupt(checkpoints: Checkpoints, name: str, **content: Any) -> Path:
    path = _save(checkpoints, name, **content)
    if checkpoints.folder.parent.name == "final":
        raise KeyboardInterrupt
    return path


@pytest.mark.slow
def test_it_can_be_added_to_a_finished_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also to one of a single seed, whose own model stays where it is."""
    assert lmtransfer(*FOLDS[:-1], "name=late") == 0
    said = capsys.readouterr().out
    assert "final=true resume=true" in said
    check_refused(capsys, ["predict", "run=runs/finetune/late", "text=good"], "final=true", "resume=true")
    assert lmtransfer(*FOLDS[:-1], "name=late", "final=true", "resume=true") == 0
    assert result("runs/finetune/late")["final"]["steps"] == result("runs/finetune/folds")["final"]["steps"]
    assert _same(weights_of("runs/finetune/late/final"), weights_of("runs/finetune/folds/final"))
    words = ["finetune", *LABELS, *TRAINED, DEV]
    assert lmtransfer(*words, "name=dev") == 0
    before, scored = result("runs/finetune/dev"), weights_of("runs/finetune/dev", "best")
    assert lmtransfer(*words, "name=dev", "final=true", "resume=true") == 0
    after = result("runs/finetune/dev")
    changing = ("seconds", "tokens_per_second", "peak_memory", "findings")  # whose commands have final=true
    assert {key: after[key] for key in before if key not in changing} == {
        key: before[key] for key in before if key not in changing
    }
    assert _same(weights_of("runs/finetune/dev", "best"), scored)
    assert lmtransfer(*words, "name=whole", "final=true") == 0
    assert _same(weights_of("runs/finetune/dev/final"), weights_of("runs/finetune/whole/final"))
    assert lmtransfer(*words, "name=dev", "resume=true") == 0  # the final model is kept even without final=true
    assert "final" in result("runs/finetune/dev")


@pytest.mark.slow
def test_more_seeds_change_its_length(world: Path) -> None:
    words = ["finetune", *LABELS, *TRAINED[:-3], DEV, "optimizer.learning_rate=0.1", "train.epochs=4", "final=true"]
    assert lmtransfer(*words, "seeds=5", "name=whole") == 0
    assert lmtransfer(*words, "seeds=2", "name=grown") == 0
    early = result("runs/finetune/grown")["final"]["steps"]
    assert lmtransfer(*words, "seeds=5", "name=grown", "resume=true") == 0
    whole, grown = (result(f"runs/finetune/{name}")["final"] for name in ("whole", "grown"))
    assert whole["steps"] == grown["steps"] != early
    assert whole["chosen_by"] == grown["chosen_by"]
    assert _same(weights_of("runs/finetune/grown/final"), weights_of("runs/finetune/whole/final"))


@pytest.mark.slow
def test_processes_train_the_same(world: Path) -> None:
    words = ["finetune", *LABELS, *TRAINED, DEV, "seeds=2", "final=true", "hardware.threads=1"]
    assert lmtransfer(*words, "name=here") == 0
    assert lmtransfer(*words, "name=apart", "jobs=2") == 0
    assert "labeled examples" in Path("runs/finetune/apart/logs/final.log").read_text()
    assert _same(weights_of("runs/finetune/apart/final"), weights_of("runs/finetune/here/final"))
    assert result("runs/finetune/apart")["final"]["steps"] == result("runs/finetune/here")["final"]["steps"]


def test_it_is_not_scored_on_its_own_examples(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run=runs/finetune/folds"
    check_refused(capsys, ["evaluate", run, "split=train"], "split=train", "trained on", "folds/result.json")
    task = [*LABELS[:-1], "task.train=data/train.tsv", "task.test=data/test.tsv", "task.labels=['0','1']"]
    assert lmtransfer("evaluate", run, *task, "hardware=exact", "name=other") == 0
    assert "final model, trained on all 120" in " ".join(capsys.readouterr().out.split())
    found = result("runs/evaluate/other")
    right = [answer["new_label"] for answer in _answers("runs/finetune/folds", "data/test.tsv", "text_column=sentence")]
    gold = [line.split("\t")[1] for line in Path("data/test.tsv").read_text().splitlines()[1:]]
    assert found["metrics"]["accuracy"] == np.mean([one == other for one, other in zip(right, gold, strict=True)])
    assert (found["control"], found["final"]["num_train"]) == (None, 120)


@pytest.mark.slow
def test_texts_of_the_dev_file_are_noticed_in_other_files(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *LABELS, *TRAINED, DEV, "control=true", "final=true", "name=dev"]
    assert lmtransfer(*words) == 0
    check_refused(capsys, ["evaluate", "run=runs/finetune/dev", "split=dev"], "split=dev", "trained on")
    dev = Path("data/dev.tsv").read_text().splitlines()
    Path("data/mixed.tsv").write_text("\n".join([*dev[:8], "with the quite unseen with\t1"]) + "\n")
    task = [*LABELS, "task.test=data/mixed.tsv", "task.labels=['0','1']"]
    assert lmtransfer("evaluate", "run=runs/finetune/dev", *task, "hardware=exact", "name=mixed") == 0
    assert "7 of the 8" in capsys.readouterr().out
    assert result("runs/evaluate/mixed")["control"] is None


@pytest.mark.slow
def test_every_command_takes_it_as_the_model_of_the_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    final = weights_of("runs/finetune/folds/final")
    assert lmtransfer("export", "run=runs/finetune/folds", "to=out", "format=tensors") == 0
    exported = load_file("out/model.safetensors")
    assert _same({name: tensor for name, tensor in exported.items() if name in final}, final)
    card = " ".join(Path("out/README.md").read_text().split())
    assert "trained on all 120 labeled examples, was not scored" in card
    assert "120 labeled examples" in card
    words = ["input=data/test.tsv", "text_column=sentence", "hardware=exact"]
    for run, name in (("folds", "own"), ("folds/final", "final")):
        assert lmtransfer("embed", f"run=runs/finetune/{run}", *words, f"output={name}.npy") == 0
    assert np.array_equal(np.load("own.npy"), np.load("final.npy"))
    next_words = [*LABELS, *COMMON[:2], "transfer.pooling=mean", DEV]
    for run in ("folds", "folds/final"):
        name = run.replace("/", "-")
        assert lmtransfer("probe", *next_words, f"init=runs/finetune/{run}", f"name={name}") == 0
    assert result("runs/probe/folds")["metrics"] == result("runs/probe/folds-final")["metrics"]
    check_refused(capsys, ["predict", "run=runs/finetune/folds", "ensemble=true", "text=a"], "ensemble", "final=true")
    assert lmtransfer("report", "runs") == 0
    rows = {row["run"]: row for row in json.loads(Path("runs/report/report.json").read_text())["rows"]}
    assert "final" not in rows
    assert "models trained on 72 examples" in json.dumps(rows["folds"])


@pytest.mark.slow
def test_the_table_of_a_sweep_says_what_was_not_measured(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *LABELS, *TRAINED[:3], "train.epochs=1", "final=true", "name=sweep"]
    assert lmtransfer(*words, "-m", "seed=0,1") == 0
    said = capsys.readouterr().out
    for seed in (0, 1):
        assert [line for line in said.splitlines() if f"seed={seed} " in line and "not measured" in line]

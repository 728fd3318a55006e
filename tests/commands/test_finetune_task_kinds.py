"""Every kind of task from the command line: trained, evaluated, inspected, on files that a user might have."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from fakes.task_files import FILES, SPLITS, make_task_world
from fakes.transfer_files import NEGATIVE, OTHER, POSITIVE, lmtransfer, result
from support.html_pages import parsed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_task_world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer("finetune", *FILES["text_pair"], *QUICK[:3], "train.epochs=1", "name=first") == 0
    return folder


QUICK = [
    "hardware=exact",
    "init=runs/pretrain/base",
    "baseline=null",
    "train.epochs=10",
    "optimizer.learning_rate=0.02",
]
METRICS = {
    "text_pair": "accuracy",
    "multi_label": "micro_f1",
    "regression": "pearson",
    "tagging": "accuracy",
    "span_qa": "f1",
}


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "multi_label"])
def test_each_kind_is_learnt_and_scored(kind: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *FILES[kind], *QUICK, "transfer.pooling=mean", "name=ft") == 0
    found = result("runs/finetune/ft")
    assert found["main_metric"] == METRICS[kind]
    assert found["metrics"][METRICS[kind]] > 0.8
    assert found["num_scored"] == SPLITS["dev"]
    assert (found["majority"] is None) == (kind == "span_qa")
    if kind != "span_qa":
        assert found["majority"][METRICS[kind]] < found["metrics"][METRICS[kind]]
    capsys.readouterr()
    assert lmtransfer("evaluate", "run=runs/finetune/ft", "split=dev", "hardware=exact") == 0
    again = result("runs/evaluate/finetune-ft-dev")
    assert again["metrics"] == pytest.approx(found["metrics"], abs=1e-6)
    assert again["labels"] == found["labels"]


@pytest.mark.parametrize("kind", FILES)
def test_probing_and_caching_give_the_same(kind: str, world: Path) -> None:
    words = [*FILES[kind], *QUICK[:3], "train.epochs=1", "transfer.layers=mix", "name=probe"]
    assert lmtransfer("probe", *words) == 0
    found = result("runs/probe/probe")
    assert 0 <= found["metrics"][METRICS[kind]] + 1 <= 2
    assert lmtransfer("evaluate", "run=runs/probe/probe", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(found["metrics"], abs=1e-5)


@pytest.mark.parametrize("kind", FILES)
def test_tasks_can_be_inspected(kind: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("inspect", *FILES[kind], "init=runs/pretrain/base") == 0
    said = capsys.readouterr().out
    for split, num in SPLITS.items():
        assert f"split {split}" in said
        assert str(num) in said
    if kind == "span_qa":
        assert "reachable" in said
        assert "windows" in said


def test_a_finetuned_run_is_a_start_for_another_task_and_scores_no_other_kind(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FILES["tagging"], "hardware=exact", "train.epochs=1", "init=runs/finetune/first", "name=second"]
    assert lmtransfer("finetune", *words) == 0
    assert result("runs/finetune/second")["task"] == "tagging"
    assert lmtransfer("evaluate", "run=runs/finetune/first", *FILES["tagging"], "split=dev", "name=x") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/finetune/first", "text_pair (a classification task)", "tagging")), said


def test_sets_of_labels_are_predicted_reported_and_compared(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FILES["multi_label"], *QUICK[:3], "optimizer.learning_rate=0.02", "transfer.pooling=mean"]
    assert lmtransfer("finetune", *words, "train.epochs=10", "seeds=2", "control=true", "name=sets") == 0
    found = result("runs/finetune/sets")
    assert found["labels"] == ["kind", "unkind"]
    assert {"micro_f1", "macro_f1", "average_precision", "loss"} == found["metrics"].keys()
    assert any(part["source"] == "examples" for part in found["difference"]["parts"])
    assert found["metrics"]["micro_f1"] > max(0.8, found["majority"]["micro_f1"])
    run = "run=runs/finetune/sets/seed-0"
    assert lmtransfer("evaluate", run, "split=dev", "hardware=exact", "name=again") == 0
    of_seed = result("runs/finetune/sets/seed-0")["metrics"]
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(of_seed, abs=1e-6)
    capsys.readouterr()
    texts = {"good film bad": ["kind", "unkind"], "good film good": ["kind"]}
    for ensemble, (text, labels) in zip(("false", "true"), texts.items(), strict=True):
        assert lmtransfer("predict", "run=runs/finetune/sets", f"text={text}", f"ensemble={ensemble}") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["labels"] == labels
        assert {name for name, chance in answer["probabilities"].items() if chance > 0.5} == set(labels)
    assert lmtransfer("report", "runs/") == 0
    page = parsed(Path("runs/report/report.html").read_text())
    scores = next(table for table in page.all("table") if " recall " in table.words)
    assert all(label in scores.words for label in found["labels"])
    assert lmtransfer("compare", "runs/finetune/sets", "runs/finetune/sets/control") == 0


def test_choices_are_learnt_scored_and_predicted(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files in COPA's format, written here: the kind choice is right."""
    rng = random.Random(0)
    for split, num in {"train": 120, "val": 40, "test": 5}.items():
        rows = []
        for i in range(num):
            choices = [rng.choice(POSITIVE[:2]), rng.choice(NEGATIVE[:2])][:: 1 if i % 2 else -1]
            row = {"premise": rng.choice(OTHER), "choice1": choices[0], "choice2": choices[1], "question": "effect"}
            rows.append(row if split == "test" else {**row, "label": 0 if i % 2 else 1})
        path = Path(f"data/copa/{split}.jsonl")
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = ["task=copa", "data_root=data", *QUICK, "transfer.pooling=mean", "name=ft"]
    assert lmtransfer("finetune", *words) == 0
    found = result("runs/finetune/ft")
    assert (found["num_scored"], found["majority"]) == (40, {"accuracy": 0.5})
    assert found["metrics"]["accuracy"] > 0.8
    assert lmtransfer("evaluate", "run=runs/finetune/ft", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(found["metrics"], abs=1e-6)
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/finetune/ft", "split=test", "hardware=exact") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 5
    assert all(answer["answer"] == answer["choices"][answer["choice"]] for answer in answers)
    assert lmtransfer("predict", "run=runs/finetune/ft", "text=film [SEP] bad [SEP] good") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == ["bad", "good"][answer["choice"]]
    assert lmtransfer("inspect", "task=copa", "data_root=data", "init=runs/pretrain/base") == 0
    assert lmtransfer("report", "runs/") == 0
    assert "choice 2" in Path("runs/report/report.html").read_text()


def test_languages_have_scores_of_their_own(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files in XNLI's format, written here; the words of the second language have not been seen in training."""
    rng = random.Random(0)

    def pairs(num: int, kind: list[str], unkind: list[str]) -> list[tuple[str, str, str]]:
        labels = {"entailment": kind, "contradiction": unkind, "neutral": OTHER[:2]}
        return [
            (" ".join(rng.choices(OTHER, k=3)), rng.choice(words), label)
            for _ in range(num)
            for label, words in labels.items()
        ]

    train = [f"{a}\t{b}\t{label}" for a, b, label in pairs(40, POSITIVE[:2], NEGATIVE[:2])]
    rows = [("en", row) for row in pairs(10, POSITIVE[:2], NEGATIVE[:2])]
    rows += [("xx", row) for row in pairs(10, NEGATIVE[:2], POSITIVE[:2])]
    folder = Path("data/xnli")
    folder.mkdir()
    (folder / "multinli.train.en.tsv").write_text("\n".join(["premise\thypo\tlabel", *train]) + "\n")
    lines = [f"{language}\t{label}\t{a}\t{b}" for language, (a, b, label) in rows]
    for split in ("dev", "test"):
        content = "\n".join(["language\tgold_label\tsentence1\tsentence2", *lines]) + "\n"
        (folder / f"xnli.{split}.tsv").write_text(content)
    words = ["task=xnli", "task.languages=[en,xx]", "data_root=data", *QUICK, "transfer.pooling=mean"]
    assert lmtransfer("finetune", *words, "seeds=2", "name=ft") == 0
    found = result("runs/finetune/ft")
    english, other = (found["metrics"][f"language/{code}/accuracy"] for code in ("en", "xx"))
    assert english > 0.8 > other
    assert found["mean"] == pytest.approx((english + other) / 2)
    assert "accuracy by language: en" in capsys.readouterr().out
    assert lmtransfer("evaluate", "run=runs/finetune/ft", "split=test", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"]["language/en/accuracy"] == pytest.approx(english)
    assert lmtransfer("report", "runs/") == 0
    assert "accuracy by language: en" in Path("runs/report/report.html").read_text()
    assert list(Path("runs/report/figures").glob("languages-*.svg"))

"""Every kind of task, and every task with a training set in the data folder, from the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from fakes.task_files import FILES, SPLITS, make_task_world
from fakes.transfer_files import MODEL, NEGATIVE, OTHER, POSITIVE, lmtransfer, result
from omegaconf import OmegaConf
from support.html_pages import parsed
from support.nodes import build

from lmtransfer.data.files import find_file, open_binary, read_lines
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tokenizers.trainers import SentencePieceTrainer


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


@pytest.mark.parametrize("kind", ["tagging", "span_qa"])
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_choices_are_learnt_scored_and_predicted(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are in COPA's format; the kind choice is correct."""
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


@pytest.mark.slow
def test_languages_have_scores_of_their_own(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are in XNLI's format; the words of the second language do not occur in training."""
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


#: Overrides and scored split of each task; tasks without a training set use another one.
TASKS = {
    "sst2": (["task=sst2"], "dev"),
    "sst5": (["task=sst5"], "dev"),
    "mrpc": (["task=mrpc"], "test"),
    "rte": (["task=rte"], "dev"),
    "wnli": (["task=wnli"], "dev"),
    "stsb": (["task=stsb"], "test"),
    "mnli": (["task=lingnli"], "mnli_subset_dev"),
    "snli": (["task=nli_cad"], "test"),
    "squad": (["task=squad", "task.files.train=squadshifts/reddit_v1.0.json", "task.files.dev=part.json"], "dev"),
    "wnut17": (["task=wnut17"], "test"),
    "ud_ewt": (["task=ud_ewt"], "test"),
}


@pytest.fixture(scope="module")
def base(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining run with random weights and a tokenizer trained on real text."""
    folder = tmp_path_factory.mktemp("world")
    path = find_file(data_root / "sst2" / "train.tsv")
    assert path is not None
    lines = [line for number, line in read_lines(path) if 1 < number < 5000]
    run = RunDirectory.create(folder / "runs", "pretrain", "base")
    tokenizer = SentencePieceTrainer(kind="bpe", vocab_size=1024).train(iter(lines), run.tokenizer)
    tokenizer.save(run.tokenizer)
    model = {**MODEL, "max_length": 128}
    run.write_config({"model": model, "seed": 0})
    torch.manual_seed(1)
    encoder = build(OmegaConf.create(model), vocab_size=tokenizer.vocab_size)
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    run.checkpoints.save("last", tensors={"model": weights}, state={"step": 1})
    return run.path


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "rte" else [pytest.mark.slow]) for name in TASKS]
)
def test_it_is_trained_evaluated_and_predicted(
    name: str, base: Path, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    words, split = TASKS[name]
    if name == "squad":  # only a few hundred questions, because they are read three times
        path = find_file(data_root / "squad" / "dev-v1.1.json")
        assert path is not None
        with open_binary(path) as file:
            articles = json.load(file)["data"]
        part = tmp_path / "part.json"
        part.write_text(json.dumps({"version": "1.1", "data": articles[:1]}))
        words = [word.replace("part.json", str(part)) for word in words]
    quick = ["task.num_train=60", "train.steps=3", "hardware=exact", "transfer.pooling=mean", "name=ft"]
    if name == "wnli":  # too small for a subset
        quick.remove("task.num_train=60")
    assert lmtransfer("finetune", *words, f"init={base}", f"data_root={data_root}", f"split={split}", *quick) == 0
    found = result("runs/finetune/ft")
    assert found["num_scored"] > 60
    assert found["main_metric"] in found["metrics"]
    evaluate = ["run=runs/finetune/ft", f"split={split}", "hardware=exact", "name=again"]
    assert lmtransfer("evaluate", *evaluate) == 0
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(found["metrics"], abs=1e-5)
    assert lmtransfer("predict", "run=runs/finetune/ft", f"split={split}", "output=answers.jsonl") == 0
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(answers) == found["num_scored"]

"""Every task that has a train set in the data folder: trained, evaluated and predicted from the command line on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes.transfer_files import MODEL, lmtransfer, result
from omegaconf import OmegaConf

from lmtransfer.config.component import build
from lmtransfer.data.files import find_file, open_binary, read_lines
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tokenizers.trainers import SentencePieceTrainer

#: The words of each task and the split that is scored; stand-ins where a task has no train set of its own there.
TASKS = {
    "sst2": (["task=sst2"], "dev"),
    "sst5": (["task=sst5"], "dev"),
    "cola": (["task=cola"], "dev"),
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
#: One of a kind: classification of a text and of a pair, regression, tagging.
FAST = ("cola", "rte", "stsb", "wnut17")


@pytest.fixture(scope="module")
def base(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as pretraining leaves one, of random weights, with a tokenizer of real text."""
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
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in TASKS]
)
def test_it_is_trained_evaluated_and_predicted(
    name: str, base: Path, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    words, split = TASKS[name]
    if name == "squad":  # a few hundred of the questions, which are read three times
        path = find_file(data_root / "squad" / "dev-v1.1.json")
        assert path is not None
        with open_binary(path) as file:
            articles = json.load(file)["data"]
        part = tmp_path / "part.json"
        part.write_text(json.dumps({"version": "1.1", "data": articles[:1]}))
        words = [word.replace("part.json", str(part)) for word in words]
    quick = ["task.num_train=60", "train.steps=3", "hardware=exact", "transfer.pooling=mean", "name=ft"]
    if name == "wnli":  # too small to take a part of
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

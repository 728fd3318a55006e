"""A model, an objective and a task from outside the package: one class and one YAML each, and no edit elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmtransfer import cli

ENCODER = '''
"""Each token with the mean of its sequence."""

import torch
from torch import nn

from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead


class BagEncoder(Encoder):
    """Token vectors, and the mean of the sequence through a dense layer."""

    attention = "bidirectional"
    family_head = FamilyHead(token="mean")

    def __init__(self, *, vocab_size: int, dim: int, max_length: int = 64) -> None:
        super().__init__(dim=dim, num_layers=1, max_length=max_length, vocab_size=vocab_size)
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.dense = nn.Linear(dim, dim)

    def forward(self, batch, carry=None, reads=None):
        embedded_TD = self.token_embedding(batch.tokens_T)
        lengths_B = torch.tensor(batch.lengths, device=embedded_TD.device)
        which_T = torch.repeat_interleave(torch.arange(len(lengths_B), device=lengths_B.device), lengths_B)
        sums_BD = embedded_TD.new_zeros(len(lengths_B), self.dim).index_add_(0, which_T, embedded_TD)
        hidden_TD = embedded_TD + self.dense(sums_BD / lengths_B[:, None])[which_T]
        return EncoderOutput(layers=(embedded_TD, hidden_TD if reads is None else hidden_TD[reads.positions_N]))
'''

OBJECTIVE = '''
"""Whether a token occurs again in its row."""

import torch
from torch import nn

from lmtransfer.objectives.base import Objective


class Repeats(Objective):
    """Tells of each token whether it occurs more than once in its row."""

    name = "repeats"
    directions = ("bidirectional",)
    reads = "all"

    def bind(self, encoder):
        super().bind(encoder)
        self.classifier = nn.Linear(encoder.dim, 1)

    def count(self, batch):
        return batch.num_tokens

    def losses(self, batch, encode):
        logits_T = self.classifier(encode(batch.inputs, batch.reads).last[: batch.num_tokens])[:, 0].float()
        rows = batch.inputs.tokens_T[: batch.num_tokens].split(list(batch.inputs.lengths[: batch.inputs.num_real]))
        often_T = torch.cat([(row[:, None] == row).sum(0) > 1 for row in rows]).float()
        total = nn.functional.binary_cross_entropy_with_logits(logits_T, often_T, reduction="sum")
        return self.loss_and_accuracy(total, ((logits_T > 0) == (often_T > 0)).sum().float(), batch.num_tokens)
'''

TASK = '''
"""Lines such as ``boat: it floats on water``."""

from pathlib import Path

from lmtransfer.tasks.text.classification import Classification
from lmtransfer.tasks.text.example import TextExample


class Riddles(Classification):
    """What is meant?"""

    splits = ("train", "dev")

    def __init__(self, *, name: str, labels: list[str], folder: str, num_train: int | None = None) -> None:
        super().__init__(name=name, labels=labels, num_train=num_train)
        self.folder = folder

    def examples(self, split):
        lines = (Path(self.folder) / f"{split}.txt").read_text().splitlines()
        pairs = [line.split(": ", 1) for line in lines]
        return [
            TextExample(id=f"{split}:{row}", text=text, label=self.labels.index(label))
            for row, (label, text) in enumerate(pairs)
        ]
'''

CONFIGS = {
    "model/bag.yaml": "_target_: sketches.encoder.BagEncoder\ndim: 16\nmax_length: 64\n",
    "objective/repeats.yaml": (
        "defaults:\n  - rows: stream\n  - corruption: none\n  - _self_\n\nmax_length: 32\n"
        "losses:\n  repeats:\n    _target_: sketches.objective.Repeats\n    weight: 1.0\n"
    ),
    "task/riddles.yaml": (
        "_target_: sketches.task.Riddles\nname: riddles\nlabels: [boat, rain]\nfolder: riddles\nnum_train: null\n"
    ),
}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the classes, their configs and data, which is the current one; a run was pretrained in it."""
    folder = tmp_path_factory.mktemp("outside")
    package = folder / "sketches"
    package.mkdir()
    for name, text in (("__init__", ""), ("encoder", ENCODER), ("objective", OBJECTIVE), ("task", TASK)):
        (package / f"{name}.py").write_text(text)
    for name, text in CONFIGS.items():
        (folder / "configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "configs" / name).write_text(text)
    documents = [f"the boat lay on the shore number {number} all day while the rain fell" for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "riddles").mkdir()
    for split, count in (("train", 24), ("dev", 8)):
        kinds = ("boat: it floats on water", "rain: it falls from the sky")
        lines = [f"{kinds[row % 2]} {row}" for row in range(count)]
        (folder / "riddles" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("LMTRANSFER_ALLOW", "sketches")
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        _run(
            *("pretrain", "model=bag", "objective=repeats", "corpus=text", "corpus.path=text.txt", "name=base"),
            *("corpus.validation_fraction=0.2", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true"),
            *("train.steps=4", "train.seconds=null", "train.batch_tokens=128"),
        )
        yield folder
    torch.set_num_threads(threads)
    for module in [name for name in sys.modules if name.partition(".")[0] == "sketches"]:
        del sys.modules[module]


def _run(command: str, *words: str) -> None:
    status = cli.main([command, "-cd", "configs", *words])
    assert status in (0, None), f"{command} {' '.join(words)}: exit status {status}"


def _result(folder: Path, run: str) -> dict[str, object]:
    return json.loads((folder / "runs" / run / "result.json").read_text())


def test_pretrain(outside: Path) -> None:
    result = _result(outside, "pretrain/base")
    assert result["main_metric"] == "loss"
    assert set(result["metrics"]) >= {"loss", "repeats"}  # type: ignore[call-overload]


@pytest.mark.parametrize("command", ["probe", "finetune"])
def test_transfer_then_evaluate_and_predict(outside: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("train.epochs=2", "train.seconds=null", "learning_rates=null", "control=true")
    _run(command, "init=runs/pretrain/base", "task=riddles", "name=r", *short)
    assert _result(outside, f"{command}/r")["control"]
    _run("evaluate", f"run=runs/{command}/r", "split=dev", f"name={command}")
    assert _result(outside, f"evaluate/{command}")["metrics"] == _result(outside, f"{command}/r")["metrics"]
    capsys.readouterr()
    _run("predict", f"run=runs/{command}/r", "text=it floats on water")
    assert json.loads(capsys.readouterr().out.splitlines()[0])["label"] in ("boat", "rain")


def test_evaluate_the_pretraining(outside: Path) -> None:
    _run("evaluate", "run=runs/pretrain/base", "name=pretrained")
    scored = _result(outside, "evaluate/pretrained")["metrics"]
    assert scored["repeats"] == pytest.approx(_result(outside, "pretrain/base")["metrics"]["repeats"], rel=1e-5)  # type: ignore[index]


def test_inspect(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("inspect", "model=bag", "objective=repeats", "corpus=text", "corpus.path=text.txt", "tokenizer.vocab_size=60",
         "tokenizer.allow_fewer=true")  # fmt: skip
    assert "head of repeats" in capsys.readouterr().out
    _run("inspect", "task=riddles", "init=runs/pretrain/base")
    assert "task riddles, split dev" in capsys.readouterr().out


def test_export_and_report(outside: Path) -> None:
    _run("export", "run=runs/pretrain/base", "format=tensors", "to=exported")
    assert (outside / "exported" / "model.safetensors").is_file()
    _run("report", "runs", "to=report")
    page = (outside / "report" / "report.html").read_text()
    assert [name for name in ("bag", "repeats", "riddles") if name not in page] == []


def test_they_are_listed(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for group, name in (("models", "bag"), ("objectives", "repeats"), ("tasks", "riddles")):
        _run("list", group)
        assert name in capsys.readouterr().out

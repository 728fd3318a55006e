"""A small world for tests of probe, finetune and evaluate: labelled sentences and a run directory to start from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from support.nodes import build

from lmtransfer.cli import main
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tokenizers.trainers import SentencePieceTrainer
from lmtransfer.training.checkpoints import Checkpoints

POSITIVE = ["good", "great", "fine", "lovely", "superb"]
NEGATIVE = ["bad", "awful", "poor", "dull", "sad"]
OTHER = ["film", "story", "actor", "plot", "the", "a", "was", "very", "quite", "with"]
LABELS = ["negative", "positive"]
MODEL = {
    "_target_": "lmtransfer.models.bert.BertEncoder",
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 32,
    "max_length": 24,
    "dropout": 0.0,
}


def sentence(label: int, rng: random.Random) -> str:
    """A few words, one of which tells the label."""
    words = rng.choices(OTHER, k=rng.randint(2, 7))
    words.insert(rng.randint(0, len(words)), rng.choice(POSITIVE if label else NEGATIVE))
    return " ".join(words)


def write_split(path: Path, num: int, *, seed: int, values: tuple[str, str] = ("0", "1")) -> None:
    """A file of labelled sentences, two of five positive."""
    rng = random.Random(seed)
    rows = [(int(i % 5 < 2), i) for i in range(num)]
    lines = [f"{sentence(label, rng)}\t{values[label]}" for label, _ in rows]
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")


def make_world(folder: Path) -> None:
    """Labelled splits in ``data``, and in ``runs/pretrain/base`` a run as pretraining leaves one, of random weights."""
    data = folder / "data"
    data.mkdir()
    for seed, (split, num) in enumerate({"train": 120, "dev": 60, "test": 50}.items()):
        write_split(data / f"{split}.tsv", num, seed=seed)
    run = RunDirectory.create(folder / "runs", "pretrain", "base")
    lines = [line.partition("\t")[0] for line in (data / "train.tsv").read_text().splitlines()]
    tokenizer = SentencePieceTrainer(kind="bpe", vocab_size=64, allow_fewer=True).train(iter(lines), run.tokenizer)
    tokenizer.save(run.tokenizer)
    run.write_config({"model": MODEL, "seed": 0})
    torch.manual_seed(1)
    encoder = build(OmegaConf.create(MODEL), vocab_size=tokenizer.vocab_size)
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    weights["objectives.mlm.bias"] = torch.zeros(3)
    run.checkpoints.save("last", tensors={"model": weights}, state={"step": 1})


#: The task of that world, the settings that make a run quick, and those that make it exact.
#: What a run of masked tokens says of its objective, as far as transfer looks.
MASKED = {"losses": {"mlm": {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel"}}}
TASK = [
    "task=text_classification",
    "task.name=toy",
    "task.files={train: data/train.tsv, dev: data/dev.tsv, test: data/test.tsv}",
    "task.labels=[negative,positive]",
    "task.label_values=['0','1']",
    "task.text_column=sentence",
]
QUICK = [*TASK, "hardware=exact", "baseline=null"]  # counting words would take as long as the training
QUICK += ["init=runs/pretrain/base", "train.epochs=2", "optimizer.learning_rate=0.01"]


def train_from_base(made: Path, *words: str, name: str) -> list[str]:
    """Train a run in a world, and return the words that resume it in a copy: they name the base where it was made."""
    given = [word for word in words if not word.startswith("init=")]
    given += [f"init={made}/runs/pretrain/base", f"name={name}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
        assert lmtransfer(*given) == 0
    return [*given, "resume=true"]


@contextmanager
def killed_at_save(number: int) -> Iterator[None]:
    """Interrupt a training right after it has saved a checkpoint so many times."""
    saves, save = 0, Checkpoints.save

    def save_and_die(self: Checkpoints, name: str, **content: Any) -> Path:
        nonlocal saves
        saves += 1
        path = save(self, name, **content)
        if saves == number:
            raise KeyboardInterrupt
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_die)
        yield


def lmtransfer(*words: str) -> int:
    """Run a command line in this process."""
    return main(list(words))


def check_refused(capsys: pytest.CaptureFixture[str], words: Sequence[str], *names: str) -> None:
    """Check that a command line is refused in one message that has all these names."""
    capsys.readouterr()
    assert lmtransfer(*words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert all(name in said for name in names), said
    assert "Traceback" not in said


def weights_of(run: str | Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    """The tensors of a run's checkpoint."""
    return load_file(Path(run) / "checkpoints" / checkpoint / "model.safetensors")


def log_of(run: str | Path) -> list[dict[str, Any]]:
    """What a run has logged, without its times."""
    lines = (json.loads(line) for line in (Path(run) / "metrics.jsonl").open())
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "tokens_per_second")} for line in lines
    ]


def result(path: str | Path) -> dict[str, Any]:
    """The ``result.json`` of a run."""
    return json.loads((Path(path) / "result.json").read_text())

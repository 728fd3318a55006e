"""Tiny pretrainings in one folder for all tests of a process: runs that are trained once, and runs that are cut."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import lmtransfer, make_world, sentence
from safetensors.torch import load_file

from lmtransfer.training import loop

#: A run of ten steps on ``data/text.txt``; ``data/lines.txt`` has a sentence a line.
TINY = [
    *("pretrain", "experiment=null", "train.seconds=null", "train.steps=10", "model=bert_tiny", "model.dim=16"),
    *("model.num_heads=2", "model.hidden_dim=16", "model.num_layers=1", "model.max_length=32", "model.dropout=0.1"),
    *("objective=mlm", "objective.max_length=16", "corpus=text", "corpus.path=data/text.txt"),
    *("corpus.validation_fraction=0.2", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true"),
    *("train.batch_tokens=64", "hardware=exact", "train.log_every=1", "train.eval_every=4"),
]
WORDS = [*TINY, "phases=words_then_masked"]
#: Masks, rows and batches change; the losses stay.
GROWING = """
first: {share: 0.4, objective: {mask_prob: 0.4}}
second: {share: 0.2, objective: {max_length: 32}, train: {batch_tokens: 128}}
third: {share: 0.4, objective: {mask_prob: 0.2}, optimizer: {learning_rate: 0.01}}
"""

_numbers = itertools.count()
_trained: dict[tuple[str, ...], str] = {}
_folder: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not _folder:
        _folder.append(tmp_path_factory.mktemp("tiny"))
        _fill(_folder[0])
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(_folder[0])
        patch.setenv("LMTRANSFER_CACHE", str(_folder[0] / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        yield _folder[0]
    torch.set_num_threads(threads)


def _fill(folder: Path) -> None:
    make_world(folder)
    for name, seed, between in (("text", 0, " . "), ("lines", 0, ".\n"), ("other", 1, ".\n")):
        rng = random.Random(seed)
        documents = [between.join(sentence(k % 2, rng).capitalize() for k in range(6)) for _ in range(60)]
        (folder / f"data/{name}.txt").write_text(".\n\n".join(documents) + ".\n")
    (folder / "own/phases").mkdir(parents=True)
    (folder / "own/phases/growing.yaml").write_text(GROWING)


def without(words: list[str], *prefixes: str) -> list[str]:
    return [word for word in words if not word.startswith(prefixes)]


def new_name() -> str:
    return f"run{next(_numbers)}"


def trained(*words: str) -> str:
    """The name of the run of these words, which the first test that asks for it trains."""
    if words not in _trained:
        name = new_name()
        assert lmtransfer(*words, f"name={name}") == 0
        _trained[words] = name
    return _trained[words]


def cut(*words: str, after: int) -> str:
    """The name of a new run of these words, stopped in a step as Ctrl-C does."""
    name = new_name()
    with pytest.MonkeyPatch.context() as patch:
        taken = loop.Trainer._step

        def counted(self: loop.Trainer, steps: Any) -> str | None:
            patch.setattr(loop, "requested_stop", lambda: "Ctrl-C" if self.state.step == after else None)
            return taken(self, steps)

        patch.setattr(loop.Trainer, "_step", counted)
        assert lmtransfer(*words, f"name={name}") != 0
    assert len(records(name)) <= after
    return name


def assert_goes_on_exactly(*words: str, after: int) -> str:
    """A run that is cut and goes on is the uninterrupted one to the last bit; returns its name."""
    name = cut(*words, after=after)
    assert lmtransfer(*words, f"name={name}", "resume=true") == 0
    assert_same(trained(*words), name)
    return name


def records(run: str) -> list[dict[str, Any]]:
    """What was logged, without times."""
    lines = (Path("runs/pretrain") / run / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]


def saved(run: str, file: str = "model", checkpoint: str = "last") -> dict[str, torch.Tensor]:
    return load_file(Path("runs/pretrain") / run / "checkpoints" / checkpoint / f"{file}.safetensors")


def assert_same(one: str, other: str) -> None:
    folder = Path("runs/pretrain") / one
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors"))
    assert len(files) >= 5
    for file in files:
        first, second = (load_file(Path("runs/pretrain") / run / file) for run in (one, other))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first), file
    assert records(one) == records(other)

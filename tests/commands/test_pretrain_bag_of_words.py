"""Runs that also predict the words of a row: going on exactly, on other text, beside other objectives, on two ranks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import TASK, lmtransfer, make_world, sentence
from safetensors.torch import load_file

from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.training import loop

QUICK = [
    *("pretrain", "experiment=null", "train.seconds=null", "train.steps=6", "corpus=text", "corpus.path=data/text.txt"),
    *("corpus.validation_fraction=0.2", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true", "hardware=exact"),
    *("train.batch_tokens=96", "train.log_every=1", "train.eval_every=3", "objective.max_length=16", "model.dim=16"),
    *("model.num_heads=2", "model.hidden_dim=16", "model.num_layers=1", "model.max_length=32", "model.dropout=0.1"),
]
BOW = [*QUICK, "model=bert_tiny", "objective=mlm_bow"]
JOINED = "+objective.losses.bow={_target_: lmtransfer.objectives.word_vectors.BagOfWords}"


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("words")
    make_world(folder)
    for name, seed in (("text", 0), ("other", 1)):
        rng = random.Random(seed)
        documents = ["\n".join(sentence((k + seed) % 2, rng) + "." for k in range(6)) for _ in range(60)]
        (folder / f"data/{name}.txt").write_text("\n\n".join(documents) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        assert lmtransfer(*BOW, "name=whole") == 0
        yield
    torch.set_num_threads(threads)


def saved(run: str) -> dict[str, torch.Tensor]:
    return load_file(Path("runs/pretrain") / run / "checkpoints/last/model.safetensors")


def metrics(run: str) -> dict[str, Any]:
    return json.loads((Path("runs") / run / "result.json").read_text())["metrics"]


def test_gone_on_with_it_is_the_same_to_the_last_bit() -> None:
    taken = loop.Trainer._step
    with pytest.MonkeyPatch.context() as patch:

        def counted(self: loop.Trainer, steps: Any) -> str | None:
            patch.setattr(loop, "requested_stop", lambda: "Ctrl-C" if self.state.step == 4 else None)
            return taken(self, steps)

        patch.setattr(loop.Trainer, "_step", counted)
        assert lmtransfer(*BOW, "name=cut") != 0
    assert lmtransfer(*BOW, "name=cut", "resume=true") == 0
    whole, cut = saved("whole"), saved("cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_what_words_weigh_is_the_runs_on_any_text() -> None:
    information = saved("whole")["objectives.bow.information"]
    assert len(set(information.tolist())) > 10
    assert lmtransfer("evaluate", "run=runs/pretrain/whole", "name=again", "hardware=exact") == 0
    assert metrics("evaluate/again")["bow"] == pytest.approx(metrics("pretrain/whole")["bow"], rel=0.05)
    other = ["corpus=text", "corpus.path=data/other.txt", "corpus.validation_fraction=0.2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmtransfer.objectives.word_vectors.BagOfWords.observe", None)  # not asked for
        assert lmtransfer("evaluate", "run=runs/pretrain/whole", *other, "name=other", "hardware=exact") == 0
    assert 0 < metrics("evaluate/other")["bow"] < 20


def test_the_run_is_transferred_and_exported() -> None:
    words = [*TASK, "init=runs/pretrain/whole", "hardware=exact", "train.epochs=1", "name=ft"]
    assert lmtransfer("finetune", *words) == 0
    assert lmtransfer("export", "run=runs/pretrain/whole", "to=out") == 0


def test_another_run_goes_on_with_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in QUICK if not word.startswith(("model", "tokenizer"))]
    capsys.readouterr()
    more = ["objective=mlm_bow", "init=runs/pretrain/whole", "corpus.path=data/other.txt", "train.steps=1", "name=on"]
    words = [word for word in words if not word.startswith(("corpus.path", "train.steps"))]
    assert lmtransfer(*words, *more) == 0
    assert str(InheritedHeads(("mlm", "bow"), (), ())) in capsys.readouterr().err
    assert not torch.equal(*(saved(run)["objectives.bow.information"] for run in ("whole", "on")))  # of its own text


@pytest.mark.parametrize(
    ("model", "objective"),
    [("electra_laptop", "rtd"), ("gpt_laptop", "lm"), ("xlnet_laptop", "plm"), ("albert_laptop", "mlm_sop")],
)
def test_it_joins_any_objective(model: str, objective: str) -> None:
    words = [*QUICK, f"model={model}", f"objective={objective}", JOINED, f"name={model}", "train.steps=2"]
    words.remove("train.steps=6")
    assert lmtransfer(*words) == 0
    found = metrics(f"pretrain/{model}")
    assert {"bow", objective.rpartition("_")[2]} <= found.keys()


def test_it_learns_the_words_of_a_phase_too() -> None:
    assert lmtransfer(*BOW, "phases=words_then_masked", "name=phases") == 0
    assert torch.equal(saved("phases")["objectives.bow.information"], saved("whole")["objectives.bow.information"])

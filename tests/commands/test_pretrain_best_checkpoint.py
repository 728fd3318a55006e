"""Which checkpoint of a pretraining run is its best."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fakes.transfer_files import lmtransfer, sentence

from lmtransfer.pretraining.data import PretrainingData

TINY = ["model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=48"]
TINY += ["tokenizer.vocab_size=96", "tokenizer.allow_fewer=true", "objective.max_length=24"]
QUICK = ["experiment=null", "corpus=text", "corpus.path=text.txt", "hardware=exact", "cache_dir=cache"]
QUICK += ["train.steps=6", "train.eval_every=2", "train.batch_tokens=192", "name=run"]
RTD = ["model=electra_small", "objective=rtd", "model.embedding_dim=8", "objective.losses.rtd.generator_size=0.5"]


@pytest.mark.parametrize(
    ("words", "best_step"), [(RTD, 4), (["model=bert_tiny", "objective=mlm"], 6)], ids=["rtd", "mlm"]
)
def test_electra_is_chosen_by_its_discriminator_and_others_by_the_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], best_step: int
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    documents = [" . ".join(sentence(k % 2, rng) for _ in range(6)) for k in range(60)]
    Path("text.txt").write_text("\n\n".join(documents) + "\n")
    evaluations = iter(
        [{"loss": total, "rtd": rtd, "mlm": total} for total, rtd in ((30.0, 0.5), (29.0, 0.3), (20.0, 0.4))]
    )
    monkeypatch.setattr(PretrainingData, "validate", lambda *_, **__: next(evaluations))
    assert lmtransfer("pretrain", *QUICK, *words, *TINY) == 0
    state: Any = json.loads(Path("runs/pretrain/run/checkpoints/best/state.json").read_text())
    assert state["step"] == best_step

"""Tiny runs of each kind of task, and a pretrained one that fills masks, as the commands leave them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.transfer_files import NEGATIVE, OTHER, POSITIVE, QUICK, lmtransfer, make_world

TINY = ["model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "tokenizer.vocab_size=32"]
TINY += ["corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.3", "train.seconds=null", "train.steps=2"]
TINY += ["train.batch_tokens=128", "objective.max_length=16", "cache_dir=cache"]
FROM_BASE = [
    "hardware=exact",
    "baseline=null",
    "init=runs/pretrain/base",
    "train.epochs=2",
    "optimizer.learning_rate=0.01",
]

SPANS = [f"task.files.{split}=data/questions_{split}.json" for split in ("train", "dev")]
SPANS += ["+task.files.test=data/questions_test.json", "task.stride=4", "task.max_question_tokens=6"]


def make_task_runs(folder: Path) -> Path:
    """Runs in ``folder``: ``single`` of two seeds, ``pair``, ``spans``, ``tags``, and a pretrained ``bert``."""
    make_world(folder)
    data = folder / "data"
    for split, num in (("train", 40), ("dev", 20), ("test", 15)):
        (data / f"pairs_{split}.tsv").write_text(_pairs(num, hidden=split == "test"))
        (data / f"questions_{split}.json").write_text(_questions(num, hidden=split == "test"))
        (data / f"tags_{split}.conll").write_text(_sentences(num))
    rng = random.Random(0)
    documents = ["\n".join(" ".join(rng.choices(OTHER, k=9)) for _ in range(12)) for _ in range(12)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)

        def files(kind: str, suffix: str) -> str:
            splits = ", ".join(f"{split}: data/{kind}_{split}.{suffix}" for split in ("train", "dev", "test"))
            return f"task.files={{{splits}}}"

        def finetune(name: str, *words: str) -> None:
            assert lmtransfer("finetune", *FROM_BASE, *words, f"name={name}") == 0

        assert lmtransfer("finetune", *QUICK, "transfer.pooling=mean", "seeds=2", "name=single") == 0
        finetune("pair", "task=rte", files("pairs", "tsv"), "transfer.pooling=mean")
        finetune("spans", "task=squad2", *SPANS)
        finetune("tags", "task=tagging", files("tags", "conll"))
        assert lmtransfer("pretrain", "experiment=laptop", *TINY, "hardware=exact", "name=bert") == 0
    torch.set_num_threads(threads)
    return folder


def _pairs(num: int, *, hidden: bool = False) -> str:
    rng = random.Random(num)
    lines = ["index\tsentence1\tsentence2" + ("" if hidden else "\tlabel")]
    for number in range(num):
        first, second = rng.choice(POSITIVE + NEGATIVE), rng.choice(OTHER)
        label = "entailment" if first in POSITIVE else "not_entailment"
        lines.append(f"{number}\t{first} film\t{second} plot" + ("" if hidden else f"\t{label}"))
    return "\n".join(lines) + "\n"


def _questions(num: int, *, hidden: bool = False) -> str:
    rng = random.Random(num)
    asked = []
    for number in range(num):
        words = rng.choices(OTHER, k=30)
        passage, answer = " ".join(words), words[rng.randrange(30)]
        question: dict[str, Any] = {"id": f"q{number}", "question": "what was good"}
        if not hidden:
            impossible = number % 3 == 0
            gold = [] if impossible else [{"text": answer, "answer_start": passage.index(answer)}]
            question |= {"is_impossible": impossible, "answers": gold}
        asked.append({"context": passage, "qas": [question]})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": asked}]})


def _sentences(num: int) -> str:
    rng = random.Random(num)
    sentences = [rng.choices(POSITIVE + OTHER, k=rng.randint(1, 20)) for _ in range(num)]
    return "\n".join("".join(f"{word}\t{'P' if word in POSITIVE else 'O'}\n" for word in words) for words in sentences)

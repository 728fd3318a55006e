"""Made-up data in the formats of SST-2 and SQuAD; nothing can be learned from it, which does not affect the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..bench.made_up import sentences


def write_tasks(folder: Path, *, tiny: bool) -> Path:
    """Write both data sets to the places where the tasks look for them.

    Args:
        folder: the data folder.
        tiny: whether only a few examples are needed.

    Returns:
        The folder.
    """
    train, dev = (200, 40) if tiny else (8000, 8000)
    for seed, (name, count) in enumerate({"train": train, "dev": dev}.items(), start=1):
        _write(folder / "sst2" / f"{name}.tsv", _sst2(count, seed=seed))
        _write(folder / "squad" / f"{name}-v1.1.json", json.dumps(_squad(count // 4, seed=seed + 2)))
    return folder


def _sst2(count: int, *, seed: int) -> str:
    rows = (f"{sentence}\t{number % 2}\n" for number, sentence in enumerate(sentences(count, seed=seed)))
    return "sentence\tlabel\n" + "".join(rows)


def _squad(count: int, *, seed: int, sentences_per_passage: int = 6) -> dict[str, Any]:
    """Build passages of six sentences, each with a question whose answer is two words of the third sentence."""
    texts = sentences(count * (sentences_per_passage + 1), seed=seed)
    paragraphs = []
    for number in range(count):
        question, *passage = texts[number * (sentences_per_passage + 1) :][: sentences_per_passage + 1]
        context = " ".join(passage)
        answer = " ".join(passage[2].rstrip(".").split()[1:3])
        start = context.index(passage[2]) + passage[2].index(" ") + 1
        question_entry = {
            "id": f"{seed}-{number}",
            "question": " ".join(question.rstrip(".").split()[:12]) + "?",
            "answers": [{"text": answer, "answer_start": start}],
        }
        paragraphs.append({"context": context, "qas": [question_entry]})
    return {"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""Files of every kind of task that a user might have, and the words that name them on the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fakes.transfer_files import NEGATIVE, OTHER, POSITIVE, make_world

SPLITS = {"train": 120, "dev": 40, "test": 30}
FILES = {
    "text_pair": ["task=text_pair", *(f"task.{split}=data/pairs_{split}.tsv" for split in SPLITS)],
    "multi_label": ["task=multi_label", *(f"task.{split}=data/sets_{split}.jsonl" for split in SPLITS)],
    "regression": ["task=regression", *(f"task.{split}=data/scores_{split}.csv" for split in SPLITS)],
    "tagging": ["task=tagging", *(f"task.files.{split}=data/tags_{split}.conll" for split in SPLITS)],
    "span_qa": [
        "task=span_qa",
        *(f"task.{split}=data/questions_{split}.jsonl" for split in SPLITS),
        "task.stride=4",
        "task.max_question_tokens=6",
    ],
}


def make_task_world(folder: Path) -> None:
    """``make_world``, and a file of each kind and split in ``data``."""
    make_world(folder)
    for seed, (split, num) in enumerate(SPLITS.items()):
        rng = random.Random(seed)
        _write_pairs(folder / "data" / f"pairs_{split}.tsv", num, rng)
        _write_sets(folder / "data" / f"sets_{split}.jsonl", num, rng)
        _write_scores(folder / "data" / f"scores_{split}.csv", num, rng)
        _write_tags(folder / "data" / f"tags_{split}.conll", num, rng)
        _write_questions(folder / "data" / f"questions_{split}.jsonl", num, rng)


def _write_pairs(path: Path, num: int, rng: random.Random) -> None:
    """The second text tells alone whether the pair is alike."""
    rows = ["text1\ttext2\tlabel"]
    for i in range(num):
        rows.append(
            f"{rng.choice(OTHER)} film\t{rng.choice(POSITIVE if i % 2 else NEGATIVE)}\t{'same' if i % 2 else 'other'}"
        )
    path.write_text("\n".join(rows) + "\n")


def _write_sets(path: Path, num: int, rng: random.Random) -> None:
    """A kind word gives one label, an unkind word another; many texts have both, some have none."""
    rows = []
    for _ in range(num):
        words = rng.choices(POSITIVE[:2] + NEGATIVE[:2] + OTHER[:2], k=3)
        kinds = {"kind": POSITIVE, "unkind": NEGATIVE}
        rows.append({"text": " ".join(words), "labels": [k for k, own in kinds.items() if set(own) & set(words)]})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def _write_scores(path: Path, num: int, rng: random.Random) -> None:
    """How many words are kind."""
    rows = ["text,score"]
    for _ in range(num):
        words = rng.choices(POSITIVE[:2] + NEGATIVE[:2], k=4)
        rows.append(f'"{" ".join(words)}",{sum(word in POSITIVE for word in words) / 4}')
    path.write_text("\n".join(rows) + "\n")


def _write_tags(path: Path, num: int, rng: random.Random) -> None:
    """Kind words and unkind ones are tagged."""
    lines = []
    for _ in range(num):
        for word in rng.choices(POSITIVE + NEGATIVE + OTHER, k=rng.randint(2, 30)):
            tag = "GOOD" if word in POSITIVE else "BAD" if word in NEGATIVE else "O"
            lines.append(f"{word}\t{tag}")
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


def _write_questions(path: Path, num: int, rng: random.Random) -> None:
    """The answer is the kind word of the passage, which is longer than a window."""
    rows = []
    for i in range(num):
        words = rng.choices(OTHER, k=rng.randint(3, 12))
        words.insert(rng.randint(0, len(words)), rng.choice(POSITIVE))
        context = " ".join(words)
        answer = next(word for word in words if word in POSITIVE)
        gold = [{"text": answer, "start": context.index(answer)}]
        rows.append({"id": f"q{i}", "question": "which", "context": context, "answers": gold})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")

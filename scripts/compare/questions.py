"""A part of a SQuAD file, small enough to be answered several times on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

from lmtransfer.data.files import find_file, open_binary
from lmtransfer.randomness import permutation


def write_part(source: Path, target: Path, *, num_questions: int) -> int:
    """Paragraphs drawn at random, whole and always the same ones, until there are enough questions.

    Args:
        source: in SQuAD's format; may end in .gz, .xz or .zst on disk.
        target: file to write.
        num_questions: at least so many, if there are.

    Returns:
        How many there are.

    Raises:
        SystemExit: the source is not there.
    """
    found = find_file(source)
    if found is None:
        raise SystemExit(f"no file {source}: give the folder that holds it by --data or LMTRANSFER_DATA")
    with open_binary(found) as file:
        articles = json.load(file)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    chosen, count = [], 0
    for place in permutation(len(paragraphs), 0, "questions"):
        if count >= num_questions:
            break
        chosen.append(paragraphs[place])
        count += len(chosen[-1]["qas"])
    target.parent.mkdir(parents=True, exist_ok=True)
    data = [{"title": "part", "paragraphs": chosen}]
    target.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return count

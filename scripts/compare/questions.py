"""A part of a SQuAD file that is small enough to be answered several times on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

from lmtransfer.data.files import find_file, open_binary
from lmtransfer.randomness import permutation


def write_part(source: Path, target: Path, *, num_questions: int) -> int:
    """Write whole paragraphs, drawn at random but always the same ones, until there are enough questions.

    Args:
        source: file in SQuAD's format; on disk its name may end in .gz, .xz or .zst.
        target: file to write.
        num_questions: the lowest number of questions, if the source has that many.

    Returns:
        The number of questions written.

    Raises:
        SystemExit: the source does not exist.
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

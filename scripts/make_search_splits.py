"""Make the held-out parts on which recipes are chosen, only from the training sets of SST-2, STS-B and python_docs.

    python scripts/make_search_splits.py <data_root> <folder>

SST-2: 2,000 sentences are held out with all their phrases; phrases that belong to several sentences are left out.
STS-B: 1,000 pairs, none of whose sentences is in a training pair. python_docs: the modules of 30 % of the examples. Dev
and test sets are not read. Use them for instance like this:

    lmtransfer finetune task=sst2 data_root=<folder> 'task.files.train=sst2/train.tsv' 'task.files.dev=sst2/dev.tsv' ...
    lmtransfer finetune task=text_classification task.train=<folder>/python_docs/train.jsonl \
        task.dev=<folder>/python_docs/dev.jsonl task.num_train=100 task.dev_from_train=null ...
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from lmtransfer.data.corpora.libraries import LIBRARIES
from lmtransfer.data.files import find_file, open_binary
from lmtransfer.tasks.text.example import sentences_of
from lmtransfer.tasks.text.python_docs import PythonDocsTask

SEED = 1722


def _rows(path: Path) -> tuple[str, list[list[str]]]:
    """The header line and the rows of a TSV file without quoting, plain or .xz."""
    found = find_file(path)
    if found is None:
        sys.exit(f"{path}: there is no such file, plain or packed")
    with open_binary(found) as lines:
        head, *rest = (line.decode().rstrip("\r\n") for line in lines)
    return head, [line.split("\t") for line in rest]


def _write(folder: Path, name: str, head: str, rows: Sequence[Sequence[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([head, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    print(f"{folder / name}: {len(rows):,} examples")


def sst2(data_root: Path, out: Path) -> None:
    """Hold out sentences of at least eight words with their phrases."""
    head, rows = _rows(data_root / "sst2/train.tsv")
    texts = [" ".join(row[0].split()) for row in rows]
    owners = sentences_of(texts)
    sentences = sorted({text for text, owner in zip(texts, owners, strict=True) if text == owner})
    sentences = [sentence for sentence in sentences if len(sentence.split()) >= 8]
    random.Random(SEED).shuffle(sentences)
    held_out = set(sentences[:2000])
    dev = {text: row for text, row in zip(texts, rows, strict=True) if text in held_out}
    train = [row for owner, row in zip(owners, rows, strict=True) if owner and owner not in held_out]
    _write(out / "sst2", "train.tsv", head, train)
    _write(out / "sst2", "dev.tsv", head, list(dev.values()))


def stsb(data_root: Path, out: Path) -> None:
    """Hold out pairs, grouped by the sentences that they share."""
    head, rows = _rows(data_root / "stsb/train.tsv")
    columns = head.split("\t")
    first, second = columns.index("sentence1"), columns.index("sentence2")
    parents: dict[str, str] = {}

    def root(sentence: str) -> str:
        while parents.setdefault(sentence, sentence) != sentence:
            sentence = parents[sentence]
        return sentence

    for row in rows:
        parents[root(row[first])] = root(row[second])
    sizes = Counter(root(row[first]) for row in rows)
    groups = sorted(sizes)
    random.Random(SEED).shuffle(groups)
    held_out: set[str] = set()
    for group in groups:
        if sizes[group] <= 30 and sum(sizes[one] for one in held_out) < 1000:
            held_out.add(group)
    _write(out / "stsb", "train.tsv", head, [row for row in rows if root(row[first]) not in held_out])
    _write(out / "stsb", "dev.tsv", head, [row for row in rows if root(row[first]) in held_out])


def python_docs(out: Path) -> None:
    """Hold out docstrings by module."""
    by_module = defaultdict(list)
    for example in PythonDocsTask().examples("train"):
        by_module[example.id.split(":")[0]].append(example)
    modules = sorted(by_module)
    random.Random(SEED).shuffle(modules)
    of_library = Counter(example.label for examples in by_module.values() for example in examples)
    held: Counter[int | None] = Counter()
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for module in modules:
        examples = by_module[module]
        label = examples[0].label
        fits = held[label] + len(examples) <= 0.3 * of_library[label]
        held[label] += len(examples) * fits
        for example in examples:
            line = json.dumps({"text": example.text, "label": str(LIBRARIES[example.label or 0])})
            parts["dev" if fits else "train"].append(line)
    (out / "python_docs").mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        path = out / "python_docs" / f"{name}.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines):,} examples")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, folder = Path(sys.argv[1]), Path(sys.argv[2])
    sst2(root, folder)
    stsb(root, folder)
    python_docs(folder)

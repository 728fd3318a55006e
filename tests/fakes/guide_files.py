"""The files that a reader of the manual has: texts, labels, published data sets and a published model, all tiny."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lmtransfer.launch.composing import compose_files

_DRAW = random.Random(0)
_WORDS = ["".join(_DRAW.choices("abcdefghijklmnopqrstuvwxyz", k=_DRAW.randint(2, 6))) for _ in range(200)]
_ROWS = {"train": 60, "dev": 20, "test": 20}
_EVALUATION = ("evaluation_data/full_eval", "evaluation_data/fast_eval")


def _sentence(last: str = "so") -> str:
    return " ".join([*_DRAW.choices(_WORDS, k=7), last]) + "."


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    _write(path, "".join(json.dumps(row) + "\n" for row in rows))


def _table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    _write(path, "".join("\t".join(row) + "\n" for row in ([columns] if columns else []) + list(rows)))


def write_own_files(folder: Path) -> None:
    """Write the texts and labels of a reader's own, as the guides name them."""
    documents = ["\n".join(_sentence() for _ in range(8)) for _ in range(150)]
    for number, document in enumerate(documents):
        _write(folder / f"my/texts/{number}.txt", document + "\n")
    for split, rows in _ROWS.items():
        pairs = [_DRAW.choice((("bad", "dull"), ("good", "fine"))) for _ in range(rows)]
        _table(folder / f"my/{split}.tsv", ["text", "label"], [(_sentence(word), label) for label, word in pairs])
    _write(folder / "my/test.txt", "a fine film.\n")
    _write(folder / "my/sentences.txt", "a fine film.\na dull one.\n")
    _write(folder / "my/new.csv", "ticket,text\n007,a fine film.\n008,\n")
    _write(folder / "my/tickets.csv", "ticket,body\n" + "".join(f"{number},{_sentence()}\n" for number in range(150)))
    _jsonl(folder / "my/questions.jsonl", [{"prompt": "a fine", "choices": ["film.", "films."], "label": 0}])
    _write(folder / "my_words.txt", "wonderword\nfineness\n")
    _write(folder / "texts.txt", "a fine film.\na dull one.\n")
    _write(folder / "reviews.tsv", "text\na fine film.\na dull one.\n")
    for number in range(2):
        rows = [{"text": document} for document in documents[number::2]]
        (folder / "out").mkdir(exist_ok=True)
        (folder / f"out/part-{number}.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
        _jsonl(folder / f"clean/{number}.jsonl", rows)
    for number in range(3):
        _write(folder / f"BabyLM-2026-Strict-Small/{number}.train.txt", "\n".join(documents[number::3]) + "\n")


def write_data_folder(folder: Path) -> None:
    """Write published data sets: film reviews, GLUE, and a paradigm of BLiMP."""
    documents = ["\n".join(_sentence() for _ in range(8)) for _ in range(150)]
    _write(folder / "imdb_unsup/train.txt", "\n\n".join(documents) + "\n")
    for name in compose_files(None, ["+task=glue"]).task.tasks:
        task: Any = OmegaConf.to_container(compose_files(None, [f"+task={name}"]).task, resolve=False)
        for split, paths in task["files"].items():
            _labelled(folder / (paths[0] if isinstance(paths, list) else paths), task, _ROWS.get(split, 20))
    _jsonl(folder / "blimp/one.jsonl", _choices()["blimp_filtered/one"])


def _labelled(path: Path, task: Mapping[str, Any], rows: int) -> None:
    """Write a split of a task with the columns that its config names."""
    columns = [_first(task[key]) for key in ("text_column", "text_pair_column", "label_column", "score_column")
               if task.get(key)]  # fmt: skip
    labels = task.get("label_values") or task.get("labels") or [f"{score}.0" for score in range(6)]
    drawn = [[_sentence() for _ in columns[:-1]] + [_DRAW.choice(labels)] for _ in range(rows)]
    if task["name"] == "cola" and "test" not in path.name:  # without a header line
        return _table(path, [], [["source", label, "", text] for text, label in drawn])
    return _table(path, columns, drawn)


def _first(value: Any) -> str:
    return str(value[0] if isinstance(value, list) else value)


def _choices() -> dict[str, list[dict[str, Any]]]:
    """Items of the zero-shot sets of the BabyLM challenge, by file."""

    def pair(first: str, second: str) -> dict[str, str]:
        return {first: _sentence(), second: _sentence()}

    numbers = range(6)
    return {
        "blimp_filtered/one": [
            {**pair("sentence_good", "sentence_bad"), "UID": "one", "linguistics_term": "binding"} for _ in numbers
        ],
        "supplement_filtered/turns": [pair("sentence_good", "sentence_bad") for _ in numbers],
        "ewok_filtered/social": [
            {"Domain": "social", **pair("Context1", "Context2"), **pair("Target1", "Target2")} for _ in numbers
        ],
        "entity_tracking/regular": [
            {"options": [_sentence() for _ in range(5)], "input_prefix": _sentence(), "numops": number % 2}
            for number in numbers
        ],
        "comps/comps_base": [
            {**pair("prefix_acceptable", "prefix_unacceptable"), "property_phrase": _sentence()} for _ in numbers
        ],
        "global_piqa_parallel/eng": [
            {"prompt": _sentence(), **pair("solution0", "solution1"), "label": 0} for _ in numbers
        ],
        "global_piqa_nonparallel/eng": [
            {"prompt": _sentence(), **pair("solution0", "solution1"), "label": 1} for _ in numbers
        ],
    }  # fmt: skip


def write_babylm_data(folder: Path) -> None:
    """Write the evaluation data of the BabyLM challenge, full and fast."""
    tasks = [
        compose_files(None, [f"+task={name}"]).task for name in compose_files(None, ["+task=babylm_glue"]).task.tasks
    ]
    ages = [f"{age}" for age in range(16, 31)]
    for root in (folder / name for name in _EVALUATION):
        for name, rows in _choices().items():
            _jsonl(root / f"{name}.jsonl", rows)
        for task in tasks:
            fields = [*re.findall(r"{(\w+)}", task.text + task.text_pair)]
            for split in ("train", "dev"):
                rows = [
                    {**{field: _sentence() for field in fields}, "label": number % len(task.labels)}
                    for number in range(_ROWS[split])
                ]
                _jsonl(root / task.files[split][0], rows)
        words = _WORDS[:6]
        contexts = {word: [{"context": _sentence()}, {"context": _sentence()}] for word in words}
        _write(root / "cdi_childes/cdi_childes.json", json.dumps(contexts))
        shares = [f"{word},{','.join(f'{min(1, age / (20 + place)):.2f}' for age in range(15))}"
                  for place, word in enumerate(words)]  # fmt: skip
        _write(root / "cdi_childes/cdi_human.csv", "\n".join([f"word,{','.join(ages)}", *shares]) + "\n")
        _write(root / "reading/reading_data.csv", _reading_times())


def _reading_times() -> str:
    columns = ["item", "word", "prev_item", "prev_word", "Subtlex_log10", "length", "context_length", "prev_length"]
    columns += ["RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound", "self_paced_reading_time"]
    rows, words = [], _DRAW.choices(_WORDS, k=60)
    for place, word in enumerate(words):
        before = " ".join(words[max(0, place - 5) : place]) or "so"
        times = [f"{_DRAW.uniform(150, 400):.0f}" for _ in range(5)]
        numbers = [f"{_DRAW.uniform(1, 4):.2f}", str(len(word)), str(place % 6), str(len(words[place - 1]))]
        rows.append([before, word, before, words[place - 1], *numbers, *times])
    return "".join(",".join(row) + "\n" for row in [columns, *rows])


def write_published_bert(folder: Path) -> None:
    """Write a BERT as small as can be, with WordPiece, as transformers saves it."""
    transformers = pytest.importorskip("transformers", reason="transformers writes the published folder")
    letters = "abcdefghijklmnopqrstuvwxyz"
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*specials, *letters, *(f"##{letter}" for letter in letters), "."]
    _write(folder / "vocab.txt", "\n".join(vocabulary) + "\n")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(vocabulary), **sizes)
    transformers.BertForPreTraining(config).save_pretrained(folder)

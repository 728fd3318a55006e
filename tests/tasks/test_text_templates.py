"""Texts from templates: filled from the fields of JSON lines, with labels by index or by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.text.templates import TemplateClassification

ROWS = [
    {"question": "Who?", "answer": "Ann {question}", "paragraph": "Ann came.", "label": 1},
    {"question": "Where?", "answer": "Here", "paragraph": "Ann came.", "label": "wrong"},
]


def _task(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> TemplateClassification:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    settings = {
        "name": "multirc",
        "text": "Question: {question} Answer: {answer}",
        "text_pair": "{paragraph}",
        "labels": ["wrong", "right"],
        "files": {"train": str(folder / "train.jsonl")},
    }
    return TemplateClassification(**{**settings, **changes})


def test_templates_are_filled_and_labels_are_indices_or_names(tmp_path: Path) -> None:
    first, second = _task(tmp_path, ROWS).examples("train")
    assert (first.text, first.text_pair) == ("Question: Who? Answer: Ann {question}", "Ann came.")
    assert (first.label, second.label) == (1, 0)
    alone = _task(tmp_path, ROWS, text="{answer}", text_pair=None)
    assert [example.text_pair for example in alone.examples("train")] == [None, None]
    assert not alone.head.pairs


@pytest.mark.parametrize("label", [2, -1, "perhaps"])
def test_other_labels_are_refused(tmp_path: Path, label: object) -> None:
    with refuses(DataError, "train.jsonl:1", str(label), "wrong, right"):
        _task(tmp_path, [{**ROWS[0], "label": label}]).examples("train")


def test_a_template_names_fields_of_the_file(tmp_path: Path) -> None:
    with refuses(ConfigError, "task.text=nothing", "{sentence}"):
        _task(tmp_path, ROWS, text="nothing")
    with refuses(DataError, "train.jsonl:1", "passage"):
        _task(tmp_path, ROWS, text="{passage}").examples("train")

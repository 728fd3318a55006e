"""What ``inspect`` shows: the texts of scored examples, or a reason why not, and rows with marks for masked tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.objectives import NumberTokenizer
from fakes.runs import write_run
from rich.console import Console

from lmtransfer.inference.inspection import example_texts
from lmtransfer.inference.inspection.example_texts import TaskTexts
from lmtransfer.inference.inspection.pretraining import render_row, render_strip
from lmtransfer.objectives.row_display import RowView
from lmtransfer.reporting.runs.collect import Run, read_run
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.tasks.metrics.scored_examples import Predictions, Ratio, scored_examples
from lmtransfer.tasks.text.example import TextExample

TEXTS = ["a good film", "a bad film", "a good film", "no film at all"]
TASK = {
    "_target_": "lmtransfer.tasks.text.classification.TextClassification",
    "name": "films",
    "labels": None,
    "files": {"train": "films/train.tsv", "dev": ["none.tsv", "films/dev.tsv"]},
    "text_column": "text",
    "label_column": "label",
    "hub": "some/films",
    "hub_splits": {"dev": "validation"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "films"
    folder.mkdir(parents=True)
    rows = [f"{text}\t{'yes' if 'good' in text else 'no'}\n" for text in TEXTS]
    (folder / "dev.tsv").write_text("text\tlabel\n" + "".join(rows))
    return tmp_path / "data"


def run(folder: Path, **changes: Any) -> Run:
    write_run(folder, config={"task": TASK | changes, "data_root": None}, result={"command": "finetune"})
    return read_run(folder)


def kept(texts: list[str] = TEXTS) -> Predictions:
    examples = [TextExample(f"dev:{place}", text) for place, text in enumerate(texts)]
    labels = np.zeros(len(texts), dtype=np.int64)
    made = scored_examples(
        examples, kind="classification", labels=("no", "yes"), predicted=labels, gold=labels,
        ratios={"accuracy": Ratio.mean([1.0] * len(texts))},
    )  # fmt: skip
    return Predictions("films", "dev", "accuracy", 0, 0, False, made)


def test_the_texts_that_were_scored_are_found_by_their_content(tmp_path: Path, data: Path) -> None:
    one = kept()
    keys = one.examples.keys.tolist()
    found = TaskTexts(data_root=str(data)).find(run(tmp_path / "r"), one, [keys[3], keys[2]])
    assert found.missing == ""
    assert {key: text.content for key, text in found.texts.items()} == {
        keys[2]: ("a good film",),
        keys[3]: ("no film at all",),
    }


def test_the_files_are_read_once(tmp_path: Path, data: Path) -> None:
    one, texts = kept(), TaskTexts(data_root=str(data))
    keys = one.examples.keys.tolist()
    assert texts.find(run(tmp_path / "a"), one, keys).missing == ""
    (data / "films" / "dev.tsv").unlink()
    assert texts.find(run(tmp_path / "b"), one, keys).missing == ""
    assert "films" in TaskTexts(data_root=str(data)).find(run(tmp_path / "a"), one, keys).missing


def test_other_texts_than_those_that_were_scored_are_not_shown(tmp_path: Path, data: Path) -> None:
    one = kept([*TEXTS[:3], "something else"])
    keys = one.examples.keys.tolist()
    found = TaskTexts(data_root=str(data)).find(run(tmp_path / "r"), one, keys)
    assert set(found.texts) == set(keys[:3])
    assert "films" in found.missing


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"dev": "absent.tsv"}},
        {"text_column": "sentence"},
        {"_target_": "os.system"},
        {"max_length": []},
        {"files": {"dev": "\0"}},
        {"files": {"dev": "${oc.env:HOME}"}},
    ],
)
def test_what_cannot_be_read_is_a_reason_and_no_error(changes: dict[str, Any], tmp_path: Path, data: Path) -> None:
    one = kept()
    found = TaskTexts(data_root=str(data)).find(run(tmp_path / "r", **changes), one, one.examples.keys.tolist())
    assert found.texts == {}
    assert "films" in found.missing
    write_run(tmp_path / "without", config={"name": "r"})
    found = TaskTexts(data_root=None).find(read_run(tmp_path / "without"), one, one.examples.keys.tolist())
    assert "films" in found.missing


def test_large_files_are_not_read(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_texts, "MAX_BYTES", 40)
    one = kept()
    found = TaskTexts(data_root=str(data)).find(run(tmp_path / "r"), one, one.examples.keys.tolist())
    assert found.texts == {}
    assert "MiB" in found.missing


def test_files_anywhere_are_read_for_own_runs_alone(tmp_path: Path, data: Path) -> None:
    one = kept()
    keys = one.examples.keys.tolist()
    given = run(tmp_path / "r", files={"dev": str(data / "films" / "dev.tsv")})
    assert TaskTexts(data_root=None).find(given, one, keys).texts == {}
    mark_as_own(given.path)
    assert set(TaskTexts(data_root=None).find(given, one, keys).texts) == set(keys)


def test_the_data_folder_of_an_own_run_is_used(tmp_path: Path, data: Path) -> None:
    one = kept()
    keys = one.examples.keys.tolist()
    write_run(tmp_path / "r", config={"task": TASK, "data_root": str(data)})
    assert TaskTexts(data_root=None).find(read_run(tmp_path / "r"), one, keys).texts == {}
    mark_as_own(tmp_path / "r")
    assert set(TaskTexts(data_root=None).find(read_run(tmp_path / "r"), one, keys).texts) == set(keys)


TOKENIZER = NumberTokenizer()


def view(original: list[int], inputs: list[int], hidden: list[int], segments: list[int] | None = None) -> RowView:
    is_hidden = np.isin(np.arange(len(original)), hidden)
    return RowView("k", np.array(original), np.array(inputs), np.array(segments or [0] * len(original)), is_hidden, {})


def test_marks_say_what_is_hidden_also_without_colours() -> None:
    row = view([1, 10, 11, 12, 13, 14, 2], [1, 3, 11, 40, 13, 14, 2], [1, 3, 5])
    assert render_row(row, TOKENIZER).plain == "[CLS] {10}|11 {12>40}|13 {14=} [SEP]"
    assert render_strip(row, TOKENIZER).plain == "|#.#.#|"
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(render_row(row, TOKENIZER))
    assert "\x1b[1;31m{10}" in captured.get()
    pair = view([1, 10, 2, 11, 12, 2], [1, 10, 2, 11, 12, 2], [], [0, 0, 0, 1, 1, 1])
    assert render_row(pair, TOKENIZER).plain == "[CLS] 10 [SEP]\n11 12 [SEP]"

"""What ``inspect`` tells: the cost of a step, estimated GPU memory against measurements on an H200
(scripts/RESULTS.md, "On a GPU"), the texts of scored examples, and rows with marks for masked tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, bert, random_documents, store_of
from fakes.runs import write_run
from rich.console import Console
from support.objective_table import CONF, SMALL, built

from lmtransfer.config.config_files import group_config
from lmtransfer.inference.inspection import example_texts
from lmtransfer.inference.inspection.cost import (
    StepCost,
    estimate_gpu_memory,
    measurable_rows,
    measure,
    parameter_counts,
)
from lmtransfer.inference.inspection.example_texts import TaskTexts
from lmtransfer.inference.inspection.pretraining import render_row, render_strip
from lmtransfer.inference.inspection.tables import format_duration
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.objectives.views import RowView
from lmtransfer.reporting.runs.collect import Run, read_run
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.tasks.metrics.scored_examples import Predictions, Ratio, scored_examples
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.precision import Precision

TOKENIZER = NumberTokenizer()


def measured(tmp_path: Path, rows: int) -> tuple[StepCost, PretrainingLearner]:
    source = PretrainingSource(
        store=store_of(tmp_path / f"s{rows}", random_documents(200)),
        rows=LanguageStream(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER),
        seed=0,
        output_positions=("masked",),
    )
    learner = PretrainingLearner(bert(), [MaskedLanguageModel()])
    hardware = Hardware(device=torch.device("cpu"), precision=Precision(), reason="", threads=1, compile=False)
    batch = source.build(0, source.plan(0), range(rows))
    assert measurable_rows(batch, learner, torch.device("cpu")) == rows
    return measure(learner, AdamW(learner=learner), batch, hardware=hardware, seed=0), learner


def test_memory_is_counted_and_scales(tmp_path: Path) -> None:
    cost, learner = measured(tmp_path, 8)
    trainable = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    assert cost.weight_bytes == 4 * sum(p.numel() for p in learner.parameters())
    assert cost.gradient_bytes == 4 * trainable
    assert cost.state_bytes == pytest.approx(8 * trainable, rel=0.02)  # two moments, and step counts
    assert cost.tokens == 256
    double, _ = measured(tmp_path, 16)
    assert double.activation_bytes == pytest.approx(2 * cost.activation_bytes, rel=0.05)
    # At least the inputs of a layer's four matrix products over 256 tokens, with widths 16, 16, 16 and 32.
    assert cost.activation_bytes > 4 * 256 * 80
    assert cost.peak_bytes(512) == cost.peak_bytes(0) + 2 * cost.activation_bytes


def test_time_is_linear_in_tokens() -> None:
    cost = StepCost(
        tokens=100,
        pass_seconds=2.0,
        update_seconds=0.5,
        weight_bytes=0,
        gradient_bytes=0,
        state_bytes=0,
        activation_bytes=0,
    )
    assert cost.step_seconds(300) == 6.5
    assert [format_duration(s) for s in (3.25, 119, 120, 7200, 200_000)] == [
        "3.2 seconds",
        "119.0 seconds",
        "2.0 minutes",
        "2.0 hours",
        "2.3 days",
    ]


def test_parameters_are_counted_once_each() -> None:
    learner = PretrainingLearner(bert(), [MaskedLanguageModel()])
    counts = parameter_counts(learner)
    assert counts["in all"] == sum(p.numel() for p in learner.parameters())
    assert counts["in all"] == sum(count for part, count in counts.items() if part != "in all")
    assert counts["embeddings"] == 16 * (96 + 64 + 2)
    assert counts["head of mlm"] == 16 * 16 + 16 + 2 * 16 + 96


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective", "measured", "tolerance"),
    [("electra_small", "rtd", 5.7e9, 0.03), ("bert_base", "mlm", 15.0e9, 0.03)],
)
def test_memory_is_what_a_gpu_took(
    model: str, objective: str, measured: float, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting: 32,768 tokens per pass, rows of 128 tokens, and a vocabulary of about 30,000."""
    monkeypatch.setattr("fakes.objectives.NumberTokenizer.vocab_size", 30_522)
    node = group_config("model", model, [CONF])
    sizes = {key: node[key] for key in SMALL if key in node}
    store = store_of(tmp_path, random_documents(300))
    learner, source, _ = built(objective, store, "objective.max_length=128", model=model, changes=sizes)
    plan = source.plan(0)
    batches = [source.build(0, plan, range(rows)) for rows in (4, 8)]
    found = estimate_gpu_memory(learner, batches, tokens=32_768, device=torch.device("cpu"), seed=0)
    assert found == pytest.approx(measured, rel=tolerance)


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
    mark_as_own(RunDirectory(given.path))
    assert set(TaskTexts(data_root=None).find(given, one, keys).texts) == set(keys)


def test_the_data_folder_of_an_own_run_is_used(tmp_path: Path, data: Path) -> None:
    one = kept()
    keys = one.examples.keys.tolist()
    write_run(tmp_path / "r", config={"task": TASK, "data_root": str(data)})
    assert TaskTexts(data_root=None).find(read_run(tmp_path / "r"), one, keys).texts == {}
    mark_as_own(RunDirectory(tmp_path / "r"))
    assert set(TaskTexts(data_root=None).find(read_run(tmp_path / "r"), one, keys).texts) == set(keys)


UNTRAINED = NumberTokenizer()


def view(original: list[int], inputs: list[int], hidden: list[int], segments: list[int] | None = None) -> RowView:
    is_hidden = np.isin(np.arange(len(original)), hidden)
    return RowView("k", np.array(original), np.array(inputs), np.array(segments or [0] * len(original)), is_hidden, {})


def test_marks_say_what_is_hidden_also_without_colours() -> None:
    row = view([1, 10, 11, 12, 13, 14, 2], [1, 3, 11, 40, 13, 14, 2], [1, 3, 5])
    assert render_row(row, UNTRAINED).plain == "[CLS] {10}|11 {12>40}|13 {14=} [SEP]"
    assert render_strip(row, UNTRAINED).plain == "|#.#.#|"
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(render_row(row, UNTRAINED))
    assert "\x1b[1;31m{10}" in captured.get()
    pair = view([1, 10, 2, 11, 12, 2], [1, 10, 2, 11, 12, 2], [], [0, 0, 0, 1, 1, 1])
    assert render_row(pair, UNTRAINED).plain == "[CLS] 10 [SEP]\n11 12 [SEP]"

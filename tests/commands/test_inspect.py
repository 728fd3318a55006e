"""``lmtransfer inspect``: what it shows is what a loop over the same rows finds, and it says what is odd."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, bert, random_documents, store_of
from fakes.texts import made_up_documents, write_text
from rich.console import Console

from lmtransfer.cli import main
from lmtransfer.config import paths
from lmtransfer.config.config_files import primary_config
from lmtransfer.inference.inspection.cost import StepCost, measurable_rows, measure, parameter_counts
from lmtransfer.inference.inspection.pretraining import render_row, render_strip
from lmtransfer.inference.inspection.tables import format_duration
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.objectives.views import RowView
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.precision import Precision

TOKENIZER = NumberTokenizer()
SMALL = ["model.num_layers=2", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32", "hardware.threads=1"]
TEXT = ["corpus=text", "corpus.path=a.txt", "corpus.name=mine", "tokenizer.vocab_size=60", "hardware.precision=fp32"]
Output = Callable[..., str]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def inspect(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Output:
    """Run the command on 300 made-up documents and return what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "160")
    threads = torch.get_num_threads()
    documents = made_up_documents(300)
    write_text(tmp_path / "a.txt", [*documents, *documents[:30]])

    def run(*words: str, code: int = 0) -> str:
        model = [] if any(word.startswith("model=") for word in words) else ["model=bert_laptop"]
        assert main(["inspect", *TEXT, *SMALL, *model, *words]) == code
        torch.set_num_threads(threads)
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


def rows_of(output: str) -> dict[str, str]:
    """Table rows: name and the rest of the line."""
    return dict(re.findall(r"^ {2}(\S[^:]*?) {2,}(\S.*?) *$", output, re.MULTILINE))


def notes_of(output: str) -> list[str]:
    """The remarks below the tables."""
    return [line for line in output.splitlines() if line.startswith("note: ")]


def test_pairs_rates_and_costs_are_shown(inspect: Output) -> None:
    output = inspect("objective=mlm_nsp", "objective.max_length=64", "objective.mask_prob=0.3", "train.steps=100")
    found = rows_of(output)
    documents = re.match(r"(\d+) +(\d+) ", found["documents"])
    assert documents is not None
    assert sum(map(int, documents.groups())) == 330
    assert found["duplicates"].startswith("30 ")
    assert float(found["hidden"].partition("%")[0]) == pytest.approx(30, abs=1)
    shares = [float(found[f"nsp {value}"].partition("%")[0]) for value in (0, 1)]
    assert sum(shares) == pytest.approx(100, abs=0.11)
    assert SentencePairs.label_names["nsp"][1] in found["nsp 1"]
    assert re.search(r"\b0\b", found["hidden"].partition("(")[2])  # no special tokens
    assert re.match(r"100\.0% ", found["nsp 1"]) is None
    assert re.search(r"this budget +\S+ \w+ +100 steps", output)
    assert any("9.1%" in note and "documents" in note for note in notes_of(output))
    headings = re.findall(r"tokens (\d+):(\d+) \+ (\d+):(\d+): (\d+) tokens, (\d+) [^;\n]+; nsp ([01])", output)
    assert len(headings) == 3
    for a_start, a_stop, b_start, b_stop, length, hidden, _ in (map(int, heading) for heading in headings):
        assert length == a_stop - a_start + b_stop - b_start + 3
        assert hidden == max(1, round(0.3 * length))
    assert len(re.findall(r"^ {4}\|[.#|]+\|", output, re.MULTILINE)) == 8


def test_a_language_model_has_nothing_hidden(inspect: Output) -> None:
    words = ["model=gpt_mini", "objective=lm", "objective.max_length=32", "train.tokens=1000000", "rows=2"]
    output = inspect(*words)
    found = rows_of(output)
    assert "hidden" not in found
    assert "[MASK]" not in output
    assert found["lm"].startswith("1,984 ")  # 64 rows of 32 tokens, of which all but the first are predicted
    assert re.search(r"this budget .* 1\.0M tokens", output)
    assert len(re.findall(r"tokens \d+:\d+: 32 tokens\n", output)) == 2


def test_contiguous_rows_of_a_model_with_a_memory_are_shown(inspect: Output) -> None:
    """Their labels are the tokens around them, which have no names."""
    words = ["model=transformer_xl_laptop", "objective=lm_contiguous", "objective.max_length=32", "rows=2"]
    output = inspect(*words, "measure=false")
    assert len(re.findall(r"tokens \d+:\d+: 32 tokens\n", output)) == 2
    assert "next_token" not in output


def test_a_budget_is_told_in_hours_of_gpus(inspect: Output) -> None:
    """Two layers of 16 and 32 wide, 60 tokens: six operations for each weight and token, and those of attention."""
    weights = 2 * (4 * 16 * 16 + 2 * 16 * 32) + 16 * 60
    words = ["objective=lm", "model=gpt_mini", "train.tokens=2000000000", "objective.max_length=32"]
    output = inspect(*words, "measure=false")
    found = rows_of(output[output.index("this budget on a GPU") :])
    assert found["tokens"].startswith("2,000M ")
    per_token = float(found["tokens"].split()[1].replace(",", "")) * 1e6
    assert per_token == pytest.approx(6 * weights + 12 * 2 * 16 * 32 / 2, rel=0.2)  # causal attention sees half
    total = float(found["in all"].split()[0])
    assert total == pytest.approx(2e9 * per_token, rel=0.02)
    hours = {gpu: float(found[f"one {gpu}"].split()[0]) for gpu in ("A100", "H100")}
    units = {gpu: found[f"one {gpu}"].split()[1] for gpu in ("A100", "H100")}
    scale = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}
    for gpu, peak in (("A100", 312e12), ("H100", 989e12)):
        assert hours[gpu] * scale[units[gpu]] == pytest.approx(total / (0.4 * peak), rel=0.1)
    assert found["memory"].endswith("2,048 tokens in a forward pass")
    assert "on a GPU" not in inspect("model=gpt_mini", "objective=lm", "train.seconds=60", "measure=false")


def test_epochs_differ_and_repeat(inspect: Output) -> None:
    def rows(epoch: int) -> str:
        output = inspect("measure=false", f"epoch={epoch}", "rows=1", "strips=0", "sample=50")
        _, first_row = re.split(r"(?=tokens \d+:\d+)", output, maxsplit=1)
        return first_row[: first_row.index(f"epoch {epoch}")]

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)


def test_without_measuring_there_are_parameters_only(inspect: Output) -> None:
    output = inspect("measure=false", "rows=0", "strips=0")
    assert "BertEncoder" in output
    assert "epoch 0" in output
    assert not {"memory", "speed"} & rows_of(output).keys()
    assert not re.search(r"tokens \d+:\d+", output)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["model=gpt_mini"], ("objective=mlm", "bidirectional", "model.attention", "causal")),
        (["objective.max_length=300"], ("objective.max_length=300", "model.max_length")),
        (["rows=-1", "sample=0"], ("rows: -1", "10,000")),
        (["row=2"], ("rows",)),
        (["train.batch_tokens=32"], ("train.batch_tokens=32",)),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_clear_message(inspect: Output, words: list[str], names: tuple[str, ...]) -> None:
    errors = inspect("measure=false", *words, code=2)
    assert all(name in errors for name in names), errors
    assert "Traceback" not in errors


def test_documents_of_one_sentence_are_remarked_on(inspect: Output, tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", [f"{d.split('.')[0]}." for d in made_up_documents(300)])
    output = inspect("objective=mlm_nsp", "measure=false", "objective.max_length=128")
    notes = notes_of(output)
    assert any("nsp 1" in note for note in notes)
    assert any("objective.max_length=128" in note and "objective/rows=stream" in note for note in notes)


def test_the_words_of_a_pretrain_command_can_be_given() -> None:
    pretrain, own = primary_config("pretrain"), primary_config("inspect")
    assert set(pretrain) <= set(own)
    assert set(pretrain["train"]) <= set(own["train"])
    files = [(paths.conf_dir() / f"{name}.yaml").read_text() for name in ("pretrain", "inspect")]
    defaults = [re.findall(r"^ {2}- (\w+: \w+)", text, re.MULTILINE) for text in files]
    assert defaults[0] == [choice for choice in defaults[1] if choice != "task: null"]


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
    # At the least, the inputs of a layer's four products over 256 tokens: 16, 16, 16 and 32 wide.
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

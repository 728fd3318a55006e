"""``lmtransfer inspect``: its numbers match a loop over the same rows, and irregularities are noted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.texts import made_up_documents, write_text

from lmtransfer.cli import main
from lmtransfer.config import paths
from lmtransfer.launch.config_files import primary_config
from lmtransfer.objectives.rows.pairs import SentencePairs

SMALL = ["model.num_layers=2", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32", "hardware.threads=1"]
TEXT = ["corpus=text", "corpus.path=a.txt", "corpus.name=mine", "tokenizer.vocab_size=60", "hardware.precision=fp32"]
Output = Callable[..., str]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def inspect(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Output:
    """Run the command on 300 synthetic documents and return the output."""
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
    """Return the table's rows: name and the rest of the line."""
    return dict(re.findall(r"^ {2}(\S[^:]*?) {2,}(\S.*?) *$", output, re.MULTILINE))


def notes_of(output: str) -> list[str]:
    """Return the notes below the tables."""
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
    """The labels of these rows are neighboring tokens, which have no names."""
    words = ["model=transformer_xl_laptop", "objective=lm_contiguous", "objective.max_length=32", "rows=2"]
    output = inspect(*words, "measure=false")
    assert len(re.findall(r"tokens \d+:\d+: 32 tokens\n", output)) == 2
    assert "next_token" not in output


def test_a_budget_is_told_in_hours_of_gpus(inspect: Output) -> None:
    """Two layers of width 16 and 32, 60 tokens: six operations per weight and token, plus attention."""
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

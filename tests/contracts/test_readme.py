"""The README's commands, run in their order as they are written, on little text, with small models and few steps."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from lmtransfer.cli import main
from lmtransfer.config import pages
from lmtransfer.config.check import check
from lmtransfer.config.composing import composed
from lmtransfer.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

_TEXT = ["corpus.max_documents=200", "tokenizer.vocab_size=300", "tokenizer.allow_fewer=true"]
_MODEL = ["model.num_layers=1", "model.dim=16", "model.num_heads=1", "model.hidden_dim=32"]
_ON_TASKS = ["train.steps=2", "task.num_train=40", "train.batch_examples=4", "hardware.threads=1"]
#: What makes each command small. A word of the README that sets the same key gives way; all others stay as written.
SMALL = {
    "prepare": [*_TEXT, "num_workers=1"],
    "pretrain": [*_TEXT, *_MODEL, "train.steps=2", "train.batch_tokens=256", "hardware.threads=1"],
    "inspect": _TEXT,
    "probe": _ON_TASKS,
    "finetune": _ON_TASKS,
    "evaluate": ["hardware.threads=1"],
    "predict": ["hardware.threads=1"],
    "study": [
        "only=[masked]",
        "pretrain.steps=2",
        f"pretrain.words={' '.join([*_TEXT, 'train.batch_tokens=256'])}",
        "transfers.probe.seeds=1",
        "transfers.probe.control=false",
    ],
}
_BUDGETS = {"train.steps", "train.tokens", "train.epochs", "train.seconds"}


def commands() -> list[list[str]]:
    """The words of every ``lmtransfer`` line in the README's ``bash`` blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("lmtransfer ")]


def commands_below(heading: str) -> list[list[str]]:
    """The words of every ``lmtransfer`` line in the blocks of a section."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [shlex.split(line)[1:] for line in section.splitlines() if line.startswith("lmtransfer ")]


def small(words: list[str], added: Sequence[str] | None = None) -> list[str]:
    """The same command, small: with ``added``, else as ``SMALL`` says."""
    added = SMALL.get(words[0], []) if added is None else added
    replaced = {word.partition("=")[0] for word in added}
    if replaced & _BUDGETS:
        replaced |= _BUDGETS
    return [*(word for word in words if word.partition("=")[0] not in replaced), *added]


def write_texts(folder: Path) -> None:
    """Files as the README expects them: reviews and SST-2 in a data folder, a user's own texts and labels beside."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 6))) for _ in range(200)]

    def sentence(last: str) -> str:
        return " ".join([*draw.choices(words, k=7), last]) + "."

    def labelled(path: Path, column: str, names: dict[str, str], rows: int) -> None:
        pairs = [draw.choice(list(names.items())) for _ in range(rows)]
        lines = [f"{sentence(word)}\t{label}\n" for label, word in pairs]
        path.write_text(f"{column}\tlabel\n" + "".join(lines), encoding="utf-8")

    for sub in ("data/imdb_unsup", "data/sst2", "my/texts"):
        (folder / sub).mkdir(parents=True)
    documents = ["\n".join(sentence("so") for _ in range(8)) for _ in range(150)]
    (folder / "data/imdb_unsup/train.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for number, document in enumerate(documents):
        (folder / f"my/texts/{number}.txt").write_text(document + "\n", encoding="utf-8")
    for split, rows in (("train", 60), ("dev", 20), ("test", 20)):
        labelled(folder / f"data/sst2/{split}.tsv", "sentence", {"0": "dull", "1": "fine"}, rows)
        labelled(folder / f"my/{split}.tsv", "text", {"bad": "dull", "good": "fine"}, rows)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_every_command_of_the_readme_runs(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = pages.commands()  # one that is not there yet fails the test of the table, below
    found = [words for words in commands() if words[0] in there]
    assert len(found) > 12
    for words in found:
        code = main(small(words))
        captured = capsys.readouterr()
        assert code == 0, f"lmtransfer {shlex.join(words)}\n{captured.out}\n{captured.err}"
    for made in (
        "pretrain/imdb",
        "probe/imdb-probe",
        "finetune/imdb-ft",
        "finetune/imdb-ft/control",
        "finetune/mine-ft",
    ):
        assert (world / "runs" / made / "result.json").is_file(), made
    assert (world / "runs/pretrain/masks/objective.mask_prob=0.15/result.json").is_file()
    report = (world / "runs/report/report.html").read_text(encoding="utf-8")
    for name in ("first-ft", "imdb-probe", "imdb-ft", "mine-ft", "objective.mask_prob"):
        assert name in report
    assert "difference" in captured.out


def problems(cfg: DictConfig, command: str) -> list[str]:
    """What is wrong with a configuration, but for values that only the reader has."""
    try:
        check(cfg, primary=command)
    except ConfigError as error:
        return [problem for problem in error.problems if ": missing: " not in problem]
    return []


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_every_command_of_the_readme_is_understood(words: list[str], world: Path) -> None:
    command, *overrides = words
    swept = [word for word in overrides if word not in ("-m", "--multirun")]
    assert len(overrides) - len(swept) <= 1
    if len(swept) < len(overrides):  # each key's first value stands for all
        swept = [word.partition(",")[0] for word in swept]
    if any("=" not in word for word in swept):
        return  # `lmtransfer list models` takes words of its own
    with composed(command, swept) as cfg:
        assert problems(cfg, command) == []


def write_published_bert(folder: Path) -> None:
    """A BERT as small as can be, with WordPiece, as transformers saves it."""
    transformers = pytest.importorskip("transformers", reason="transformers writes the published folder")
    letters = "abcdefghijklmnopqrstuvwxyz"
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*specials, *letters, *(f"##{letter}" for letter in letters), "."]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(vocabulary), **sizes)
    transformers.BertForPreTraining(config).save_pretrained(folder)


def test_the_commands_about_published_models_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_published_bert(world / "downloads/bert-base-uncased")
    (world / "my_words.txt").write_text("wonderword\nfineness\n", encoding="utf-8")
    (world / "texts.txt").write_text("a fine film.\na dull one.\n", encoding="utf-8")
    pretrain = ["corpus.max_documents=100", "train.steps=2", "train.batch_tokens=1024", "hardware.threads=1"]
    ran = []
    for words in commands_below("Published models"):
        if "to=onnx" in words and importlib.util.find_spec("onnx") is None:
            continue  # an extra of its own
        code = main(small(words, pretrain if words[0] == "pretrain" else None))
        captured = capsys.readouterr()
        assert code == 0, f"lmtransfer {shlex.join(words)}\n{captured.out}\n{captured.err}"
        ran.append(words[0])
    assert ran[:4] == ["import", "finetune", "pretrain", "export"]
    assert np.load(world / "vectors.npy").shape == (2, 16)
    for made in ("import/bert", "finetune/bert-sst2", "pretrain/bert-adapted"):
        assert (world / "runs" / made / "result.json").is_file(), made
    assert (world / "bert-sst2-hf/model.safetensors").is_file()


def test_the_table_of_commands_is_complete() -> None:
    table = set(re.findall(r"^\| `([a-z]+)` \|", README, flags=re.MULTILINE))
    assert {words[0] for words in commands()} <= table
    assert table == set(pages.commands())


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test", "setup"} <= named <= targets


def test_groups_and_choices_named_in_the_readme_exist() -> None:
    named = set(re.findall(r"\b(model|objective|corpus|tokenizer|task|transfer|experiment)=([a-z]\w+)", README))
    assert len(named) > 6
    for group, choice in named:
        if choice in ("mine", "null"):
            continue  # the reader's own, and none
        assert (ROOT / "conf" / group / f"{choice}.yaml").is_file(), f"{group}={choice}"


def test_no_example_takes_a_result_from_fewer_than_five_seeds() -> None:
    """Of a task: pretraining seeds are counted by their own rule."""
    lines = README.splitlines()
    said = [*lines, *pages.main_page().splitlines()]
    found = [line for line in said if re.search(r"lmtransfer (probe|finetune)\b.*\bseeds=", line)]
    found += [line for line in said if "control=true seeds=" in line]
    assert len(found) > 4
    assert [line for line in found if int(line.partition("seeds=")[2][0]) < 5] == []


def test_the_recipe_of_few_labels_takes_five_seeds() -> None:
    with composed("finetune", ["experiment=few_labels", "init=x", "task=python_docs"]) as cfg:
        assert cfg.seeds == 5


def test_the_demonstration_takes_five_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    assert importlib.import_module("demo").SEEDS == 5


def test_the_demonstration_prepares_the_vocabulary_of_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    demo = importlib.import_module("demo")
    with composed("prepare", ["corpus=python_docs", *demo.TOKENIZER]) as cfg:
        prepared = {"corpus": dict(cfg.corpus), "tokenizer": {**cfg.tokenizer, "add": None}}
    with composed("pretrain", ["experiment=demo"]) as cfg:
        assert prepared == {"corpus": dict(cfg.corpus), "tokenizer": dict(cfg.tokenizer)}

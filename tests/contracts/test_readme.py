"""The commands of the README and the guides, run in their order as they are written, on little text, with few steps."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import composed

from lmtransfer.cli import main
from lmtransfer.config import main_help
from lmtransfer.launch.run_once import command_settings
from lmtransfer.launch.short_forms import expand_task_groups

ROOT = Path(__file__).resolve().parents[2]
#: The README and the guides, in reading order.
PAGES = {
    "README": (ROOT / "README.md").read_text(encoding="utf-8"),
    **{subject: (main_help.GUIDES / f"{subject}.md").read_text(encoding="utf-8") for subject in main_help.subjects()},
}

_TEXT = ["corpus.max_documents=200", "tokenizer.vocab_size=300", "tokenizer.allow_fewer=true"]
_MODEL = ["model.num_layers=1", "model.dim=16", "model.num_heads=1", "model.hidden_dim=32"]
_ON_TASKS = ["train.steps=2", "task.num_train=40", "train.batch_examples=4", "hardware.threads=1"]
#: What makes each command small. A word of the manual that sets the same key gives way; all others stay as written.
SMALL = {
    "prepare": [*_TEXT, "num_workers=1"],
    "pretrain": [*_TEXT, *_MODEL, "train.steps=2", "train.batch_tokens=256", "hardware.threads=1"],
    "inspect": [*_TEXT, "hardware.threads=1"],
    "probe": _ON_TASKS,
    "finetune": _ON_TASKS,
    "evaluate": ["hardware.threads=1"],
    "predict": ["hardware.threads=1"],
    "report": ["figures=false"],
    "study": [
        "only=[masked]",
        "pretrain.steps=2",
        f"pretrain.words={' '.join([*_TEXT, 'train.batch_tokens=256'])}",
        "transfers.probe.seeds=1",
        "transfers.probe.control=false",
    ],
}
_BUDGETS = {"train.steps", "train.tokens", "train.epochs", "train.seconds", "train.words"}
_RUN = re.compile(r"runs/(pretrain|probe|finetune|import|evaluate)/([a-z][\w-]*)")


def _blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language; ``\\w*`` is any."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def _words(blocks: list[str]) -> list[list[str]]:
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    lines = [line.partition(" -m ")[2] if line.startswith("torchrun ") else line for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("lmtransfer ")]


def commands(page: str) -> list[list[str]]:
    """The words of the ``lmtransfer`` lines in a page's ``bash`` blocks, which are run here."""
    return _words(_blocks(page, "bash"))


def shown(page: str) -> list[list[str]]:
    """The words of all ``lmtransfer`` lines in a page's blocks, also of those that need a hub, a cluster or GPUs."""
    return _words(_blocks(page, r"\w*"))


#: Runs by the command and the name that make them.
MADE = {
    (words[0], word.removeprefix("name=")): words
    for page in reversed(PAGES)
    for words in reversed(commands(page))
    for word in words
    if word.startswith("name=")
}


#: Words that a command takes beside those of ``SMALL`` if it sets one of these keys.
FURTHER = {
    "phases": "train.steps=10",
    "train.save_at": "train.save_at=[0,100]",
    "train.save_at_words": "train.save_at_words=[0,10]",
    "seeds": "seeds=2",
}
#: Keys of ``SMALL`` that a command with one of these keys does not take.
UNFIT = {"init": ("model.", "tokenizer."), "task": ("corpus.", "tokenizer.")}
UNFIT |= dict.fromkeys(("task.folds", "final"), ("task.num_train",))


def small(words: list[str]) -> list[str]:
    """The same command, small, as ``SMALL`` says."""
    if "--help" in words:
        return words
    given = {word.partition("=")[0] for word in words}
    unfit = tuple(key for word in given for key in UNFIT.get(word, ()))
    if "corpus=mixture" in words:
        unfit += ("corpus.max_documents",)
    added = [word for word in SMALL.get(words[0], []) if not word.startswith(unfit)]
    added += [word for key, word in FURTHER.items() if key in given]
    if "experiment=few_labels" in words and "seeds" not in given:
        added.append("seeds=2")
    by_key = {word.partition("=")[0]: word for word in added}
    replaced = by_key.keys() | (_BUDGETS if by_key.keys() & _BUDGETS else set())
    return [*(word for word in words if word.partition("=")[0] not in replaced), *by_key.values()]


#: The command that made each run here.
RAN: dict[Path, list[str]] = {}


def run(words: list[str], world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of the manual, and before it the commands that make the runs which it names.

    A command that another page has too is run once. A run with the same name and other settings is replaced.
    """
    if "to=onnx" in words and importlib.util.find_spec("onnx") is None:
        return  # an extra of its own
    make_runs(" ".join(word for word in words if not word.startswith("name=")), world, capsys)
    folder = run_of(words, world)
    if folder is not None and "resume=true" not in words:
        if RAN.get(folder) == words:
            return
        shutil.rmtree(folder, ignore_errors=True)
        RAN[folder] = words
    try:
        code = main(small(words))
    except SystemExit as leave:  # --help
        code = int(leave.code or 0)
    captured = capsys.readouterr()
    assert code == 0, f"lmtransfer {shlex.join(words)}\n{captured.out}\n{captured.err}"


def run_of(words: list[str], world: Path) -> Path | None:
    """The folder of the run that a command names."""
    name = next((word.removeprefix("name=") for word in words if word.startswith("name=")), None)
    return None if name is None else world / "runs" / words[0] / name


def make_runs(text: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Make the runs that a text names, by the commands of the manual that make them."""
    published = world / "downloads/bert-base-uncased"
    if "downloads/bert-base-uncased" in text and not published.is_dir():
        write_published_bert(published)
    for kind, name in _RUN.findall(text):
        if not (world / "runs" / kind / name).is_dir():
            run(MADE[kind, name], world, capsys)


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
    (folder / "my_words.txt").write_text("wonderword\nfineness\n", encoding="utf-8")
    (folder / "my/test.txt").write_text("a fine film.\n", encoding="utf-8")
    (folder / "my/sentences.txt").write_text("a fine film.\na dull one.\n", encoding="utf-8")
    (folder / "my/questions.jsonl").write_text(
        '{"prompt": "a fine", "choices": ["film.", "films."], "label": 0}\n', encoding="utf-8"
    )
    (folder / "texts.txt").write_text("a fine film.\na dull one.\n", encoding="utf-8")
    (folder / "reviews.tsv").write_text("text\na fine film.\na dull one.\n", encoding="utf-8")
    (folder / "my/new.csv").write_text("ticket,text\n007,a fine film.\n008,\n", encoding="utf-8")
    tickets = "".join(f"{number},{sentence('so')}\n" for number in range(150))
    (folder / "my/tickets.csv").write_text(f"ticket,body\n{tickets}", encoding="utf-8")
    for split, rows in (("train", 60), ("dev", 20), ("test", 20)):
        labelled(folder / f"data/sst2/{split}.tsv", "sentence", {"0": "dull", "1": "fine"}, rows)
        labelled(folder / f"my/{split}.tsv", "text", {"bad": "dull", "good": "fine"}, rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all pages, so that runs which several name are made once."""
    folder = tmp_path_factory.mktemp("manual")
    write_texts(folder)
    return folder


#: Of the eight libraries of ``python_docs``, which take half a minute to read.
FEW_LIBRARIES = ("networkx", "datasets")
#: Runs a command in a process of its own with these.
_WITH_FEW = f"""\
import sys
from lmtransfer.data.corpora import libraries
libraries.LIBRARIES = {FEW_LIBRARIES}
from lmtransfer.cli import main
sys.exit(main())
"""


@pytest.fixture
def world(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(made)
    monkeypatch.setenv("LMTRANSFER_DATA", str(made / "data"))
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    for module in ("lmtransfer.data.corpora.python_docs", "lmtransfer.tasks.text.python_docs"):
        monkeypatch.setattr(f"{module}.LIBRARIES", FEW_LIBRARIES)
    monkeypatch.setattr("lmtransfer.tasks.text.python_docs.PythonDocsTask.labels", FEW_LIBRARIES)
    monkeypatch.setattr(
        "lmtransfer.launch.processes.command_line", lambda words: [sys.executable, "-c", _WITH_FEW, *words]
    )
    threads = torch.get_num_threads()
    yield made
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_of_a_page_runs(page: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page):
        run(words, world, capsys)
        folder = run_of(words, world)
        if folder is not None and "-m" not in words:
            assert (folder / "result.json").is_file(), shlex.join(words)
    EXPECTED.get(page, lambda world: None)(world)


def _readme(world: Path) -> None:
    assert (world / "runs/finetune/first-ft/control/seed-0/result.json").is_file()
    report = (world / "runs/report/report.html").read_text(encoding="utf-8")
    assert [name for name in ("first-ft", "mine-ft", "difference from") if name not in report] == []


def _studies(world: Path) -> None:
    assert (world / "runs/pretrain/masks/objective.mask_prob=0.15/result.json").is_file()
    assert "objective.mask_prob" in (world / "runs/report/report.html").read_text(encoding="utf-8")
    assert (world / "runs/report/records.csv").is_file()


def _published(world: Path) -> None:
    assert np.load(world / "vectors.npy").shape == (2, 16)


def _exports(world: Path) -> None:
    assert (world / "bert-sst2-hf/model.safetensors").is_file()


#: What more there must be after the commands of a page.
EXPECTED = {"README": _readme, "studies": _studies, "published": _published, "exports": _exports}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README", "start"])
def test_the_lines_of_python_run(page: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = _blocks(page, "python")
    make_runs(code, world, capsys)
    code = code.replace('pretrain("train.seconds=60"', "pretrain(*small['pretrain']")
    code = code.replace("finetune(", "finetune(*small['finetune'], ").replace("seeds=5", "seeds=2")
    names = {"small": SMALL}
    exec(code, names)
    assert names["vectors"].shape == (2, 16)


def problems(command: str, words: Sequence[str]) -> list[str]:
    """What is wrong with a command, but for values that only the reader has."""
    return [problem for problem in composed.problems(command, words) if ": missing: " not in problem]


@pytest.mark.slow
def test_every_command_of_the_manual_is_understood(world: Path) -> None:
    wrong = {}
    for command, *overrides in dict.fromkeys(tuple(words) for page in PAGES for words in shown(page)):
        if command == "help" or "-cd" in overrides:  # tested with the classes of the guide to extending
            continue
        swept = [word for word in overrides if word not in ("-m", "--multirun")]
        assert len(overrides) - len(swept) <= 1
        if len(swept) < len(overrides):  # each key's first value stands for all
            swept = [word.partition(",")[0] for word in swept]
        if any("=" not in word for word in swept) or expand_task_groups(swept, [ROOT / "conf"]) != swept:
            continue  # `lmtransfer list models` takes words of its own, and a group of tasks is a sweep
        if found := problems(command, swept):
            wrong[shlex.join([command, *overrides])] = found
    assert wrong == {}


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


def test_the_table_of_commands_is_complete() -> None:
    section = PAGES["start"].partition("## All commands")[2]
    table = set(re.findall(r"^\| `([a-z]+)` \|", section, flags=re.MULTILINE))
    assert {words[0] for page in PAGES for words in shown(page)} - {"help"} <= table
    assert table == set(main_help.commands())


def test_every_make_target_of_the_manual_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    other = [(ROOT / path).read_text(encoding="utf-8") for path in (".github/CONTRIBUTING.md", "scripts/RESULTS.md")]
    code = re.findall(r"```.*?```|`[^`\n]+`", "\n".join([*PAGES.values(), *other]), flags=re.DOTALL)
    named = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(code)))
    assert {"demo", "test", "setup", "lectures"} <= named <= targets


def test_groups_and_choices_named_in_the_manual_exist() -> None:
    pattern = r"\b(model|objective|corpus|tokenizer|task|transfer|experiment|study|phases)=([a-z]\w+)\b(?!\()"
    named = {pair for page, text in PAGES.items() if page != "extending" for pair in re.findall(pattern, text)}
    assert len(named) > 40
    for group, choice in named:
        if choice in ("mine", "null", "ours", "own"):
            continue  # the reader's own, and none
        assert (ROOT / "conf" / group / f"{choice}.yaml").is_file(), f"{group}={choice}"


def test_no_example_takes_a_result_from_fewer_than_five_seeds() -> None:
    """Of a task: pretraining seeds are counted by their own rule."""
    said = [line for text in (*PAGES.values(), main_help.main_page()) for line in text.splitlines()]
    found = [line for line in said if re.search(r"lmtransfer (probe|finetune)\b.*\bseeds=", line)]
    found += [line for line in said if "control=true seeds=" in line]
    assert len(found) > 4
    assert [line for line in found if int(line.partition("seeds=")[2][0]) < 5] == []
    settings: Any = command_settings("finetune", ["experiment=few_labels", "init=x", "task=python_docs"])
    assert settings.seeds == 5


def test_the_demonstration_takes_five_seeds_and_prepares_its_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    demo = importlib.import_module("demo")
    assert demo.SEEDS == 5
    prepared = command_settings("prepare", ["corpus=python_docs", *demo.TOKENIZER]).plain()
    pretrained = command_settings("pretrain", ["experiment=demo"]).plain()
    assert prepared["corpus"] == pretrained["corpus"]
    assert {**prepared["tokenizer"], "add": None} == pretrained["tokenizer"]

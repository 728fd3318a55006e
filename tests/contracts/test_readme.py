"""Every command of the README and the guides runs, in its order, as it is written, on little text, with few steps.

Each page is followed in a folder of its own, where a reader's own texts and labels are. What makes a command small is
appended to its words. A page may use a run of another page if it links to that page.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import guide_files
from support import composed

from lmtransfer.cli import main
from lmtransfer.config import main_help
from lmtransfer.launch.run_once import command_settings

ROOT = Path(__file__).resolve().parents[2]
#: The README and the guides, in reading order.
PAGES = {
    "README": (ROOT / "README.md").read_text(encoding="utf-8"),
    **{subject: (main_help.GUIDES / f"{subject}.md").read_text(encoding="utf-8") for subject in main_help.subjects()},
}

#: Lines that are not run, as patterns, and why.
NOT_RUN = {
    r"^make setup": "it installs packages",
    r"^\. \.venv/bin/activate": "the environment is that of the tests",
    r"^pip install": "it needs the network",
    r"corpus=hub\b": "it needs the network",
    r"corpus\.path=(s3|hf):": "it needs the network",
    r"push=[^ ]+$": "it needs the network; with dry_run=true, it is run",
    r"^export LMTRANSFER_DATA=": "the tests have a data folder of their own",
    r"^scripts/slurm_prepare\.sh": "it needs a cluster",
    r"^python clean\.py": "it needs datatrove; the folder that it makes is there",
    r"^lmtransfer serve": "it waits for a browser, and needs an extra",
}
#: Packages without which lines with these words are not run.
NEEDS = {"to=onnx": "onnx", "screening=": "datasketch"}

_TEXT = ["corpus.max_documents=200", "tokenizer.vocab_size=300", "tokenizer.allow_fewer=true"]
_MODEL = ["model.num_layers=1", "model.dim=16", "model.num_heads=1", "model.hidden_dim=32"]
_STEPS = ["train.steps=2", *(f"train.{unit}=null" for unit in ("tokens", "epochs", "seconds"))]
_ON_TASKS = [*_STEPS, "task.num_train=40", "train.batch_examples=4", "hardware.threads=1"]
#: What follows the words of each command, and makes it small.
SMALL = {
    "prepare": [*_TEXT, "num_workers=1"],
    "pretrain": [*_TEXT, *_MODEL, *_STEPS, "train.words=null", "train.batch_tokens=256", "hardware.threads=1"],
    "inspect": [*_TEXT, "hardware.threads=1"],
    "probe": _ON_TASKS,
    "finetune": _ON_TASKS,
    "evaluate": ["hardware.threads=1"],
    "predict": ["hardware.threads=1"],
    "report": ["figures=false"],
    "study": [
        "pretrain.steps=2",
        "pretrain.seconds=null",
        f"pretrain.words={' '.join([*_TEXT, 'train.batch_tokens=256'])}",
    ],
}
#: What else follows the words of a command with a word that begins like this.
FURTHER = {
    "source=FacebookAI/": ["source=downloads/bert-base-uncased"],  # for want of a network
    "phases=": ["train.steps=10"],
    "experiment=modern_base": ["train.batch_tokens=1024"],
    "experiment=bert_base": ["train.batch_tokens=1024", "train.steps=10"],
    "train.save_at=": ["train.save_at=[0,100]"],
    "train.save_at_words=": ["train.save_at_words=[0,10]"],
    "experiment=babylm_strict": ["train.steps=null", "train.words=900", "train.save_at_words=[0,100,300,900]"],
    "experiment=few_labels": ["seeds=2"],
    "experiment=laptop_finetune": ["learning_rates=[1e-4,5e-4]"],
    "seeds=": ["seeds=2"],
    "study=tiny": ["only=[masked]", "transfers.probe.seeds=1", "transfers.probe.control=false"],
    "study=families": [
        "only=[bert]",
        "transfer_seeds=1",
        *(f"transfers.{name}.num_train=40" for name in ("probe", "finetune")),
        "transfers.finetune.control=false",
    ],
}
#: Keys of ``SMALL`` that a command with a word that begins like this does not have.
UNFIT = {
    "init=": ("model.", "tokenizer."),
    "task=": ("corpus.", "tokenizer."),
    "task.folds=": ("task.num_train",),
    "final=true": ("task.num_train",),
    "task=riddles": ("task.num_train",),
    "task=glue": ("task.",),
    "task=babylm_glue": ("task.",),
    "corpus=mixture": ("corpus.max_documents",),
    "-cd": ("model.num_layers", "model.num_heads", "model.hidden_dim"),
    "phases=": ("train.steps",),
}
_RUN = re.compile(r"runs/((?:pretrain|probe|finetune|import|evaluate)/[a-z][\w-]*)")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_SUFFIXES = {"python": "py", "yaml": "yaml", "text": "txt"}


def lines(page: str) -> list[str | tuple[str, str]]:
    """The lines of the shell on a page, and the files that it shows (path and content), in their order."""
    found: list[str | tuple[str, str]] = []
    end = 0
    for block in _BLOCK.finditer(PAGES[page]):
        language, content = block.groups()
        paragraph = PAGES[page][end : block.start()].rstrip().rpartition("\n\n")[2]
        end = block.end()
        named = re.findall(rf"`([\w/]+\.{_SUFFIXES.get(language, ' ')})`", paragraph)
        if language == "bash":
            found += [line for line in content.replace("\\\n", " ").splitlines() if line]
        elif named:
            found.append((named[-1], content))
    return found


def words_of(line: str | tuple[str, str]) -> list[str]:
    """The words after ``lmtransfer``; empty for other lines."""
    if isinstance(line, tuple):
        return []
    command = line.partition(" -m ")[2] if line.startswith("torchrun ") else line
    return shlex.split(command, comments=True)[1:] if command.startswith("lmtransfer ") else []


def commands(page: str) -> list[list[str]]:
    """The words of the ``lmtransfer`` lines of a page."""
    return [words for words in map(words_of, lines(page)) if words]


def run_of(words: list[str]) -> str | None:
    """The run that a command makes, such as ``pretrain/first``."""
    return next((f"{words[0]}/{word.removeprefix('name=')}" for word in words if word.startswith("name=")), None)


#: The pages that make each run, in reading order, and the words of the command there.
MADE: dict[str, dict[str, list[str]]] = {}
for _page in PAGES:
    for _words in commands(_page):
        MADE.setdefault(str(run_of(_words)), {}).setdefault(_page, _words)


def small(words: list[str]) -> list[str]:
    """The words, and those that make the command small."""
    if "--help" in words:
        return words

    def says(start: str) -> bool:
        return any(word.startswith(start) for word in words)

    unfit = tuple(key for start, keys in UNFIT.items() if says(start) for key in keys)
    added = [word for word in SMALL.get(words[0], []) if not word.startswith(unfit)]
    return [*words, *added, *(word for start, further in FURTHER.items() if says(start) for word in further)]


def why_not(line: str) -> str | None:
    """Why a line is not run; None if it is."""
    reasons = [reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)]
    reasons += [f"{package} is missing" for word, package in NEEDS.items()
                if word in line and importlib.util.find_spec(package) is None]  # fmt: skip
    return next(iter(reasons), None)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command, small, in the current folder."""
    try:
        code = main(small(words))
    except SystemExit as leave:  # --help
        code = int(leave.code or 0)
    captured = capsys.readouterr()
    assert code == 0, f"lmtransfer {shlex.join(small(words))}\n{captured.out}\n{captured.err}"


def make(needed: str, page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Make a run that a page needs in a folder as a page does to which it links, and before it what that run needs."""
    sources = [source for source in MADE[needed] if source == page or f"]({source}.md" in PAGES[page]]
    assert sources, f"{page} needs runs/{needed}, which is of {list(MADE[needed])}, but links to none of them"
    if (folder / "runs" / needed).is_dir():
        return
    words = MADE[needed][sources[0]]
    for before in _RUN.findall(" ".join(words)):
        make(before, sources[0], folder, capsys)
    with contextlib.chdir(folder):
        run(words, capsys)


def follow(page: str, others: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Do in the current folder what a page says.

    Args:
        others: a folder for the runs of other pages, which are made once.
    """
    for line in lines(page):
        if isinstance(line, tuple):
            Path(line[0]).parent.mkdir(parents=True, exist_ok=True)
            Path(line[0]).write_text(line[1], encoding="utf-8")
        elif why_not(line) is not None:
            continue
        elif words := words_of(line):
            for needed in dict.fromkeys(_RUN.findall(" ".join(words))):
                if needed != run_of(words) and not Path("runs", needed).is_dir():
                    assert page not in MADE[needed], f"{page}: {line}: a later command makes runs/{needed}"
                    make(needed, page, others, capsys)
                    shutil.copytree(others / "runs" / needed, Path("runs", needed))
            run(words, capsys)
            made = run_of(words)
            assert made is None or list(Path("runs").glob(f"{made}*/**/result.json")), line  # with one a point or task
        elif line.startswith("export "):
            key, _, value = line.removeprefix("export ").partition("=")
            patch.setenv(key, value)
            if key == "PYTHONPATH":
                patch.syspath_prepend(str(Path(value).absolute()))
        else:
            subprocess.run(line, shell=True, check=True)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the runs that other pages make, with the data sets in ``data``."""
    folder = tmp_path_factory.mktemp("manual")
    guide_files.write_own_files(folder)
    guide_files.write_data_folder(folder / "data")
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
def world(others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a reader, who has a data folder, texts and labels, and follows one page."""
    guide_files.write_own_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_DATA", str(others / "data"))
    monkeypatch.setenv("LMTRANSFER_CACHE", str(others / "cache"))
    for module in ("lmtransfer.data.corpora.python_docs", "lmtransfer.tasks.text.python_docs"):
        monkeypatch.setattr(f"{module}.LIBRARIES", FEW_LIBRARIES)
    monkeypatch.setattr("lmtransfer.tasks.text.python_docs.PythonDocsTask.labels", FEW_LIBRARIES)
    monkeypatch.setattr(
        "lmtransfer.launch.processes.command_line", lambda words: [sys.executable, "-c", _WITH_FEW, *words]
    )
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)
    for module in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[module]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_of_a_page_runs(
    page: str, world: Path, others: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "evaluation_data" in PAGES[page]:
        guide_files.write_babylm_data(world)
    for folder in (world, others):
        if any(name in PAGES[page] for name in ("downloads/", "FacebookAI/", "(published.md")):
            guide_files.write_published_bert(folder / "downloads/bert-base-uncased")
    follow(page, others, monkeypatch, capsys)
    EXPECTED.get(page, lambda world: None)(world)


def _readme(world: Path) -> None:
    assert (world / "runs/finetune/first-ft/control/seed-0/result.json").is_file()
    report = (world / "runs/report/report.html").read_text(encoding="utf-8")
    assert [name for name in ("first-ft", "mine-ft", "difference from") if name not in report] == []
    (code,) = _python("README")
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["vectors"].shape == (2, 16)


def _start(world: Path) -> None:
    (code,) = _python("start")
    code = code.replace('"train.seconds=60"', '"train.seconds=60", *small["pretrain"]')
    code = code.replace("finetune(", "finetune(*small['finetune'], ").replace("seeds=5", "seeds=2")
    names: dict[str, Any] = {"small": SMALL}
    exec(code, names)
    assert names["vectors"].shape == (2, 16)


def _python(page: str) -> list[str]:
    """The blocks of Python on a page that are no files."""
    files = [line[1] for line in lines(page) if isinstance(line, tuple)]
    return [
        content for language, content in _BLOCK.findall(PAGES[page]) if language == "python" if content not in files
    ]


def _studies(world: Path) -> None:
    assert (world / "runs/pretrain/masks/objective.mask_prob=0.15/result.json").is_file()
    assert "objective.mask_prob" in (world / "runs/report/report.html").read_text(encoding="utf-8")
    assert (world / "runs/report/records.csv").is_file()


def _published(world: Path) -> None:
    assert np.load(world / "bert.npy").shape == (2, 16)


def _exports(world: Path) -> None:
    assert (world / "bert-sst2-hf/model.safetensors").is_file()


#: What more there must be after the commands of a page.
EXPECTED = {"README": _readme, "start": _start, "studies": _studies, "published": _published, "exports": _exports}


def test_every_line_that_is_not_run_is_on_a_page() -> None:
    every = [line for page in PAGES for line in lines(page) if isinstance(line, str)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in every)] == []
    assert sum(why_not(line) is None for line in every) > 100


@pytest.mark.slow
def test_commands_that_are_not_run_are_understood(world: Path) -> None:
    every = dict.fromkeys(line for page in PAGES for line in lines(page) if isinstance(line, str))
    asked = [words for line in every if why_not(line) is not None and (words := words_of(line))]
    wrong = {shlex.join(words): problems(words[0], words[1:]) for words in asked}
    assert {line: found for line, found in wrong.items() if found} == {}


def problems(command: str, words: Sequence[str]) -> list[str]:
    """What is wrong with a command, but for values that only the reader has."""
    return [problem for problem in composed.problems(command, words) if ": missing: " not in problem]


def test_the_table_of_commands_is_complete() -> None:
    section = PAGES["start"].partition("## All commands")[2]
    table = set(re.findall(r"^\| `([a-z]+)` \|", section, flags=re.MULTILINE))
    assert {words[0] for page in PAGES for words in commands(page)} - {"help"} <= table
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

"""Runs of others that name files, folders, patterns and repositories of this machine: nothing of them is opened."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.bad_input import FINETUNE, PRETRAIN, SECRET, Answer, Case, altered, change, check

import lmtransfer
from lmtransfer.errors import LmtransferError, RunDirectoryError
from lmtransfer.runs import trust
from lmtransfer.system import door

DATA = "lmtransfer.data.corpora"
EVALUATE = ("evaluate", "run=r")
#: Paths that commands open and list, noted by a second audit hook, which sees only what the door lets through.
_seen: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        door._door is not None
        and event in ("open", "os.listdir", "os.scandir")
        and isinstance(arguments[0], str | os.PathLike)
    ):
        _seen.append(os.path.realpath(arguments[0]))


@pytest.fixture(scope="session")
def hook() -> None:
    door._watch()
    sys.addaudithook(_note)


@pytest.fixture
def outside(world: Path, hook: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with secrets, of which no test may open or list anything."""
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    folder = world.parent / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("".join(f"{SECRET} bal bam {row}.\n\n" for row in range(400)))
    (folder / "secret.json").write_text(json.dumps({"version": SECRET, "data": []}))
    (folder / "secret.jsonl").write_text(json.dumps({"sentence_good": SECRET, "sentence_bad": "x"}) + "\n")
    (folder / "t.tsv").write_text("label\ttext\n" + f"good\t{SECRET} bal\nbad\tkit kis\n" * 20)
    (folder / "cdi_childes.json").write_text(json.dumps({SECRET: [{"context": "x"}]}))
    _seen.clear()
    yield folder
    assert [path for path in _seen if path.startswith(str(folder))] == []


@pytest.fixture(params=["both lines", "the door alone"])
def lines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the first line of defence, the check of the names."""
    if request.param == "the door alone":
        for module in ("lmtransfer.pretraining.text", "lmtransfer.transfer.experiment.part_run"):
            monkeypatch.setattr(f"{module}.check_named", lambda *_, **__: None)
        monkeypatch.setattr("lmtransfer.pretraining.text.refusal", _refusal_by_the_door)
    return str(request.param)


def _refusal_by_the_door(key: str, value: str, run: Path) -> RunDirectoryError:
    """The message is not what is tested here."""
    return RunDirectoryError(f"{value}: set trust=true ({run})")


def file_corpus(path: Any, **more: Any) -> dict[str, Any]:
    return {"_target_": f"{DATA}.corpus.FileCorpus", "path": path, "name": "text", **more}


def mixture(**parts: Any) -> dict[str, Any]:
    return {"_target_": f"{DATA}.mixture.MixtureCorpus", "name": "m", "parts": parts}


def screened(source: Any, **overlap: Any) -> dict[str, Any]:
    node = {"_target_": "lmtransfer.data.screening.Screening", "action": "report", "min_jaccard": 0.8}
    return {
        "_target_": "lmtransfer.data.screening.ScreenedCorpus",
        "source": source,
        "screening": {**node, **({"overlap_with": overlap} if overlap else {})},
    }


DOCS = {"_target_": f"{DATA}.python_docs.PythonDocs", "name": "docs", "max_documents": 40}
#: Corpora of someone else's run; ``{outside}`` is the folder with the secrets.
CORPORA: dict[str, tuple[Any, str]] = {
    "screened": (screened(file_corpus("{outside}/secret.txt")), "{outside}/secret.txt"),
    "mixture_in_mixture": (mixture(a=DOCS, b=mixture(c=DOCS, d=file_corpus("{outside}/secret.txt"))), "secret.txt"),
    "pattern": (file_corpus("/**/*.txt"), "/**/*.txt"),
    "pattern_in_list": (file_corpus(["texts", "{outside}/*.txt"]), "texts"),
    "nested_twice": (screened(mixture(a=DOCS, b=screened(file_corpus("{outside}")))), "{outside}"),
    "relative": (file_corpus("../outside/secret.txt"), "../outside/secret.txt"),
    "data_folder": (
        {"_target_": f"{DATA}.data_folder.DataFolderCorpus", "name": "d", "files": ["{outside}/secret.txt"]},
        "{outside}/secret.txt",
    ),
    "hub_folder": ({"_target_": f"{DATA}.hub.HubCorpus", "name": "h", "dataset": "{outside}"}, "{outside}"),
    "hub_folder_nested": (
        mixture(a=DOCS, b={"_target_": f"{DATA}.hub.HubCorpus", "name": "h", "dataset": "{outside}"}),
        "{outside}",
    ),
    "address": (file_corpus("file://{outside}/secret.txt"), "file:///"),
    "environment": (file_corpus("/proc/self/environ"), "/proc/self/environ"),
    "memo": (mixture(a=DOCS, b=file_corpus("texts", cache_dir="{outside}")), "trust=true"),
}  # fmt: skip


def _filled(value: Any, outside: Path) -> Any:
    return json.loads(json.dumps(value).replace("{outside}", str(outside)))


@pytest.mark.parametrize("name", list(CORPORA))
def test_no_corpus_of_others_is_opened(name: str, lines: str, world: Path, outside: Path, answer: Answer) -> None:
    corpus, named = _filled(CORPORA[name], outside)
    altered(world, {"corpus": corpus})
    before = sorted(outside.iterdir())
    check(Case(EVALUATE, (named, "trust=true", *(["config.yaml"] if lines == "both lines" else []))), world, answer)
    assert sorted(outside.iterdir()) == before


def test_no_text_of_others_is_compared_with(world: Path, outside: Path, answer: Answer) -> None:
    """A screening inside a corpus compares with nothing that a configuration names."""
    altered(world, {"corpus": _filled(screened(DOCS, x=file_corpus("{outside}/secret.txt")), outside)})
    check(Case(EVALUATE, ("config.yaml", "corpus.screening.overlap_with")), world, answer)


@pytest.mark.parametrize("name", ["screened", "mixture_in_mixture", "hub_folder"])
def test_no_joint_training_reads_the_text_of_others(name: str, world: Path, outside: Path, answer: Answer) -> None:
    corpus, named = _filled(CORPORA[name], outside)
    altered(world, {"corpus": corpus})
    words = [word for word in FINETUNE if not word.startswith("init=")]
    joint = ("init=r", "transfer=joint", "transfer.text_tokens=64", "task.dev_from_train=null")
    check(Case((*words, *joint), (named, "corpus")), world, answer)


TEXT = "lmtransfer.tasks.text.classification"
ZERO = "lmtransfer.tasks.zero_shot"
COLUMNS = {"text_column": "text", "label_column": "label", "labels": ["bad", "good"]}
#: Tasks of someone else's run, and what the message names.
TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "languages": (
        {"_target_": "lmtransfer.tasks.qa.task.CrossLingualQa", "name": "q", "labels": [],
         "languages": ["../../outside/secret"], "files": {"dev": "data/{language}.json"}},
        "task.files.dev",
    ),
    "language": (
        {"_target_": f"{TEXT}.CrossLingualClassification", "name": "x", **COLUMNS, "language": "../../outside/t",
         "languages": ["en"], "language_column": "l", "files": {"train": "data/{language}.tsv", "dev": "t.tsv"}},
        "task.files.dev",
    ),
    "reading": ({"_target_": f"{ZERO}.reading.Reading", "name": "r", "file": "{outside}/t.tsv"}, "{outside}/t.tsv"),
    "surprisal": (
        {"_target_": f"{ZERO}.surprisal.Surprisal", "name": "s", "file": "../outside/secret.txt"}, "secret.txt"
    ),
    "choices": (
        {"_target_": f"{ZERO}.choices.CompletionChoice", "name": "c", "format": "blimp", "folder": "{outside}"},
        "{outside}",
    ),
    "choices_of_several": (
        {"_target_": f"{ZERO}.choices.CompletionChoice", "name": "c", "format": "blimp",
         "folder": ["gone", "../outside"]},
        "gone",
    ),
    "acquisition": (
        {"_target_": f"{ZERO}.acquisition.AgeOfAcquisition", "name": "a", "folder": "{outside}"}, "{outside}"
    ),
    "word_forms": (
        {"_target_": f"{ZERO}.word_forms.WordFormPreference", "name": "w", "folder": "{outside}/secret.jsonl"},
        "{outside}/secret.jsonl",
    ),
    "files": (
        {"_target_": f"{TEXT}.TextClassification", "name": "f", **COLUMNS, "files": {"dev": ["{outside}/t.tsv"]}},
        "{outside}/t.tsv",
    ),
    "here": (
        {"_target_": f"{TEXT}.TextClassification", "name": "f", **COLUMNS, "files": {"dev": "../outside/t.tsv"}},
        "../outside/t.tsv",
    ),
    "hub_folder": (
        {"_target_": f"{TEXT}.TextClassification", "name": "f", **COLUMNS, "hub": "{outside}",
         "hub_splits": {"dev": "train"}},
        "{outside}",
    ),
}  # fmt: skip


@pytest.fixture
def task_run(task_world: Path, outside: Path) -> Path:
    """A task run ``t`` that someone else has changed, with one seed."""
    return (task_world / "runs/finetune/ft/seed-0").rename(task_world / "t")


@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("words", [("evaluate", "run=t"), ("predict", "run=t")], ids=["evaluate", "predict"])
def test_no_task_of_others_is_opened(
    name: str, words: tuple[str, ...], lines: str, task_run: Path, task_world: Path, outside: Path, answer: Answer
) -> None:
    task, named = _filled(TASKS[name], outside)
    change(task_run / "config.yaml", {"task": task})
    names = (named, "config.yaml", "trust=true") if lines == "both lines" else ()
    split = "test" if ZERO in task["_target_"] else "dev"
    check(Case((*words, f"split={split}"), names), task_world, answer)


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "run=t", "text=bal bam"),
        ("embed", "run=t", "input=texts/a.txt", "output=v.npy", "format=text"),
        ("export", "run=t", "to=e"),
        ("evaluate", "run=t", "split=dev", "task=text_classification", "task.dev=t.tsv", "task.labels=[bad,good]"),
    ],
    ids=lambda words: words[0],
)
def test_no_labels_are_looked_up_outside(
    words: tuple[str, ...], task_run: Path, task_world: Path, outside: Path, answer: Answer
) -> None:
    change(task_run / "config.yaml", {"task.labels": None, "task.train": str(outside / "t.tsv")})
    check(Case(words, (str(outside / "t.tsv"),)), task_world, answer)


def test_a_seed_of_others_is_not_believed(task_world: Path, outside: Path, answer: Answer) -> None:
    change(task_world / "runs/finetune/ft/seed-0/config.yaml", {"task.dev": str(outside / "t.tsv")})
    words = ("predict", "run=runs/finetune/ft", "split=dev")
    check(Case(words, (str(outside / "t.tsv"), "task.dev", "trust=true")), task_world, answer)


@pytest.mark.parametrize("way", ["export", "import", "study", "revision"])
def test_a_run_stays_that_of_others(way: str, world: Path, outside: Path, answer: Answer) -> None:
    """However it comes: exported and opened again, imported, in the folder of a study, as a revision."""
    corpus, named = _filled(CORPORA["screened"], outside)
    altered(world, {"corpus": corpus})
    if way == "export":
        assert answer("export", "run=r", "to=e", "format=run")[0] == 0
        run = "hf:e"
    elif way == "import":
        assert answer("import", "source=r", "name=c")[0] == 0
        run = "runs/pretrain/c"
    elif way == "study":
        shutil.move("r", world / "runs/study/s/pretrain/r")
        run = "runs/study/s/pretrain/r"
    else:
        shutil.copytree("r/checkpoints/last", "r/checkpoints/tokens-128")
        run = "r"
    check(Case(("evaluate", f"run={run}"), (named, "corpus.source.path", "trust=true")), world, answer)


def test_a_report_shows_nothing_that_the_runs_of_others_name(
    task_run: Path, task_world: Path, outside: Path, answer: Answer
) -> None:
    """Neither the texts of wrong answers nor a run that is named as the start."""
    other = outside / "pretrain/secret-run"
    shutil.copytree(task_world / "runs/pretrain/base", other)
    change(other / "result.json", {"num_parameters": 987654321})
    place = task_world / "runs/study/s/finetune/t"
    shutil.move(task_run, place)
    files = {"task.train": str(outside / "t.tsv"), "task.dev": str(outside / "t.tsv"), "init": str(other)}
    change(place / "config.yaml", files)
    status, said = answer("report", "runs/study/s", "figures=false")
    assert status == 0, said
    page = (task_world / "runs/study/s/report/report.html").read_text()
    assert SECRET not in page + said
    assert "987" not in page


def test_phases_and_settings_of_others_name_nothing_that_is_read(world: Path, outside: Path, answer: Answer) -> None:
    """A corpus where none belongs, in phases; a tokenizer's words; a screening that only reports."""
    corpus = file_corpus(str(outside / "secret.txt"))
    screening = {"_target_": "lmtransfer.data.screening.Screening", "action": "report", "min_jaccard": 0.8}
    hidden: dict[str, Any] = {"phases": {"a": {"corpus": corpus}}, "tokenizer": {"add": str(outside / "secret.txt")}}
    hidden |= {"screening": {**screening, "overlap_with": {"x": corpus}}, "init": str(outside)}
    altered(world, json.loads(json.dumps(hidden)))  # without YAML aliases
    continued = [word for word in PRETRAIN[1:-1] if not word.startswith(("model", "tokenizer"))]
    for words in (
        ("evaluate", "run=r", "corpus=text", "corpus.path=texts"),
        ("predict", "run=r", "text=bal [MASK] bam"),
        ("embed", "run=r", "input=texts/a.txt", "output=v.npy", "format=text"),
        ("pretrain", "init=r", *continued, "name=p"),
        ("inspect", "init=r", *FINETUNE[2:4], "task.dev_from_train=null"),
    ):
        status, said = answer(*words)
        assert SECRET not in said
        assert status in (0, 2), said
        assert "Traceback" not in said


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a listener, and the requests that it got."""
    requests: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers.get('authorization')}")
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", requests
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["corpus", "nested", "stream", "task"])
def test_no_request_is_sent_and_no_token(
    where: str, hub: tuple[str, list[str]], task_world: Path, run_cli: Callable[..., Any]
) -> None:
    address, requests = hub
    corpus = {"_target_": f"{DATA}.hub.HubCorpus", "name": "h", "dataset": "somebody/tracks"}
    nodes = {"corpus": corpus, "nested": mixture(a=DOCS, b=screened(corpus)), "stream": {**corpus, "streaming": True}}
    words = ("evaluate", "run=r")
    if where == "task":
        shutil.move(task_world / "runs/finetune/ft/seed-0", task_world / "t")
        node = {**TASKS["hub_folder"][0], "hub": "somebody/tracks"}
        change(task_world / "t/config.yaml", {"task": node})
        words = ("evaluate", "run=t", "split=dev")
    else:
        altered(task_world, {"corpus": nodes[where]})
    environment = {
        "HF_ENDPOINT": address, "HF_TOKEN": "hf_of_the_reader", "HF_HOME": str(task_world / "hf"),
        **dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "0"),
        "LMTRANSFER_DATA": None, "LMTRANSFER_CACHE": str(task_world / "cache"),
    }  # fmt: skip
    done = run_cli(*words, cwd=task_world, **environment)
    assert done.returncode == 2, done.stderr
    assert all(name in done.stderr for name in ("somebody/tracks", "trust=true")), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert requests == []
    run_cli(*words, "trust=true", cwd=task_world, **environment)
    assert any("somebody/tracks" in request and "hf_of_the_reader" in request for request in requests)


class TestHonestWays:
    """What the user names is read, and nothing stays closed."""

    def test_a_run_of_others_on_data_of_ones_own(self, task_run: Path, task_world: Path, answer: Answer) -> None:
        (task_run / "made_here").unlink()
        own = ("task=text_classification", "task.labels=[bad,good]")
        for words in (
            ("evaluate", "run=t", "split=dev", "task.dev=t.tsv", *own, "name=a"),
            ("predict", "run=t", "input=t.tsv", "output=p.jsonl", "column_prefix=predicted_"),
            ("finetune", "init=t", *FINETUNE[2:-1], "task.dev_from_train=null", "name=b", "num_workers=0"),
        ):
            status, said = answer(*(word for word in words if word != "num_workers=0"))
            assert status == 0, said

    def test_files_below_data_root_are_read(self, task_run: Path, task_world: Path, answer: Answer) -> None:
        (task_world / "data").mkdir()
        shutil.copy("t.tsv", "data/t.tsv")
        change(task_run / "config.yaml", {"task.train": "t.tsv", "task.dev": "t.tsv"})
        check(
            Case(("evaluate", "run=t", "split=dev"), ("task.dev", "t.tsv", "data_root", "trust=true")),
            task_world,
            answer,
        )
        status, said = answer("evaluate", "run=t", "split=dev", "data_root=data")
        assert status == 0, said

    def test_text_below_data_root_and_installed_text_are_read(self, world: Path, outside: Path, answer: Answer) -> None:
        altered(world, {"corpus.path": [str(world / "texts")]})
        check(Case(EVALUATE, ("corpus.path", "data_root", "trust=true")), world, answer)
        status, said = answer(*EVALUATE, "data_root=.", "name=a")
        assert status == 0, said
        assert answer(*EVALUATE, "trust=true", "name=b")[0] == 0
        (world / "texts/a.txt").write_text("bal bam bim. " * 999)
        check(Case((*EVALUATE, "data_root=."), ("corpus.path", "trained on", "trust=true")), world, answer)

    @pytest.mark.slow
    def test_the_docstrings_of_this_machine_are_read(self, world: Path, outside: Path, answer: Answer) -> None:
        altered(world, {"corpus": DOCS})
        status, said = answer(*EVALUATE)
        assert status == 0, said

    def test_a_moved_run_of_ones_own_is_read_where_its_data_are(self, task_world: Path, answer: Answer) -> None:
        shutil.move(task_world / "runs/finetune/ft", task_world / "moved")
        config = yaml.safe_load((task_world / "moved/seed-0/config.yaml").read_text())
        for seed in ("seed-0", "seed-1"):
            trust.mark_as_own(task_world / "moved" / seed)
        assert config["task"]["train"] == "t.tsv"
        status, said = answer("evaluate", "run=moved", "split=train")
        assert status == 0, said

    def test_the_door_is_open_again_after_a_call(self, world: Path, outside: Path) -> None:
        corpus, _ = _filled(CORPORA["screened"], outside)
        run = altered(world, {"corpus": corpus})
        with pytest.raises(LmtransferError):
            lmtransfer.evaluate(run="r")
        mine = world.parent / "mine.txt"
        mine.write_text("mine")
        assert mine.read_text() == "mine"
        loaded = lmtransfer.load(run)
        assert mine.read_text() == "mine"
        assert loaded.vectors("bal bam").shape[0] == 1
        assert loaded.predict("bal [MASK] bam")
        assert mine.read_text() == "mine"

    def test_an_imported_model_is_the_users_own(self, world: Path, answer: Answer) -> None:
        assert answer("export", "run=runs/pretrain/base", "to=published", "format=transformers")[0] == 0
        assert answer("import", "source=published", "name=p")[0] == 0
        assert trust.is_own(world / "runs/import/p")

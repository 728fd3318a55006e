"""Make the old runs that the tests go on using: run at the commit before a change of format, and its results are kept.

    python tests/old_runs/make_old_runs.py            makes those in /tmp/old_runs that are not there, and packs all
    python tests/old_runs/make_old_runs.py --pack     only packs

The results (``*.tar.xz``, ``index.json``) are in git: code of later days is to evaluate, predict with, go on with,
export and report what the code of that day has written, and to say the same of it (tests/recipes/test_old_runs.py). So
this is run before such a change and never after it, in a few minutes.

What the runs say is noted where they were made: their losses and metrics, the predictions for the test files, and for
runs that were stopped, the losses and the weights of the same run left alone. Nothing of this machine is kept: runs
are made in a place that is the same everywhere, and versions.json does not say on which CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_PATHS = [str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "scripts")]
sys.path[:0] = _PATHS
os.environ |= {"PYTHONPATH": ":".join(_PATHS), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
os.environ |= {"LMTRANSFER_ALLOW": "kills", "HF_HUB_OFFLINE": "1"}

from old_plan import BACKWARD, BEGUN, EVALUATED, IMPORTED, ONWARDS, PLACE, PRETRAINED, STUDY, TEXT, TRANSFERRED, Made  # noqa: E402
from old_reading import final, run_folders  # noqa: E402
from old_world import write_published, write_world  # noqa: E402

#: What is packed together, by the archive's name. Like files lie together, so that they take their room once.
ARCHIVES = {
    "world": ("data", "coqa", "imdb_unsup", "multilingual", "own", "blimp", "conf", "masked.txt", "expected"),
    "pretrained": ("runs/pretrain", "runs/import", "runs/evaluate"),
    "transferred": ("runs/probe", "runs/finetune", "runs/study"),
    "begun": ("unfinished",),
}
_SCRATCH = "scratch"
_OF_STUDY = ("study", "-cd", "conf", "study=own", "data_root=.")
_TO_SCRATCH = ("name=x", f"output_root={_SCRATCH}")


def main() -> None:
    """Make and pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", action="store_true", help="only pack what is there")
    options = parser.parse_args()
    place = Path(PLACE)
    if not options.pack:
        place.mkdir(parents=True, exist_ok=True)
        os.chdir(place)
        os.environ["LMTRANSFER_CACHE"] = str(place / "cache")
        os.environ.pop("LMTRANSFER_DATA", None)
        make()
    os.chdir(place)
    _forget_the_machine()
    _report()
    for name, folders in ARCHIVES.items():
        _pack(HERE / f"{name}.tar.xz", folders)
    shutil.copyfile("index.json", HERE / "index.json")


def make() -> None:
    """All runs, and what they say."""
    write_world(Path())
    write_published(Path("published/bert"))
    for name, text in (("model/backward_lstm", BACKWARD), ("study/own", STUDY)):
        path = Path("conf", f"{name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    _make(Made("bert", ("source=published/bert",), "import"))
    for made in PRETRAINED:
        _make(made)
    for name in IMPORTED:
        if not Path("published", name).exists():
            _say("export", f"run=runs/pretrain/{name}", f"to=published/{name}")
        _make(Made(name.partition("_")[0], (f"source=published/{name}",), "import"))
    for made in TRANSFERRED:
        _make(made)
    _say(*_OF_STUDY)
    index: dict[str, Any] = {
        "begun": [_created(made) for made in BEGUN],
        "whole": [_noted(folder) for folder in run_folders(Path("runs"))],
        "study": [*_OF_STUDY],
        "onwards": [_onwards(list(words)) for words in ONWARDS],
        "made": {f"{made.command}/{made.name}": made.words for made in (*PRETRAINED, *TRANSFERRED)},
    }
    index["evaluated"] = []
    for name, words in EVALUATED.items():
        if not Path("runs/evaluate", name).exists():
            _say("evaluate", *words, f"name={name}", "hardware=exact")
        metrics = json.loads(Path("runs/evaluate", name, "result.json").read_text())["metrics"]
        index["evaluated"].append({"path": f"runs/evaluate/{name}", "words": list(words), "metrics": metrics})
    Path("index.json").write_text(_a_run_a_line(index), encoding="ascii")


def _a_run_a_line(index: dict[str, Any]) -> str:
    """As JSON, with a line for each run."""
    parts = []
    for key, runs in index.items():
        lines = runs.items() if isinstance(runs, dict) else ((None, run) for run in runs)
        texts = [(f"{json.dumps(name)}: " if name else "") + json.dumps(run) for name, run in lines]
        opening, closing = "{}" if isinstance(runs, dict) else "[]"
        parts.append(f"{json.dumps(key)}: {opening}\n" + ",\n".join(texts) + f"\n{closing}")
    return "{" + ",\n".join(parts) + "}\n"


def _make(made: Made) -> None:
    if not Path("runs", made.command, made.name).exists():
        _say(made.command, *made.words, f"name={made.name}")


def _noted(folder: Path) -> dict[str, Any]:
    """What a finished run says when it is evaluated, predicted with and exported."""
    result = json.loads((folder / "result.json").read_text())
    command, noted = result["command"], {"path": str(folder), "command": result["command"]}
    of_text = command in ("import", "pretrain")
    data = {"import": [*TEXT], "pretrain": ["data_root=."]}.get(command, ["split=dev"])
    if folder.name == "own_text":
        data = ["corpus=text", "corpus.path=own/text.txt", "corpus.validation_fraction=0.2"]
    data += ["eval_tokens=100000"] if of_text else []
    may_evaluate = folder.name != "python_docs"  # whose texts are those of the packages that are installed
    evaluation = ("evaluate", f"run={folder}", *data, "hardware=exact", *_TO_SCRATCH)
    if may_evaluate and _say(*evaluation, may_fail=True) == 0:
        found = json.loads(Path(_SCRATCH, "evaluate/x/result.json").read_text())
        noted["evaluate"] = {"words": data, "metrics": found["metrics"]}
        if command != "import" and result["metrics"]:
            _see_alike(result["metrics"], found["metrics"], folder)
        shutil.rmtree(Path(_SCRATCH, "evaluate"))
    expected = Path("expected", f"{'-'.join(folder.parts[1:])}.jsonl")
    expected.parent.mkdir(exist_ok=True)
    asked = ["input=masked.txt", "top_k=12"] if of_text else ["split=test"]
    asked = {"python_docs": ["input=masked.txt"], "coqa": ["split=dev"]}.get(folder.name, asked)
    answers = [*asked, "hardware=exact", f"output={expected}", "overwrite=true"]
    if _say("predict", f"run={folder}", *answers, may_fail=True) == 0:
        noted["predict"] = {"words": asked, "expected": str(expected)}
    exported = Path(_SCRATCH, "exported")
    for form in ("auto", "tensors"):
        if _say("export", f"run={folder}", f"to={exported}", f"format={form}", may_fail=True) == 0:
            layout = exported / "config.json"
            architecture = json.loads(layout.read_text())["architectures"][0] if layout.is_file() else None
            noted["export"] = {"words": [f"format={form}"], "architecture": architecture}
            shutil.rmtree(exported)
            break
    return noted


def _onwards(words: list[str]) -> dict[str, Any]:
    """What comes of a command line that begins from one of the runs."""
    _say(*words, *_TO_SCRATCH)
    metrics = json.loads(Path(_SCRATCH, words[0], "x", "result.json").read_text())["metrics"]
    shutil.rmtree(Path(_SCRATCH, words[0], "x"))
    return {"words": words, "metrics": metrics}


def _report() -> None:
    """Note what is reported of all runs, where they are not where they were made."""
    place, elsewhere = Path(PLACE), Path(f"{PLACE}_elsewhere")
    place.rename(elsewhere)
    try:
        os.chdir(elsewhere)
        _say("report", "runs=[runs,unfinished]", f"to={_SCRATCH}/report")
        conditions = "runs=[runs/finetune/single,runs/finetune/single/control]"
        compared = _said("compare", conditions, f"to={_SCRATCH}/compared")
        shutil.copyfile(f"{_SCRATCH}/report/report.json", "expected/report.json")
        Path("expected/compared.txt").write_text(compared.partition("As a page")[0])
        figures = sorted(path.name for path in Path(_SCRATCH, "report/figures").glob("*.png"))
        Path("expected/figures.json").write_text(json.dumps(figures))
        shutil.rmtree(_SCRATCH)
    finally:
        elsewhere.rename(place)
        os.chdir(place)


def _see_alike(ours: dict[str, float], again: dict[str, float], folder: Path) -> None:
    for name, value in ours.items():
        if value is not None and abs(again[name] - value) > 1e-5 * max(1.0, abs(value)):
            raise SystemExit(f"{folder}: {name} was {value} and is {again[name]}: a run must give its own result again")


def _created(made: Made) -> dict[str, Any]:
    """Stop a run, and note how it would have ended."""
    begun_before = Path("unfinished", made.command, made.name)
    if begun_before.exists():
        shutil.rmtree(begun_before)
    _say(made.command, *made.words, f"name={made.name}", f"output_root={_SCRATCH}")
    assert made.stop_after is not None
    with _stopped_after(made.stop_after):
        _say(made.command, *made.words, f"name={made.name}", "output_root=unfinished", may_fail=True)
    whole, begun = Path(_SCRATCH, made.command, made.name), Path("unfinished", made.command, made.name)
    ends, is_at = final(whole), final(begun)
    if ends == is_at or (begun / "result.json").exists() or not list(begun.rglob("checkpoints/last")):
        raise SystemExit(f"{begun}: was stopped before its first save or not at all: choose another stop_after")
    noted = {"path": str(begun), "command": made.command, "words": list(made.words), "moved": made.moved, "ends": ends}
    shutil.rmtree(whole)
    return noted


@contextlib.contextmanager
def _stopped_after(saves: int) -> Iterator[None]:
    """As Ctrl-C would, when so many checkpoints have been put in their place as ``last``."""
    rename, count = Path.rename, 0

    def rename_and_stop(self: Path, target: str | Path) -> Path:
        nonlocal count
        moved = rename(self, target)
        count += Path(target).name == "last"
        if Path(target).name == "last" and count == saves:
            signal.raise_signal(signal.SIGINT)
        return moved

    Path.rename = rename_and_stop  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Path.rename = rename  # type: ignore[method-assign]


def _say(*words: str, may_fail: bool = False) -> int:
    """Run a command in this process, and show what it says where it fails; the exit code."""
    code, said = _run(words)
    if code:
        print(said[-1500:], flush=True)
        if not may_fail:
            raise SystemExit(f"failed with {code}: {' '.join(words)}")
    return code


def _said(*words: str) -> str:
    """What a command prints."""
    code, said = _run(words)
    if code:
        raise SystemExit(said)
    return said


def _run(words: tuple[str, ...]) -> tuple[int, str]:
    from lmtransfer.cli import main as lmtransfer

    named = [word for word in words if word.startswith(("name=", "run=", "output_root=", "format="))]
    print("lmtransfer", words[0], *named, flush=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = lmtransfer(list(words))
    return code, said.getvalue()


def _forget_the_machine() -> None:
    """Take out what says which machine the runs were made on."""
    for path in Path().rglob("versions.json"):
        versions = json.loads(path.read_text())
        versions |= {"platform": "Linux", "processor": "some processor"}
        path.write_text(json.dumps(versions, indent=1) + "\n")


def _pack(archive: Path, folders: tuple[str, ...]) -> None:
    """Pack folders, always into the same bytes: files of one name lie together, without times and owners."""
    files = [path for folder in map(Path, folders) for path in ([folder] if folder.is_file() else folder.rglob("*"))]
    kept = [path for path in files if path.is_file() and ".lock" not in path.name]
    kept.sort(key=lambda path: (path.parent.name == "tokenizer", path.suffix, path.name, str(path)))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in kept:
            entry = tarfile.TarInfo(path.as_posix())
            entry.size, entry.mode = path.stat().st_size, 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=6))
    print(f"{archive.name}: {len(kept)} files, {len(packed.getvalue()):,} bytes, {archive.stat().st_size:,} packed")


if __name__ == "__main__":
    main()

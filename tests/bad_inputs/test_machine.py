"""What the machine refuses: room, permission, memory, names, a home; streams that are closed or know few letters."""

from __future__ import annotations

import errno
import io
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from support.bad_input import FINETUNE, PREPARE, PRETRAIN, Answer, Case, check
from support.limits import capacity, no_privileges
from support.refusals import refuses

from lmtransfer import cli
from lmtransfer.errors import ConfigError
from lmtransfer.system import machine, ranks
from lmtransfer.system.durable import staged_folder, write_text
from lmtransfer.system.printable import IN_ASCII

LONG = "n" * 300
RUN = "run=runs/pretrain/base"
MASKS = {"in.txt": b"bal [MASK] bam\n" * 60}
PREDICT = ("predict", RUN, "input=in.txt")
EXPORT = ("export", RUN, "format=tensors")
TABLE = {"t.tsv": b"label\ttext\n" + b"".join(b"good\tbal %d\nbad\tkit %d\n" % (row, row) for row in range(30))}
LOCKED_FOLDER = {"ro/.keep": b""}
OWN_STUDY = b"# @package _global_\n# Mine\nname: s\nrecipes: {a: model=bert_tiny}\n"


@pytest.fixture
def hushed(world: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """As ``answer``, with what is said kept in memory: a full disk would have no room for it."""

    def run(*words: str) -> tuple[int, str]:
        try:
            status = cli.main(list(words))
        except SystemExit as leave:
            status = int(leave.code or 0)
        out, err = capsys.readouterr()
        return status, out + err

    return run


def everything(world: Path) -> set[str]:
    """All that lies in the folder, but for caches."""
    return {str(path.relative_to(world)) for path in world.rglob("*") if path.relative_to(world).parts[0] != "cache"}


# No room. No file may get longer than so many bytes, which is what a write meets on a full disk.
FULL: dict[str, tuple[Case, tuple[int, ...]]] = {
    "prepare": (Case((*PREPARE, "corpus.path=texts", "cache_dir=c"), ("cache_dir", "c/")), (0, 3000)),
    "pretrain": (Case(PRETRAIN, ("runs/pretrain/x",)), (0, 1000, 10_000)),
    "finetune": (Case((*FINETUNE, "learning_rates=null"), ("runs/finetune/x",), TABLE), (100, 10_000)),
    "evaluate": (Case(("evaluate", RUN, "eval_tokens=64", "name=e"), ("runs/evaluate/e",)), (0, 300)),
    "predict": (Case((*PREDICT, "output=p.jsonl"), ("output=p.jsonl",), MASKS), (0, 20_000)),
    "predict.csv": (Case((*PREDICT, "output=p.csv"), ("output=p.csv",), MASKS), (0, 5_000)),
    "predict.parquet": (Case((*PREDICT, "output=p.parquet"), ("output=p.parquet",), MASKS), (0, 500)),
    "export": (Case((*EXPORT, "to=e"), ("to=", "/e")), (0, 10_000)),
    "report": (Case(("report", "runs", "to=o", "figures=false"), ("to=o",)), (500,)),
    "study": (Case(("study", "-cd", "mine", "study=own"), ("study.json",), {"mine/study/own.yaml": OWN_STUDY}), (0,)),
    "inspect": (
        Case(("inspect", *PRETRAIN[1:-1], "measure=false", "cache_dir=c"), ("cache_dir",)),
        (0, 400),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "num_bytes"), [(name, capacity) for name, (_, rooms) in FULL.items() for capacity in rooms]
)
def test_no_room_is_said_and_leaves_nothing(name: str, num_bytes: int, world: Path, hushed: Answer) -> None:
    case = FULL[name][0]
    for file, content in case.files.items():
        (world / file).parent.mkdir(parents=True, exist_ok=True)
        (world / file).write_bytes(content)
    before = everything(world)

    def limited(*words: str) -> tuple[int, str]:
        with capacity(num_bytes):
            return hushed(*words)

    said = check(case, world, limited)
    assert os.strerror(errno.EFBIG).lower() in said.lower()
    left = {path for path in everything(world) - before if not path.startswith("c")}
    assert left == set()
    for staged in (world / "c").rglob(".*.tmp"):
        raise AssertionError(staged)


def test_a_report_that_was_there_outlives_a_full_disk(world: Path, hushed: Answer) -> None:
    assert hushed("report", "runs", "to=o", "figures=false")[0] == 0
    before = {path.name: path.read_bytes() for path in (world / "o").iterdir()}
    with capacity(500):
        status, said = hushed("report", "runs", "to=o", "figures=false", "title=other")
    assert (status, "to=o" in said) == (2, True)
    assert {path.name: path.read_bytes() for path in (world / "o").iterdir()} == before


def test_room_is_found_wanting_where_a_file_is_flushed(
    world: Path, hushed: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on file systems that look for room late."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = everything(world)
    monkeypatch.setattr(os, "fsync", fail)
    for case in (
        Case((*EXPORT, "to=e"), ("to=", "/e")),
        Case((*PREPARE, "corpus.path=texts", "cache_dir=c"), ("cache_dir", "space")),
        Case(PRETRAIN, ("runs/pretrain/x",)),
    ):
        check(case, world, hushed)
    assert {path for path in everything(world) if not path.startswith("c")} == before


# What may not be read or written, for anybody.
LOCKED: dict[str, tuple[dict[str, int], Case]] = {
    "unreadable_text": (
        {"a.txt": 0},
        Case((*PREPARE, "corpus.path=a.txt"), ("a.txt", "denied"), {"a.txt": b"bal bam\n"}),
    ),
    "unreadable_task": ({"t.tsv": 0}, Case(FINETUNE, ("t.tsv", "denied"))),
    "unreadable_config": ({"runs/pretrain/base/config.yaml": 0}, Case(PREDICT, ("config.yaml",), MASKS)),
    "unreadable_weights": (
        {"runs/pretrain/base/checkpoints/best/model.safetensors": 0},
        Case(PREDICT, ("model.safetensors", "denied"), MASKS),
    ),
    "unreadable_run": ({"runs/pretrain/base": 0}, Case(PREDICT, ("run=", "denied"), MASKS)),
    "locked_root": ({"ro": 0o555}, Case((*PRETRAIN, "output_root=ro"), ("ro/pretrain", "output_root"), LOCKED_FOLDER)),
    "locked_root_evaluate": (
        {"ro": 0o555},
        Case(("evaluate", RUN, "eval_tokens=64", "output_root=ro"), ("ro/evaluate",), LOCKED_FOLDER),
    ),
    "locked_output": (
        {"ro": 0o555},
        Case((*PREDICT, "output=ro/p.jsonl"), ("output=ro/p.jsonl",), MASKS | LOCKED_FOLDER),
    ),
    "locked_report": ({"ro": 0o555}, Case(("report", "runs", "to=ro/o"), ("to=ro/o",), LOCKED_FOLDER)),
    "unreadable_runs": ({"runs": 0}, Case(("report", "runs", "to=o"), ("runs=runs: ", "permission"))),
    "runs_not_to_be_entered": ({"runs": 0o644}, Case(("report", "runs", "to=o"), ("runs=runs: ", "permission"))),
    "unreadable_configs": (
        {"mine/model/own.yaml": 0},
        Case((*PRETRAIN, "-cd", "mine", "model=own"), ("own.yaml", "denied"), {"mine/model/own.yaml": b"dim: 8\n"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LOCKED))
def test_what_is_locked_is_named(name: str, world: Path, answer: Answer) -> None:
    modes, case = LOCKED[name]
    for file, content in case.files.items():
        (world / file).parent.mkdir(parents=True, exist_ok=True)
        (world / file).write_bytes(content)
    kept = {path: (world / path).stat().st_mode & 0o777 for path in modes}
    before = everything(world)

    def locked(*words: str) -> tuple[int, str]:
        for path, mode in modes.items():
            (world / path).chmod(mode)
        try:
            with no_privileges():
                return answer(*words)
        finally:
            for path, mode in kept.items():
                (world / path).chmod(mode)

    check(case, world, locked)
    assert everything(world) == before


# Paths that nothing can have.
PATHS: dict[str, Case] = {
    "long.name": Case((*PRETRAIN[:-1], f"name={LONG}"), ("name:", "300 bytes")),
    "long.output_root": Case((*PRETRAIN, f"output_root={LONG}"), (f"output_root={LONG[:100]}", "long")),
    "long.output": Case((*PREDICT, f"output={LONG}.jsonl"), ("output=", "too long"), MASKS),
    "long.task": Case((*FINETUNE, f"task.train={LONG}"), ("task.train=",)),
    **{
        f"nul.{key}": Case((*words, f"{key}=a\0b"), (f"{key}=", "NUL"))
        for key, words in (("corpus.path", PREPARE), ("task.train", FINETUNE))
    },
    "nul.config_dir": Case((*PRETRAIN, "-cd", "a\0b"), ("--config-dir",)),
    **{
        f"home.{words[0]}.{key}": Case((*words, f"{key}=~nobody99/x"), (f"{key}=~nobody99/x", "'nobody99'"))
        for key, words in (
            ("cache_dir", (*PREPARE, "corpus.path=texts")),
            ("run", ("evaluate",)),
            ("output_root", ("study", "study=tiny")),
        )
    },
    "home.published": Case(("predict", "run=hf:~nobody99/x", "text=a"), ("run=", "'nobody99'")),
    **{
        f"empty.{key}": Case((*words, f"{key}="), (f"{key}=: ",))
        for key, words in (("cache_dir", (*PREPARE, "corpus.path=texts")), ("runs", ("report",)))
    },
    "file.as_root": Case((*PRETRAIN, "output_root=t.tsv"), ("t.tsv", "output_root")),
    "gone.export_above": Case((*EXPORT, "to=/proc/nonexistent/e"), ("to=/proc/nonexistent/e",)),
}


@pytest.mark.parametrize("name", list(PATHS))
def test_a_path_that_cannot_be_is_refused(name: str, world: Path, answer: Answer) -> None:
    before = everything(world)
    case = PATHS[name]
    check(case, world, answer)
    assert everything(world) - set(case.files) == before


@pytest.mark.parametrize(
    "words",
    [
        (*PREPARE, "corpus.path=texts/loop.txt"),
        (*PREPARE, "corpus.path=texts", "cache_dir=loop"),
        (*PRETRAIN, "output_root=loop"),
        (*EXPORT, "to=loop"),
        ("predict", "run=loop", "text=a"),
        ("report", "loop"),
    ],
)
def test_links_that_lead_in_a_circle_are_named(words: tuple[str, ...], world: Path, answer: Answer) -> None:
    for link in ("loop", "texts/loop.txt"):
        (world / link).symlink_to(world / link)
    check(Case(words, ("loop",)), world, answer)


def test_a_home_stands_where_the_tilde_does(world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in ``output_root=~/r``, which no shell replaces, and in the run's saved settings."""
    monkeypatch.setenv("HOME", str(world))
    words = [word for word in PRETRAIN if not word.startswith("corpus.path")]
    assert answer(*words, "corpus.path=~/texts", "output_root=~/r", "cache_dir=~/c")[0] == 0
    assert (world / "r/pretrain/x/result.json").is_file()
    assert (world / "c/corpora").is_dir()
    assert not (world / "~").exists()
    assert answer("evaluate", "run=~/r/pretrain/x", "eval_tokens=64", "output_root=~/r")[0] == 0
    assert answer("predict", "run=~/r/pretrain/x", "text=bal [MASK]", "output=~/p.jsonl")[0] == 0
    assert (world / "p.jsonl").is_file()


def test_an_empty_variable_is_no_folder(world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``export LMTRANSFER_DATA=`` takes a data folder away, and does not make the current one it."""
    monkeypatch.setenv("LMTRANSFER_DATA", "")
    monkeypatch.setenv("LMTRANSFER_CACHE", "")
    monkeypatch.setenv("HOME", str(world))
    (world / "imdb").mkdir()
    status, said = answer("prepare", "corpus=novels")
    assert (status, "no data folder" in said) == (2, True), said
    assert answer(*PREPARE, "corpus.path=texts")[0] == 0
    assert (world / ".cache/lmtransfer/corpora").is_dir()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((*PREPARE, "corpus.path=texts"), ("HOME", "cache_dir", "LMTRANSFER_CACHE")),
        (PRETRAIN, ("HOME", "cache_dir", "LMTRANSFER_CACHE")),
        ((*PREPARE, "corpus.path=~/texts"), ("corpus.path=~/texts", "HOME")),
        ((*PRETRAIN, "output_root=~"), ("output_root=~", "HOME")),
    ],
)
def test_nobody_has_no_home(
    words: tuple[str, ...], names: tuple[str, ...], world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("LMTRANSFER_CACHE")
    check(Case(words, names), world, answer)


def test_a_home_that_is_not_there_is_named(world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nonexistent")
    monkeypatch.delenv("LMTRANSFER_CACHE")
    check(Case(PRETRAIN, ("/proc/nonexistent", "LMTRANSFER_CACHE")), world, answer)


# Too little memory.
@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,) and data type int64"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 16777216000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"),
    ],
)
def test_memory_that_is_wanting_is_said_with_what_to_lower(
    error: Exception, world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmtransfer.training.loop import Trainer

    def fail(self: Trainer) -> None:
        raise error

    monkeypatch.setattr(Trainer, "train", fail)
    said = check(Case(PRETRAIN, ("memory", "model.dim=16", "train.micro_batch_tokens")), world, answer)
    assert ("16.8 GB" in said) == ("16777216000" in str(error))
    check(Case(FINETUNE, ("memory", "train.micro_batch_tokens"), TABLE), world, answer)


def test_a_model_beyond_all_memory_is_refused_in_one_line(world: Path, answer: Answer) -> None:
    """Beyond what any address can reach, so that no machine tries."""
    huge = ("model.dim=1048576", "model.num_heads=1", "model.max_length=16777216", "model.num_layers=1")
    words = (*PRETRAIN, *huge, "model.hidden_dim=16777216")
    check(Case(words, ("memory", "model.dim=1048576", "model.num_layers=1")), world, answer)


# Streams, and the environment.
def test_a_terminal_of_few_letters_shows_all_in_ascii(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, ellipses and pieces of words; the width of each is kept where one letter will do."""
    (world / "mine/model").mkdir(parents=True)
    (world / "mine/model/own.yaml").write_text("# Gr\u00f6\u00dfe \u4e2d \u2026\n_target_: x\n", encoding="utf-8")
    shown: dict[str, str] = {}
    listing = ("list", "models", "-cd", "mine")
    inspection = ("inspect", *PRETRAIN[1:-1], "measure=false")
    report = ("report", "runs", "to=o", "figures=false")
    for encoding, words in (
        *(("ascii", words) for words in (listing, inspection, report)),
        ("latin-1", listing),
        ("cp1252", report),
        ("utf-8", listing),
    ):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=IN_ASCII)
        monkeypatch.setattr(sys, "stdout", output)
        assert cli.main(words) == 0
        output.flush()
        assert isinstance(output.buffer, io.BytesIO)
        shown[f"{encoding} {words[0]}"] = output.buffer.getvalue().decode(encoding)
    assert "Gr\u00f6\u00dfe \u4e2d \u2026" in shown["utf-8 list"]
    assert "Gr\u00f6\u00dfe \\u4e2d ~" in shown["latin-1 list"]
    assert "Gr\\xf6\\xdfe \\u4e2d ~" in shown["ascii list"]


SHELL: dict[str, tuple[str, int, str]] = {
    "ascii_list": ("PYTHONIOENCODING=ascii {} list models", 0, ""),
    "no_utf8_list": ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {} list tasks", 0, ""),
    "no_streams": ("{} list models <&- >&- 2>&-", 0, ""),
    "no_stdout": ("{} list models >&-", 0, ""),
    "full_stdout": ("{} list models > /dev/full", 2, "standard output: "),
    "full_help": ("{} pretrain --help > /dev/full", 2, "standard output: "),
    "full_stderr": ("{} nothing 2> /dev/full", 2, ""),
    "world_size_word": ("WORLD_SIZE=many {} list models", 0, ""),
    "no_folder": ("mkdir g; cd g; rmdir ../g; {} list models", 2, "(cd)"),
}


def in_shell(line: str, cwd: Path, **environment: str) -> tuple[int, str]:
    """The exit code of a shell's line with ``{}`` for the command, and what was said on both streams."""
    command = line.replace("{}", f"{sys.executable} -m lmtransfer")
    result = subprocess.run(
        ["sh", "-c", command], cwd=cwd, env={**os.environ, **environment}, capture_output=True, timeout=240, check=False
    )
    return result.returncode, (result.stdout + result.stderr).decode("utf-8", "replace")


@pytest.mark.parametrize("name", list(SHELL))
def test_a_process_starts_in_an_odd_world(name: str, tmp_path: Path) -> None:
    line, status, names = SHELL[name]
    code, said = in_shell(line, tmp_path)
    assert "Traceback" not in said
    assert "is a bug" not in said
    assert code == status, said
    assert names in said


LARGE = (*PRETRAIN[:4], "model=bert_base", *PRETRAIN[7:])
SLOW_SHELL: dict[str, tuple[str, int, str]] = {
    "predict_no_stdin": (f"{{}} predict {RUN} input=- <&-", 2, "input=-: "),
    "predict_ascii": (f"PYTHONIOENCODING=ascii {{}} predict {RUN} text='b\u00f6l [MASK]'", 0, "b\\u00f6l"),
    "world_size_word": (f"WORLD_SIZE=many {{}} {' '.join(PRETRAIN)}", 2, "WORLD_SIZE=many"),
    "little_memory": (f"ulimit -v 1500000; {{}} {' '.join(LARGE)}", 2, "memory"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SLOW_SHELL))
def test_a_command_works_in_an_odd_world(name: str, world: Path) -> None:
    line, status, names = SLOW_SHELL[name]
    (world / "in.txt").write_bytes(MASKS["in.txt"] * 20)
    (world / "mine/study").mkdir(parents=True)
    small = ", ".join(
        word for word in PRETRAIN[1:-1] if not word.startswith(("model=", "train.", "objective=", "corpus="))
    )
    (world / "mine/study/own.yaml").write_text(
        "# @package _global_\n# Gr\u00f6\u00dfe\nname: s\nrecipes: {one: model=bert_tiny objective=mlm}\n"
        f"pretrain: {{corpus: text, steps: 1, words: [{small}, train.batch_tokens=128]}}\n",
        encoding="utf-8",
    )
    code, said = in_shell(line, world, LMTRANSFER_CACHE=str(world / "cache"), OMP_NUM_THREADS="1")
    assert "Traceback" not in said
    assert "is a bug" not in said
    assert code == status, said
    assert names in said


# The one place in which errors of the system become messages.
@pytest.mark.parametrize(
    ("error", "names"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "r/a"), ("output_root=r:", "(r/a)", "no space", "free some")),
        (OSError(errno.EROFS, "Read-only file system", "r"), ("output_root=r:", "read-only", "another place")),
        (OSError(errno.EIO, "Input/output error", "r/a"), ("output_root=r:", "input/output error", "(r/a)")),
        (OSError(errno.EMFILE, "Too many open files"), ("files", "num_workers", "ulimit")),
        (RuntimeError("can't start new thread"), ("threads", "ulimit")),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.\n"),
            ("num_workers=0", "memory", "pid 7"),
        ),
        (PermissionError(errno.EACCES, "Permission denied", b"elsewhere/x"), ("elsewhere/x: ", "permission")),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a']"), ("temporary", "/a")),
        (OSError(errno.ESTALE, "Stale file handle", "r/a"), ("stale file handle", "r/a")),
    ],
)
def test_a_fault_names_setting_path_and_a_way_out(error: Exception, names: tuple[str, ...]) -> None:
    described = machine.fault(error, {"output_root": "r", "name": "r/a", "corpus": {"path": ["elsewhere"]}} if "r/a" in
                              str(error) or str(error).endswith("'r'") else {})  # fmt: skip
    assert described is not None
    for name in names:
        assert name in str(described)
    assert len(str(described).splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("shapes differ"),
        OSError("no number"),
        BrokenPipeError(errno.EPIPE, "pipe"),
        KeyError("a"),
    ],
)
def test_a_bug_is_no_fault_of_the_machine(error: Exception) -> None:
    assert machine.fault(error, {"output_root": "r"}) is None


def _fill(folder: Path, error: Exception) -> None:
    with staged_folder(folder) as staged:
        (staged / "a").write_text("half")
        raise error


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    class Rust(Exception):
        """As safetensors raises."""

    for raised in (
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("131072 requested and 4096 written"),
        Rust("Error while serializing: I/O error: No space left on device (os error 28)"),
    ):
        with pytest.raises(OSError, match="No space left on device") as caught:
            _fill(tmp_path / "e", raised)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "e"))
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(Rust, match="header"), machine.naming(tmp_path):
        raise Rust("header too large")


def test_a_file_keeps_what_it_held_where_there_is_no_room(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "before")
    with capacity(3), pytest.raises(OSError, match="a") as caught:
        write_text(tmp_path / "a", "after")
    assert caught.value.filename == str(tmp_path / "a")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "before"}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"RANK": "1.5"}, "RANK=1.5"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, "RANK=2"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT=x"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
    ],
)
def test_an_environment_that_torchrun_did_not_make(
    environment: dict[str, str], names: str, world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    ranks.check()
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    ranks.check()
    assert (ranks.world_size(), ranks.rank(), ranks.local_rank(), ranks.local_world_size()) == (1, 0, 0, 1)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with refuses(ConfigError, names):
        ranks.check()
    check(Case(PRETRAIN, (names,)), world, answer)


@pytest.mark.parametrize("left_over", [{"RANK": "1"}, {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "1"}], ids=str)
def test_a_rank_left_over_in_the_shell_hides_no_result(
    left_over: dict[str, str], world: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in {"LOCAL_WORLD_SIZE": "8", **left_over}.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.local_rank(), ranks.local_world_size()) == (0, 0, 1)
    status, said = answer(*PREPARE, "corpus.path=texts")
    assert (status, "documents" in said) == (0, True)


def test_a_mapped_file_without_room_is_an_error_and_no_crash(tmp_path: Path) -> None:
    from lmtransfer.transfer.features import _allocate

    with capacity(10_000), pytest.raises(OSError, match="large|space") as caught:
        _allocate((1000, 100), tmp_path / "features", max_bytes_in_memory=0)
    assert caught.value.filename == str(tmp_path / "features")
    assert list((tmp_path / "features").iterdir()) == []

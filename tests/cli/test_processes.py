"""The command line as a process: what it imports, how long it takes, exit codes, streams."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from lmtransfer import __version__, cli
from lmtransfer.config import main_help

Run = Callable[..., "subprocess.CompletedProcess[str]"]

_LOADED = """
import json, sys
from lmtransfer.cli import main
heavy = ("torch", "datasets", "sentencepiece", "pandas", "matplotlib", "hydra")
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit:
        pass
    print("LOADED", ",".join(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


def loaded(command_lines: list[list[str]], cwd: Path) -> list[str]:
    """The heavy packages that are imported after each of some command lines in one process, comma-separated."""
    words = [sys.executable, "-c", _LOADED, json.dumps(command_lines)]
    result = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True)
    return [line.removeprefix("LOADED ") for line in result.stderr.splitlines() if line.startswith("LOADED ")]


def test_what_needs_no_config_loads_neither_torch_nor_hydra(tmp_path: Path) -> None:
    lines = [["--help"], [], ["--version"], ["pretian"], ["--shell-completion", "bash"], ["help"], ["help", "text"]]
    assert loaded(lines, tmp_path) == [""] * len(lines)


@pytest.mark.slow
def test_listing_and_the_help_of_every_command_load_hydra_and_no_torch(tmp_path: Path) -> None:
    lines = [["list"], *([command, "--help"] for command in main_help.commands())]
    assert loaded(lines, tmp_path) == ["hydra"] * len(lines)


def test_help_takes_a_fraction_of_a_second(run_cli: Run) -> None:
    """The promise is 0.3 s, of the CPU; a python that imports nothing is measured too, for slow machines."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    def fastest(call: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            start = used()
            call()
            times.append(used() - start)
        return min(times)

    bare = fastest(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    assert fastest(lambda: run_cli("--help")) < max(0.3, 6 * bare)


def test_the_version_names_what_decides_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"lmtransfer {__version__} (Python {sys.version_info.major}.")
    assert metadata.version("torch") in said.out


def test_a_mistake_goes_to_stderr_with_its_exit_code(run_cli: Run) -> None:
    result = run_cli("pretian")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("lmtransfer: ")
    assert all(name in result.stderr for name in ("'pretian'", "'pretrain'", "lmtransfer --help")), result.stderr
    assert result.stderr.count("\n") == 1


def test_the_main_page_names_every_command_and_where_configs_live(capsys: pytest.CaptureFixture[str]) -> None:
    assert (cli.main(["--help"]), cli.main([])) == (0, 0)
    both = capsys.readouterr().out
    page = both[: len(both) // 2]
    assert both == 2 * page
    for command, about in main_help.commands().items():
        assert f"  {command:<10} {about}" in page
    for needed in ("A FIRST SESSION", "SWEEPS", "key=value", "/conf", "-cd", "--shell-completion"):
        assert needed in page
    assert all(len(line) <= 120 for line in page.splitlines() if "conf" not in line)


def test_no_module_of_the_current_folder_is_run(run_cli: Run, tmp_path: Path) -> None:
    for module in ("yaml", "hydra", "signal", "shlex", "typing", "pickle"):
        (tmp_path / f"{module}.py").write_text("open('RUN', 'w')\n")
    result = run_cli("list", "commands", cwd=tmp_path)
    assert not (tmp_path / "RUN").exists()
    assert "ModuleNotFoundError" not in result.stderr + result.stdout


@pytest.mark.slow
def test_no_module_of_the_current_folder_is_run_by_the_runs_of_a_study_or_by_workers(
    run_cli: Run, tmp_path: Path
) -> None:
    for module in ("yaml", "torch", "hydra", "pickle", "numpy"):
        (tmp_path / f"{module}.py").write_text("open('RUN', 'w')\n")
    (tmp_path / "a.txt").write_text("\n".join(f"bal bam {row} kit." for row in range(60_000)))
    corpus = ["corpus=text", "corpus.path=a.txt", "corpus.boundary=line", "tokenizer.vocab_size=60"]
    cache = f"cache_dir={tmp_path / 'cache'}"
    result = run_cli("prepare", *corpus, "tokenizer.allow_fewer=true", "num_workers=2", cache, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    own = tmp_path / "mine" / "study" / "own.yaml"
    own.parent.mkdir(parents=True)
    words = ", ".join([*corpus[1:], "tokenizer.allow_fewer=true", "experiment=null", "train.batch_tokens=512"])
    own.write_text(
        "# @package _global_\n# Mine\nname: s\nrecipes: {one: model=bert_tiny objective=mlm}\n"
        f"pretrain: {{corpus: text, steps: 1, words: [{words}]}}\n"
    )
    result = run_cli("study", "-cd", "mine", "study=own", cache, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "runs/study/s/pretrain/one/result.json").is_file()
    assert not (tmp_path / "RUN").exists()


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m lmtransfer list | head -1"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")

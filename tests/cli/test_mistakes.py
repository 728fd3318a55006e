"""A user's mistake: one message with the nearest name, exit code 2, no traceback, and nothing run or written."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtransfer import cli
from lmtransfer.cli import main
from lmtransfer.errors import CheckpointError, Interrupted
from lmtransfer.system import interrupts, optional


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tyo"], ["'tyo'", "'toy'", "toy, other"]),
        (["seed=1"], ["lmtransfer <command> seed=1"]),
        (["-m", "toy"], ["lmtransfer <command> -m"]),
        (["toy", "--model", "large"], ["--model", "model=large"]),
        (["toy", "--max-steps", "4"], ["--max-steps", "train.steps=4"]),
        (["toy", "model.hidden_size=4"], ["model.hidden_size=4: ", "'model.dim'"]),
        (["toy", "+model=[1,2]"], ["model=1: ", "model=2: ", "large, small"]),
        (["toy", "model=1e3"], ["model=1e3: ", "large, small"]),
        (["toy", "quick"], ["'quick'", "key=value", "lmtransfer toy --help"]),
        (["toy", "train.stpes=5"], ["train.stpes=5: ", "'train.steps'", "seconds, steps"]),
        (["toy", "model=lareg"], ["model=lareg: ", "'large'", "large, small"]),
        (["toy", "model.dmi=3"], ["model.dmi=3: ", "'model.dim'"]),
        (["toy", "train.steps=[1"], ["train.steps=[1: ", "key=value", "[a,b]"]),
        (["toy", "seed=1,2"], ["seed=1,2: ", " -m "]),
        (["toy", "-m", "model=small,lareg"], ["model=lareg: ", "'large'"]),
        (["toy", "-cd", "nowhere"], ["--config-dir: ", "nowhere"]),
        (["toy", "train.steps=1", "train.seconds=2"], ["train.steps=1", "train.seconds=2"]),
        (["toy", "hydra/launcher=basci"], ["hydra/launcher=basci", "jobs=4"]),
        (
            ["toy", "model=lareg", "sede=1", "train.stpes=3"],
            ["3 problems", "'large'", "'seed'", "'train.steps'"],
        ),
    ],
)
def test_a_misspelt_word_is_answered(words: list[str], names: list[str], lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("lmtransfer: ")
    for name in names:
        assert name in result.err
    assert "Traceback" not in result.err
    assert "hydra.cc" not in result.err
    assert toy.configs == []
    assert list(Path.cwd().iterdir()) == []


def test_a_group_that_must_be_chosen_is_named_with_its_choices(lmtransfer: Any, toy: Any) -> None:
    primary = toy.conf / "toy.yaml"
    primary.write_text(primary.read_text().replace("model: small", "model: ???"))
    result = lmtransfer("toy")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert all(name in result.err for name in ("lmtransfer: model: ", "model=<name>", "large, small")), result.err


def test_a_component_argument_that_the_config_leaves_out_is_told_how_to_set(lmtransfer: Any, toy: Any) -> None:
    (toy.conf / "model" / "small.yaml").write_text("# AdamW\n_target_: torch.optim.AdamW\nlr: 0.1\n")
    result = lmtransfer("toy", "model.eps=1e-6", "model.params=1", "model.wieght_decay=0")
    for name in (" +model.eps=1e-6", "model.params=1: ", "'model.weight_decay'"):
        assert name in result.err


def test_an_argument_that_the_config_sets_under_a_longer_key_is_told_that_key(lmtransfer: Any, toy: Any) -> None:
    text = "# Own\n_target_: torch.optim.AdamW\ngroups: {lr: 0.1, eps: 1e-5}\n"
    (toy.conf / "model" / "small.yaml").write_text(text)
    result = lmtransfer("toy", "model.lr=0.3", "model.amsgrad=true")
    for name in ("model.lr=0.3: ", " model.groups.lr=0.3", " +model.amsgrad=true"):
        assert name in result.err


@pytest.mark.parametrize("words", [("task=squad", "task.train=x.json"), ("task=sst2", "task.dev=[a.tsv,b.tsv]")])
def test_files_of_a_published_task_are_given_by_their_key(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "init=x", *words]) == 2
    assert words[1].replace("task.", "task.files.") in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(CheckpointError("torn"), 2), (Interrupted("saved"), 75)])
def test_errors_of_a_command_are_shown_with_their_exit_code(
    error: Exception, code: int, lmtransfer: Any, toy: Any
) -> None:
    def fail(cfg: object) -> None:
        raise error

    toy.behave = fail
    result = lmtransfer("toy")
    assert (result.code, result.out, result.err) == (code, "", f"lmtransfer: {error}\n")


def test_our_own_bugs_are_one_line_and_a_way_to_see_more(
    lmtransfer: Any, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(cfg: Any) -> None:
        raise ZeroDivisionError("by nought,\non two lines")

    toy.behave = bug
    result = lmtransfer("toy", "text=a b")
    assert result.code == 1
    assert result.err.startswith("lmtransfer: ZeroDivisionError: by nought, on two lines. ")
    assert "LMTRANSFER_TRACEBACK=1 lmtransfer toy 'text=a b'" in result.err
    assert result.err.count("\n") == 1
    monkeypatch.setenv("LMTRANSFER_TRACEBACK", "1")
    result = lmtransfer("toy", "text=a b")
    assert result.code == 1
    assert "Traceback (most recent call last)" in result.err
    assert "in bug\n" in result.err


@pytest.mark.parametrize(("override", "name"), [("init=${nowhere}", "nowhere"), ("init=???", "init")])
def test_values_that_are_missing_when_a_command_reads_them_are_the_users(
    override: str, name: str, lmtransfer: Any, toy: Any
) -> None:
    toy.behave = lambda cfg: cfg.init.lower()
    result = lmtransfer("toy", override)
    assert result.code == 2
    assert result.err.startswith("lmtransfer: ")
    assert name in result.err
    assert "Traceback" not in result.err


def test_ctrl_c_is_calm(lmtransfer: Any, toy: Any) -> None:
    def interrupt(cfg: object) -> None:
        raise KeyboardInterrupt

    toy.behave = interrupt
    result = lmtransfer("toy")
    assert (result.code, result.err) == (130, "lmtransfer: interrupted\n")


def test_other_ranks_are_silent_about_what_all_find(
    lmtransfer: Callable[..., Any], toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # so that it is put back after the test
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = lmtransfer("toy", "sede=1")
    assert (result.code, result.out, result.err) == (2, "", "")

    def fail(cfg: object) -> None:
        print("a table")
        raise CheckpointError("only here")

    toy.behave = fail
    result = lmtransfer("toy")
    assert (result.code, result.out, result.err) == (2, "", "lmtransfer (rank 1): only here\n")


def test_serve_without_its_packages_names_the_extra_before_the_run_is_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(optional, "find_spec", lambda package: None)
    (tmp_path / "config.yaml").write_text("no run")
    assert main(["serve", f"run={tmp_path}"]) == 2
    assert "lmtransfer[serve]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "error", "code", "said"),
    [
        (signal.SIGINT, ImportError("numpy cannot be loaded twice"), 130, "lmtransfer: interrupted\n"),
        (signal.SIGTERM, CheckpointError("bad file"), 143, "lmtransfer: interrupted\n"),
        (signal.SIGINT, Interrupted("the same command goes on"), 75, "lmtransfer: the same command goes on\n"),
        (None, CheckpointError("bad file"), 2, "lmtransfer: bad file\n"),
    ],
    ids=["Ctrl-C in an import", "SIGTERM in a file", "a command that says how to go on", "no signal"],
)
def test_an_error_that_a_signal_led_to_is_told_as_the_signal(
    number: signal.Signals | None,
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def dispatched(words: list[str]) -> int:
        try:
            if number is not None:
                interrupts._stop(number, None)
        except interrupts.Stopped:
            raise error from None
        raise error

    for name, value in (("stopped_at", -interrupts._PATIENCE), ("stopped_by", None), ("decided", False)):
        monkeypatch.setattr(interrupts._Ending, name, value)
    monkeypatch.setattr(cli, "_dispatch", dispatched)
    assert cli.main(["list"]) == code
    assert capsys.readouterr().err == said

"""Addresses with credentials: refused in every place and protocol, and shown nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmtransfer.cli import main

ADDRESSES = (
    *("http://me:PW@host/x", "https://host/x?sig=PW&sv=1", "az://container/x?sig=PW", "s3://ID:PW@bucket/x.txt"),
    *("gs://bucket/x?token=PW", "sftp://me:PW@host/x", "abfs://me:PW@account/x"),
)
PLACES = (
    ("toy", "init={}"),
    ("toy", "init='{}'"),
    ("toy", "name=[{},a"),  # cannot be parsed
    ("toy", "+more={{a:[b,'{}']}}"),
    ("toy", "nmae={}"),
    ("toy", "-m", "init=a,{}"),
    ("toy", "--cfg", "job", "init={}"),
    ("toy", "--help", "init={}"),
    ("toy", "--config-dir", "{}"),
    ("toy", "{}"),
    ("{}",),
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_no_word_of_a_command_shows_credentials(words: tuple[str, ...], address: str, lmtransfer: Any) -> None:
    result = lmtransfer(*(word.format(address) for word in words))
    assert result.code == 2
    assert result.err.startswith("lmtransfer: ")
    assert "PW" not in result.out + result.err


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("options", [(), ("--cfg", "job")])
def test_no_config_file_shows_credentials(address: str, options: tuple[str, ...], lmtransfer: Any, toy: Any) -> None:
    file = Path("mine/experiment/own.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(f"# @package _global_\n# Mine\ninit: '{address}'\n")
    result = lmtransfer("toy", *options, "--config-dir", "mine", "experiment=own")
    assert result.code == 2
    assert "own.yaml: init: the address contains credentials" in result.err
    assert "PW" not in result.out + result.err
    assert toy.configs == []


def test_a_bug_report_shows_no_credentials(lmtransfer: Any, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cfg: Any) -> None:
        raise AssertionError(f"not expected: {ADDRESSES[0]} and {ADDRESSES[1]}")

    toy.behave = fail
    for traceback in ("0", "1"):
        monkeypatch.setenv("LMTRANSFER_TRACEBACK", traceback)
        result = lmtransfer("toy", f"text={ADDRESSES[2]}")
        assert result.code == 1
        assert "This is a bug" in result.err
        assert "http://***@host/x" in result.err
        assert "PW" not in result.out + result.err


@pytest.mark.parametrize(
    "words",
    [
        ("prepare", "corpus=text", "corpus.path={}"),
        ("prepare", "corpus=text", "corpus.path=[a.txt,'{}']"),
        ("pretrain", "corpus=text", "corpus.path=a.txt", "corpus.overlap_with=['{}']"),
        ("finetune", "init=r", "task=text_classification", "task.train={}", "task.dev=b.tsv"),
        ("import", "source={}"),
        ("predict", "run={}", "text=a"),
        ("report", "{}"),
        ("embed", "run=r", "input={}"),
        ("pretrain", "corpus=text", "corpus.path=a.txt", "tracker=mlflow", "tracker.uri={}"),
    ],
    ids=" ".join,
)
def test_every_command_refuses_credentials(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ADDRESSES[:3]:
        assert main([word.format(address) for word in words]) == 2
        out, err = capsys.readouterr()
        assert "the address contains credentials or a query" in err
        assert "PW" not in out + err
    assert list(tmp_path.iterdir()) == []

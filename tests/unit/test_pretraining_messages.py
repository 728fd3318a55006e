from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lmtransfer.config.composing import composed
from lmtransfer.pretraining.messages import next_lines


def suggested(corpus: str, *, small: bool) -> list[str]:
    """The words of the command that the closing message suggests."""
    lines = next_lines(Path("runs/pretrain/mine"), corpus, small=small, output_root=Path("runs"))
    assert lines[-1].split() == ["lmtransfer", "report", "runs"]
    return shlex.split(lines[0].partition("?")[2])


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(
    ("corpus", "task"),
    [
        ("python_docs", "python_docs"),
        ("imdb_unsup", "sst2"),
        ("text", "text_classification"),
        ("fra", "text_classification"),
    ],
)
def test_the_suggested_command_fits_the_text(corpus: str, task: str, small: bool) -> None:
    program, command, *words = suggested(corpus, small=small)
    assert (program, command) == ("lmtransfer", "finetune")
    with composed(command, words) as cfg:
        assert (cfg.task.name, cfg.init, cfg.seeds, cfg.control) == (task, "runs/pretrain/mine", 5, True)
    assert any(word.startswith("experiment=") for word in words) == small


def test_whoever_has_own_labels_learns_what_the_files_hold() -> None:
    for small in (True, False):
        told = " ".join(next_lines(Path("runs/pretrain/mine"), "text", small=small, output_root=Path("runs")))
        assert "columns text and label" in told
        assert ("few_labels" in told) == small

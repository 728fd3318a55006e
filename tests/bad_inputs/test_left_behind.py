"""What killed starts have left, and what links lead to."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.bad_input import PRETRAIN, Answer


def test_what_a_killed_start_has_left_is_begun_anew(world: Path, answer: Answer) -> None:
    """Between its directory and its config.yaml, alone and as a point of a sweep."""
    for left in ("runs/pretrain/x", "runs/pretrain/s/seed=1"):
        (world / left / "tokenizer").mkdir(parents=True)
        (world / left / "versions.json").write_text("{}")
        (world / left / "checkpoints").mkdir()
    status, said = answer(*PRETRAIN)
    assert status == 0, said
    status, said = answer(*PRETRAIN[:-1], "name=s", "-m", "seed=1,2")
    assert status == 0, said
    assert sorted(path.name for path in (world / "runs/pretrain/s").iterdir()) == ["seed=1", "seed=2"]


def test_a_folder_of_somebody_else_is_no_killed_start(world: Path, answer: Answer) -> None:
    local = world / "runs/pretrain/x/thesis.txt"
    local.parent.mkdir(parents=True)
    local.write_text("mine")
    status, said = answer(*PRETRAIN)
    assert (status, "runs/pretrain/x" in said, "resume=true" in said) == (2, True, True)
    assert local.read_text() == "mine"


def test_what_a_killed_prepare_has_staged_goes_with_the_next(world: Path, answer: Answer) -> None:
    tokenizers = world / "cache" / "tokenizers"
    known = next(path for path in tokenizers.iterdir() if not path.name.startswith("."))
    staged = tokenizers / f".{known.name}.elsewhere-4194305.tmp"
    staged.mkdir()
    (staged / "half").write_text("half")
    assert answer(*PRETRAIN)[0] == 0
    assert not staged.exists()


def test_checkpoints_that_are_a_link_lead_nowhere(base: Path, world: Path, answer: Answer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(world / "runs/pretrain/base/checkpoints", outside)
    (outside / ".last.old").mkdir()
    (outside / ".last.old" / "precious").write_text("mine")
    (world / "runs/pretrain/base/checkpoints").symlink_to(outside)
    (world / "runs/pretrain/base/result.json").unlink()
    before = sorted(str(path) for path in outside.rglob("*"))
    status, said = answer(*PRETRAIN[:-1], "name=base", "resume=true", f"corpus.path={base}/texts")
    assert status == 2
    assert "runs/pretrain/base/checkpoints" in said
    assert str(outside) in said
    assert sorted(str(path) for path in outside.rglob("*")) == before


def test_what_a_prepare_has_staged_that_was_killed_at_its_end_goes_too(world: Path, answer: Answer) -> None:
    corpora = world / "cache" / "corpora"
    known = [path for path in corpora.iterdir() if path.is_dir()]  # other tests may have left other corpora
    for corpus in known:
        (corpus / "manifest.json").rename(corpus / ".manifest.json.elsewhere-4194305.tmp")
    assert answer(*PRETRAIN)[0] == 0
    (used,) = [corpus for corpus in known if (corpus / "manifest.json").is_file()]
    assert sorted(path.name for path in used.iterdir()) == ["blocks", "manifest.json", "train", "validation"]

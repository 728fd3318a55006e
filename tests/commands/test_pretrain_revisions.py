"""Revisions from the command line: saved, resumed, transferred, continued and evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import lmtransfer, result
from safetensors.torch import load_file

from lmtransfer.training import loop

PRETRAIN = ["pretrain", *TINY, *TEXT, *SHORT, "hardware=exact", "train.seconds=null", "train.save_every=3"]
KEPT = [*PRETRAIN, "train.steps=8", "train.save_at=[0,100,0.3k]"]
LABELS = ["task=text_classification", "task.train=train.tsv", "task.dev=dev.tsv"]
LABELS += ["hardware=exact", "baseline=null", "train.epochs=1"]
WORLD = Path("runs/pretrain/kept/checkpoints")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, labels, and a run with the revisions 0, 100 and 300."""
    folder = tmp_path_factory.mktemp("made")
    documents = [f"the boat lay on the shore number {number} all day while rain fell" for number in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    for split in ("train", "dev"):
        rows = [f"{'wet' if number % 2 else 'dry'}\tthe boat lay {number}" for number in range(20)]
        (folder / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer(*KEPT, "name=kept") == 0
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def kept(world: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the revisions in a copy of ``made``, the current folder."""
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    return world / WORLD


def _model(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def _encoder(folder: Path) -> dict[str, Any]:
    return {name: tensor for name, tensor in _model(folder).items() if name.startswith("encoder.")}


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_revisions_are_kept_beside_the_other_checkpoints(kept: Path) -> None:
    assert {path.name for path in kept.iterdir()} == {"last", "best", "tokens-0", "tokens-100", "tokens-300"}
    assert result("runs/pretrain/kept")["revisions"] == [0, 100, 300]
    models = [_model(path) for path in sorted(kept.iterdir())]
    assert not any(_equal(one, other) for one in models[2:] for other in models if one is not other)


def test_a_killed_run_ends_with_the_same_revisions(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = iter([None] * 3 + ["SIGTERM"])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "requested_stop", lambda: next(stopping, None))
        assert lmtransfer(*KEPT, "name=broken") == 75
    broken = Path("runs/pretrain/broken/checkpoints")
    assert {path.name for path in broken.iterdir()} < {path.name for path in kept.iterdir()}
    assert lmtransfer(*KEPT, "name=broken", "resume=true") == 0
    for path in kept.iterdir():
        assert _equal(_model(path), _model(broken / path.name)), path.name


def test_points_may_be_added_on_resume(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [*PRETRAIN, "name=more", "train.save_at=[0]"]
    with pytest.MonkeyPatch.context() as patch:
        stopping = iter([None] * 3 + ["SIGTERM"])
        patch.setattr(loop, "requested_stop", lambda: next(stopping, None))
        assert lmtransfer(*more, "train.steps=8") == 75
    assert lmtransfer(*more, "train.steps=8", "train.save_at=[0,100,450]", "resume=true") == 0
    assert "100 " in capsys.readouterr().err
    found = {path.name for path in Path("runs/pretrain/more/checkpoints").glob("tokens-*")}
    assert found == {"tokens-0", "tokens-450"}


def test_a_transfer_starts_from_a_revision(kept: Path) -> None:
    words = ["probe", *LABELS, "control=true", "name=probed"]
    assert lmtransfer(*words, "init=runs/pretrain/kept@100") == 0
    probed = Path("runs/probe/probed")
    assert _equal(_encoder(probed / "checkpoints/last"), _encoder(kept / "tokens-100"))
    config = yaml.safe_load((probed / "config.yaml").read_text())
    assert config["init"] == f"{kept.parents[0]}@100"
    assert lmtransfer("predict", "run=runs/probe/probed", "text=the boat", "output=answers.jsonl") == 0


def test_pretraining_continues_from_a_revision(kept: Path) -> None:
    words = [*PRETRAIN[:1], *TEXT, *PRETRAIN[-3:], "train.batch_tokens=64", "train.steps=2", "name=on"]
    assert lmtransfer(*words, "init=runs/pretrain/kept@300", "train.save_at=[0]") == 0
    assert _equal(_model(Path("runs/pretrain/on/checkpoints/tokens-0")), _model(kept / "tokens-300"))


def test_a_revision_is_evaluated_and_asked(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("evaluate", "run=runs/pretrain/kept@100", "hardware=exact") == 0
    assert lmtransfer("evaluate", "run=runs/pretrain/kept", "hardware=exact") == 0
    losses = {path.name: result(str(path))["metrics"]["mlm"] for path in Path("runs/evaluate").iterdir()}
    assert set(losses) == {"pretrain-kept@100", "pretrain-kept"}
    assert losses["pretrain-kept"] == pytest.approx(result("runs/pretrain/kept")["metrics"]["mlm"])
    assert losses["pretrain-kept@100"] != losses["pretrain-kept"]
    assert lmtransfer("predict", "run=runs/pretrain/kept@100", "text=the [MASK] lay") == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["probe", *LABELS, "init=runs/pretrain/kept@7k"], ["7k", "0, 100, 300"]),
        (["probe", *LABELS, "init=runs/pretrain/kept@last"], ["init=runs/pretrain/kept@last", "'last'"]),
        (["export", "run=runs/pretrain/kept@100", "checkpoint=best", "to=out"], ["kept@100", "checkpoint=best"]),
        ([*PRETRAIN, "train.steps=8", "train.save_at=[600]"], ["train.save_at", "train.steps=8", "512", "600"]),
        ([*PRETRAIN, "train.epochs=1", "train.save_at=[9M]"], ["train.save_at", "train.epochs=1", "9M"]),
        ([*PRETRAIN, "train.steps=8", "train.save_at=7"], ["train.save_at", "7"]),
    ],
    ids=["no such revision", "no number", "two checkpoints", "beyond steps", "beyond epochs", "no list"],
)
def test_what_does_not_fit_is_one_message(
    words: list[str], names: list[str], kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path("runs").rglob("*"))
    named = [] if words[0] == "export" else ["name=wrong"]
    assert lmtransfer(*words, *named) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert "Traceback" not in said
    assert sorted(Path("runs").rglob("*")) == before


def test_a_revision_of_an_early_phase_is_refused(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*PRETRAIN, "train.steps=8", "phases=words_then_masked", "phases.words.share=0.5", "name=phased"]
    assert lmtransfer(*words, "train.save_at=[0,400]") == 0
    assert lmtransfer("probe", *LABELS, "init=runs/pretrain/phased@0", "name=early") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("phased@0", "words"))
    assert lmtransfer("probe", *LABELS, "init=runs/pretrain/phased@400", "name=late") == 0

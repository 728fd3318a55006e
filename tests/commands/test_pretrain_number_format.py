"""The number format is chosen once, written into the run, and kept when the run goes on elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fakes.tiny_pretraining import SHORT, TEXT, TINY

from lmtransfer.cli import main
from lmtransfer.training.precision import Format

STEPS = [*SHORT, "train.steps=2"]
HERE = ["hardware.device=cpu", "hardware.threads=1"]


def _machine(patch: pytest.MonkeyPatch, name: str) -> None:
    """Show this machine as one whose hardware multiplies ``name`` fast."""
    patch.setattr("lmtransfer.training.hardware.fastest_format", lambda device: Format(name, f"shown as {name}"))  # type: ignore[arg-type]


def _pretrain(*words: str) -> int:
    return main(["pretrain", *TINY, *TEXT, *STEPS, "objective=mlm", "name=a", *HERE, *words])


def _precision(run: str) -> str:
    return str(yaml.safe_load((Path(run) / "config.yaml").read_text())["hardware"]["precision"])


@pytest.mark.parametrize(("first", "then"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_run_goes_on_in_the_format_that_it_was_begun_in(
    first: str, then: str, text_world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _machine(monkeypatch, first)
    assert _pretrain() == 0
    assert f"{first} (shown as {first})" in capsys.readouterr().err
    assert _precision("runs/pretrain/a") == first

    Path("runs/pretrain/a/result.json").unlink()  # as if it had been killed before the end
    _machine(monkeypatch, then)
    assert _pretrain(f"hardware.precision={then}", "resume=true") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("hardware.precision", f"'{first}'", f"'{then}'")), said
    assert _pretrain("resume=true") == 0
    said = capsys.readouterr().err
    assert f"{first} (" in said
    assert "shown as" not in said  # this machine's own reason is not the run's
    assert _precision("runs/pretrain/a") == first


def test_float16_does_not_go_on_where_there_is_none(text_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _pretrain() == 0
    config = Path("runs/pretrain/a/config.yaml")
    config.write_text(config.read_text().replace(f"precision: {_precision('runs/pretrain/a')}", "precision: fp16"))
    Path("runs/pretrain/a/result.json").unlink()
    assert _pretrain("resume=true") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/pretrain/a", "fp16", "hardware.precision=fp16")), said


def test_finetuning_names_the_format_in_every_run_of_it(text_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "bf16")
    assert _pretrain() == 0
    rows = "\n".join(f"the boat lay {word} number {n}\t{word}" for n in range(20) for word in ("here", "there"))
    Path("train.tsv").write_text(f"text\tlabel\n{rows}\n")
    task = ["task=text_classification", "task.train=train.tsv", "task.dev=train.tsv", "train.epochs=1"]
    words = ["finetune", "init=runs/pretrain/a", *task, "seeds=2", "control=true", "name=ft", *HERE]
    assert main(words) == 0
    runs = ["", "/seed-0", "/seed-1", "/control/seed-0", "/control/seed-1"]
    assert {_precision(f"runs/finetune/ft{run}") for run in runs} == {"bf16"}
    Path("runs/finetune/ft/seed-1/result.json").unlink()
    Path("runs/finetune/ft/result.json").unlink()
    _machine(monkeypatch, "fp32")
    assert main([*words, "hardware.precision=fp32", "resume=true"]) == 2
    assert main([*words, "resume=true"]) == 0
    assert {_precision(f"runs/finetune/ft{run}") for run in runs} == {"bf16"}

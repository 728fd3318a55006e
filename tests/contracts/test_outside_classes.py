"""The model, the objective and the task of the guide to extending: every command takes them as it takes ours."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmtransfer import cli
from lmtransfer.config import main_help

GUIDE = (main_help.GUIDES / "extending.md").read_text(encoding="utf-8")


def _shown(language: str, path: str) -> str:
    """The first block of a language behind the name of a file in the guide."""
    block = re.search(rf"^```{language}\n(.*?)^```", GUIDE.split(f"`{path}`", 1)[1], flags=re.DOTALL | re.MULTILINE)
    assert block is not None, path
    return block[1]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the classes, their configs and data, which is the current one; a run was pretrained in it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    for name in ("encoder", "objective", "task"):
        (folder / f"my_package/{name}.py").write_text(_shown("python", f"my_package/{name}.py"))
    for name in ("configs/model/bag.yaml", "configs/objective/repeats.yaml", "configs/task/riddles.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(_shown("yaml", name))
    documents = [f"the boat lay on the shore number {number} all day while the rain fell" for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "riddles").mkdir()
    for split, count in (("train", 24), ("dev", 8)):
        kinds = ("boat: it floats on water", "rain: it falls from the sky")
        lines = [f"{kinds[row % 2]} {row}" for row in range(count)]
        (folder / "riddles" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("LMTRANSFER_ALLOW", "my_package")
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        _run(
            *("pretrain", "model=bag", "objective=repeats", "corpus=text", "corpus.path=text.txt", "name=base"),
            *("corpus.validation_fraction=0.2", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true"),
            *("train.steps=4", "train.seconds=null", "train.batch_tokens=128"),
        )
        yield folder
    torch.set_num_threads(threads)
    for module in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[module]


def _run(command: str, *words: str) -> None:
    status = cli.main([command, "-cd", "configs", *words])
    assert status in (0, None), f"{command} {' '.join(words)}: exit status {status}"


def _result(folder: Path, run: str) -> dict[str, object]:
    return json.loads((folder / "runs" / run / "result.json").read_text())


def test_pretrain(outside: Path) -> None:
    result = _result(outside, "pretrain/base")
    assert result["main_metric"] == "loss"
    assert set(result["metrics"]) >= {"loss", "repeats"}  # type: ignore[call-overload]


@pytest.mark.parametrize("command", ["probe", "finetune"])
def test_transfer_then_evaluate_and_predict(outside: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("train.epochs=2", "train.seconds=null", "learning_rates=null", "control=true")
    _run(command, "init=runs/pretrain/base", "task=riddles", "name=r", *short)
    assert _result(outside, f"{command}/r")["control"]
    _run("evaluate", f"run=runs/{command}/r", "split=dev", f"name={command}")
    assert _result(outside, f"evaluate/{command}")["metrics"] == _result(outside, f"{command}/r")["metrics"]
    capsys.readouterr()
    _run("predict", f"run=runs/{command}/r", "text=it floats on water")
    assert json.loads(capsys.readouterr().out.splitlines()[0])["label"] in ("boat", "rain")


def test_evaluate_the_pretraining(outside: Path) -> None:
    _run("evaluate", "run=runs/pretrain/base", "name=pretrained")
    scored = _result(outside, "evaluate/pretrained")["metrics"]
    assert scored["repeats"] == pytest.approx(_result(outside, "pretrain/base")["metrics"]["repeats"], rel=1e-5)  # type: ignore[index]


def test_inspect(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("inspect", "model=bag", "objective=repeats", "corpus=text", "corpus.path=text.txt", "tokenizer.vocab_size=60",
         "tokenizer.allow_fewer=true")  # fmt: skip
    assert "head of repeats" in capsys.readouterr().out
    _run("inspect", "task=riddles", "init=runs/pretrain/base")
    assert "task riddles, split dev" in capsys.readouterr().out


def test_export_and_report(outside: Path) -> None:
    _run("export", "run=runs/pretrain/base", "format=tensors", "to=exported")
    assert (outside / "exported" / "model.safetensors").is_file()
    _run("report", "runs", "to=report")
    page = (outside / "report" / "report.html").read_text()
    assert [name for name in ("bag", "repeats", "riddles") if name not in page] == []


def test_they_are_listed(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for group, name in (("models", "bag"), ("objectives", "repeats"), ("tasks", "riddles")):
        _run("list", group)
        assert name in capsys.readouterr().out

"""A run with disentangled embeddings, and one of all-tokens MLM: what later commands make of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import lmtransfer, make_world, sentence

from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.training.weights import read_weights

TINY = ["model=electra_small", "model.embedding_dim=8", "model.dim=16", "model.num_layers=2", "model.num_heads=2"]
TINY += ["model.hidden_dim=32", "model.max_length=48", "tokenizer.vocab_size=96", "tokenizer.allow_fewer=true"]
QUICK = ["experiment=null", "corpus=text", "corpus.path=text.txt", "hardware=exact", "cache_dir=cache"]
QUICK += ["train.batch_tokens=192", "train.eval_tokens=256", "objective.max_length=24", *TINY]
KINDS = {
    "rtd": ["objective=rtd", "objective.losses.rtd.generator_size=0.5", "objective.mask_prob=0.4"],
    "all_tokens_mlm": ["objective=all_tokens_mlm", "objective.losses.all_tokens_mlm.generator_size=0.5"],
}
TASK = [
    "task=text_classification",
    "task.files={train: data/train.tsv, dev: data/dev.tsv}",
    "task.labels=[negative,positive]",
    "task.label_values=['0','1']",
    "task.text_column=sentence",
]


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    rng = random.Random(0)
    documents = ["\n".join(sentence(i % 2, rng).capitalize() + "." for i in range(12)) for _ in range(24)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        yield folder
    torch.set_num_threads(threads)


def pretrain(kind: str, name: str, *words: str) -> Path:
    sharing = f"objective.losses.{kind}.embedding_sharing=disentangled"
    assert lmtransfer("pretrain", *QUICK, *KINDS[kind], sharing, f"name={name}", *words) == 0
    return Path("runs/pretrain") / name


def tensors(run: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    return read_weights(run / "checkpoints" / checkpoint)


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, world: Path) -> Path:
    return pretrain(request.param, f"whole_{request.param}", "train.steps=6", "train.eval_every=3")


def test_what_is_found_is_in_log_and_result(run: Path) -> None:
    kind = run.name.removeprefix("whole_")
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert 0 < metrics[f"{kind}_base_rate"] < metrics[f"{kind}_replaced"] <= 1
    assert 0 <= metrics[f"{kind}_recall"] <= 1
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(f"validation/{kind}_recall" in line for line in lines) == 2
    assert any(f"{kind}_recall" in key for line in lines for key in line if not key.startswith("validation"))


def test_its_encoder_is_an_ordinary_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, kind = tensors(run), run.name.removeprefix("whole_")
    table = saved["encoder.embeddings.token.weight"]
    base, difference = (
        saved[f"objectives.{kind}.{key}.weight"] for key in ("generator.embeddings.token", "difference")
    )
    assert difference.abs().max() > 0
    assert torch.equal(table, base + difference)
    words = ["hardware=exact", "baseline=null", f"init={run}", "train.epochs=1", *TASK]
    assert lmtransfer("finetune", *words, f"name=tuned_{kind}") == 0
    assert lmtransfer("probe", *words, f"name=probed_{kind}") == 0
    assert lmtransfer("evaluate", f"run={run}", f"name=again_{kind}") == 0
    again = json.loads(Path(f"runs/evaluate/again_{kind}/result.json").read_text())["metrics"]
    known = json.loads((run / "result.json").read_text())["metrics"]
    assert {name: again[name] for name in (kind, f"{kind}_base_rate")} == pytest.approx(
        {name: known[name] for name in (kind, f"{kind}_base_rate")}, rel=0.2
    )


def test_resumed_it_is_the_same_to_the_last_bit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmtransfer.errors import Interrupted
    from lmtransfer.training.checkpoints import Checkpoints

    kind = run.name.removeprefix("whole_")
    save = Checkpoints.save

    def and_stop(self: Checkpoints, name: str, **parts: Any) -> Path:
        path = save(self, name, **parts)
        if name == "last":
            raise Interrupted("stopped")
        return path

    words = ["train.steps=6", "train.eval_every=3", "train.save_every=4"]
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", and_stop)
        sharing = f"objective.losses.{kind}.embedding_sharing=disentangled"
        assert lmtransfer("pretrain", *QUICK, *KINDS[kind], sharing, f"name=cut_{kind}", *words) != 0
    cut = Path(f"runs/pretrain/cut_{kind}")
    assert not torch.equal(*(tensors(path)["encoder.embeddings.token.weight"] for path in (cut, run)))
    pretrain(kind, f"cut_{kind}", *words, "resume=true")
    whole, resumed = tensors(run), tensors(cut)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_pretraining_goes_on_from_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = run.name.removeprefix("whole_")
    words = [word for word in QUICK if not word.startswith(("model", "tokenizer"))]
    more = [f"init={run}", f"objective={kind}", "train.steps=1", "optimizer.learning_rate=1e-30", f"name=on_{kind}"]
    assert lmtransfer("pretrain", *words, "optimizer=adamw", *more) == 0
    assert str(InheritedHeads((kind,), (), ())) in capsys.readouterr().err
    before, after = tensors(run, "best"), tensors(Path(f"runs/pretrain/on_{kind}"))
    assert before.keys() == after.keys()
    torch.testing.assert_close(after["encoder.embeddings.token.weight"], before["encoder.embeddings.token.weight"])


@pytest.mark.parametrize("form", ["transformers", "onnx"])
def test_it_is_exported_as_an_ordinary_model(run: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    peer = pytest.importorskip("transformers" if form == "transformers" else "onnxruntime")
    version = f"transformers {peer.__version__}" if form == "transformers" else "onnxruntime"
    to = Path("out") / form / run.name
    assert lmtransfer("export", f"run={run}", f"format={form}", f"to={to}", "license=mit", "language=en") == 0
    assert version in capsys.readouterr().out


def test_the_report_draws_it(run: Path) -> None:
    folder = Path("reports") / run.name
    assert lmtransfer("report", str(run), f"to={folder}") == 0
    (figure,) = folder.rglob("replaced-tokens.svg")
    assert "precision (%)" in figure.read_text()

"""Pretraining from the command line: the best checkpoint, the precision, characters, and WordPiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.transfer_files import TASK, lmtransfer
from support.saved_encoder import load_encoder
from support.tiny_runs import (
    TINY,
    here,  # noqa: F401 (a fixture)
    new_name,
    records,
    trained,
    without,
)

from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.precision import PrecisionChoice

RTD = ["model=electra_small", "objective=rtd", "model.embedding_dim=8", "objective.losses.rtd.generator_size=0.5"]
ELMO = [
    *without(TINY, "model", "objective", "tokenizer", "experiment", "train.eval_every", "train.steps"),
    *("experiment=elmo_laptop", "model.dim=16", "model.cell_dim=24", "model.char_dim=4", "model.filters=[[1,4],[3,8]]"),
    *("objective.max_length=8", "train.save_every=2", "train.eval_tokens=64", "train.steps=7"),
]


@pytest.mark.parametrize(
    ("words", "best_step"),
    [([*without(TINY, "model=", "objective="), *RTD], 8), (TINY, 10)],
    ids=["rtd", "mlm"],
)
def test_electra_is_chosen_by_its_discriminator_and_others_by_the_total(
    words: list[str], best_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = iter(
        [{"loss": total, "rtd": rtd, "mlm": total} for total, rtd in ((30.0, 0.5), (29.0, 0.3), (20.0, 0.4))]
    )
    monkeypatch.setattr(PretrainingData, "validate", lambda *_, **__: next(evaluations))
    name = new_name()
    assert lmtransfer(*words, f"name={name}") == 0
    state: Any = json.loads(Path(f"runs/pretrain/{name}/checkpoints/best/state.json").read_text())
    assert state["step"] == best_step


def _machine(patch: pytest.MonkeyPatch, name: str) -> None:
    """Make this machine look like one with fast matrix products in ``name``."""
    choice = PrecisionChoice(name, f"shown as {name}")  # type: ignore[arg-type]
    patch.setattr("lmtransfer.training.hardware.fastest_precision", lambda device: choice)


def _precision(run: str) -> str:
    return str(yaml.safe_load((Path(run) / "config.yaml").read_text())["hardware"]["precision"])


ANY_FORMAT = ["hardware.device=cpu", "hardware.threads=1"]
FEW = [*without(TINY, "hardware", "train.steps"), "train.steps=2", *ANY_FORMAT]


def test_a_run_goes_on_in_the_format_that_it_was_begun_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, then = "bf16", "fp32"
    words = [*FEW, f"name={new_name()}"]
    run = f"runs/pretrain/{words[-1].partition('=')[2]}"
    _machine(monkeypatch, first)
    assert lmtransfer(*words) == 0
    assert f"{first} (shown as {first})" in capsys.readouterr().err
    assert _precision(run) == first

    Path(run, "result.json").unlink()  # as if it had been killed before the end
    _machine(monkeypatch, then)
    assert lmtransfer(*words, f"hardware.precision={then}", "resume=true") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("hardware.precision", f"'{first}'", f"'{then}'")), said
    assert lmtransfer(*words, "resume=true") == 0
    said = capsys.readouterr().err
    assert f"{first} (" in said
    assert "shown as" not in said  # the reason comes from the run, not from this machine
    assert _precision(run) == first

    # A float16 run cannot continue on hardware without float16.
    config = Path(run, "config.yaml")
    config.write_text(config.read_text().replace(f"precision: {first}", "precision: fp16"))
    Path(run, "result.json").unlink()
    assert lmtransfer(*words, "resume=true") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in (run, "fp16", "hardware.precision=fp16")), said


@pytest.mark.slow
def test_finetuning_names_the_format_in_every_run_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "bf16")
    words = ["finetune", f"init=runs/pretrain/{trained(*FEW)}", *TASK, "train.epochs=1", "baseline=null", *ANY_FORMAT]
    words += ["seeds=2", "control=true", "name=format"]
    assert lmtransfer(*words) == 0
    runs = [f"runs/finetune/format{run}" for run in ("", "/seed-0", "/seed-1", "/control/seed-0", "/control/seed-1")]
    assert {_precision(run) for run in runs} == {"bf16"}
    for run in (runs[0], runs[2]):
        Path(run, "result.json").unlink()
    _machine(monkeypatch, "fp32")
    assert lmtransfer(*words, "hardware.precision=fp32", "resume=true") == 2
    assert lmtransfer(*words, "resume=true") == 0
    assert {_precision(run) for run in runs} == {"bf16"}


@pytest.mark.slow
def test_elmo_pretrains_on_characters_and_resumes_exactly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = trained(*ELMO), new_name()
    learn, passes = PretrainingLearner.losses, []

    def killed(self: Any, batch: Any, recurrent_state: Any = None) -> Any:
        passes.append(recurrent_state)
        if len(passes) == 6:
            raise RuntimeError("killed")
        return learn(self, batch, recurrent_state)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingLearner, "losses", killed)
        assert lmtransfer(*ELMO, f"name={parts}") == 1
    assert "RuntimeError: killed" in capsys.readouterr().err
    assert passes[0] is None
    assert passes[1] is not None
    assert lmtransfer(*ELMO, f"name={parts}", "resume=true") == 0
    assert [record["step"] for record in records(whole)] == list(range(1, 8))
    assert records(parts) == records(whole)
    encoder, tokenizer, _ = load_encoder(f"runs/pretrain/{whole}")
    assert encoder.vocab_size == tokenizer.vocab_size
    assert encoder.token_embedding is None


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["experiment=elmo_laptop", "tokenizer=unigram"], ("tokenizer=words", "model=elmo_subword_laptop")),
        (["model=elmo_laptop", "objective=mlm", "tokenizer=words"], ("objective=mlm", "bidirectional")),
        (
            ["model=elmo_laptop", "objective=bilm", "tokenizer=words", "model.cell_dim=128"],
            ("model.cell_dim=128", "model.dim"),
        ),
        (["model=elmo_laptop", "objective=bilm", "tokenizer=words", "model.dim=15"], ("model.dim=15", "16")),
    ],
    ids=["pieces for characters", "masked words", "narrow cells", "odd width"],
)
def test_what_does_not_fit_characters_is_one_clear_message(
    words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = [word for word in TINY if word.startswith("corpus")]
    assert lmtransfer("pretrain", *text, *words, "train.steps=1", "train.seconds=null", "name=refused") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert "Traceback" not in said


def test_a_model_of_ids_ignores_the_characters() -> None:
    trained(*without(TINY, "tokenizer", "train.steps"), "tokenizer=words", "train.steps=2")


def test_a_run_with_wordpiece_is_exported_as_bert(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = ["tokenizer=wordpiece", "tokenizer.vocab_size=64", "tokenizer.allow_fewer=true"]
    run = f"runs/pretrain/{trained(*without(TINY, 'tokenizer', 'train.steps'), *vocabulary, 'train.steps=3')}"
    tokenizer = load_tokenizer(Path(run, "tokenizer"))
    assert tokenizer.kind == "wordpiece"
    capsys.readouterr()
    assert lmtransfer("export", f"run={run}", "to=wordpiece") == 0
    assert f"transformers {transformers.__version__}" in capsys.readouterr().out
    theirs = transformers.BertTokenizer.from_pretrained("wordpiece")
    text = "The lovely film was awful, quite dull!"
    assert theirs(text)["input_ids"][1:-1] == tokenizer.encode(text).ids.tolist()

"""Other commands on runs with several losses, with losses of other heads, and with shared embeddings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.tiny_runs import (
    TINY,
    assert_goes_on_exactly,
    here,  # noqa: F401 (a fixture)
    new_name,
    records,
    saved,
    trained,
    without,
)

from lmtransfer.pretraining import phases
from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.pretraining.phases import Pretraining, Training

PHASES = [*TINY, "phases=left_to_right_then_masked"]
CAUSAL = [*without(TINY, "objective=mlm"), "objective=lm"]
MIXED = [*without(TINY, "objective=mlm"), "objective=mlm_lm", "objective.predict=next", "objective.causal_share=0.4"]
UNTIED_FIRST = [*TINY, "phases=untied_first"]
UNTIED = [*TINY, "objective.tie_output=false"]
BOW = [*without(TINY, "objective=mlm", "corpus.path"), "corpus.path=data/lines.txt", "objective=mlm_bow"]
TUNE = ["finetune", *TASK, "hardware=exact", "baseline=null", "train.epochs=1"]
OUTPUT = "objectives.mlm.output.weight"
#: Runs of an encoder that shares its embeddings with the generator.
SHARING = {
    kind: [
        *without(TINY, "model", "objective=mlm", "objective.max_length", "corpus.path"),
        *("corpus.path=data/lines.txt", "objective.max_length=24", "model=electra_small", "model.embedding_dim=8"),
        *("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=48"),
        *(f"objective={kind}", f"objective.losses.{kind}.generator_size=0.5", *more),
        f"objective.losses.{kind}.embedding_sharing=disentangled",
    ]
    for kind, more in (("rtd", ["objective.mask_prob=0.4"]), ("all_tokens_mlm", []))
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (PHASES, (4, 6)),  # in the last left-to-right step, and masked
        (UNTIED_FIRST, (3, 6)),  # at the end of the untied phase, tied
        (MIXED, (5,)),
        (BOW, (4,)),
        (SHARING["rtd"], (4,)),
        (SHARING["all_tokens_mlm"], (4,)),
    ],
    ids=["phases", "untied", "mixed", "bow", "rtd", "all tokens"],
)
def test_a_run_that_goes_on_is_the_uninterrupted_one(words: list[str], steps: tuple[int, ...]) -> None:
    for step in steps:
        assert_goes_on_exactly(*words, after=step)


def test_one_encoder_is_read_left_to_right_and_then_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    run, step = Pretraining.run, phases.Trainer._step

    def noted(self: Pretraining, *more: Any, **named: Any) -> None:
        encoder = self.phases[-1].parts.encoder

        def stepped(trainer: Any, steps: Any) -> str | None:
            seen.append((encoder.attention, id(trainer.learner.encoder)))
            return step(trainer, steps)

        monkeypatch.setattr(phases.Trainer, "_step", stepped)
        run(self, *more, **named)

    monkeypatch.setattr(Pretraining, "run", noted)
    name = new_name()
    assert lmtransfer(*PHASES, f"name={name}") == 0
    assert [attention for attention, _ in seen] == ["causal"] * 4 + ["bidirectional"] * 6
    assert len({encoder for _, encoder in seen}) == 1
    assert not any(tensor.startswith("objectives.lm.") for tensor in saved(name))
    losses = [[key for key in ("loss/lm", "loss/mlm") if key in record] for record in records(name)]
    assert losses == [["loss/lm"]] * 4 + [["loss/mlm"]] * 6


@pytest.mark.slow
def test_transfer_reads_as_the_run_ended_or_as_it_is_told() -> None:
    both, causal = trained(*PHASES), trained(*CAUSAL)
    assert result(f"runs/pretrain/{both}")["attention"] == "bidirectional"
    assert result(f"runs/pretrain/{causal}")["attention"] == "causal"
    losses = set()
    for run, given, read in (
        (both, [], "auto"),
        (both, ["transfer.attention=causal"], "causal"),
        (causal, [], "causal"),
        (causal, ["transfer.attention=bidirectional"], "bidirectional"),
    ):
        name = f"{run}-{len(given)}"
        assert lmtransfer(*TUNE, f"init=runs/pretrain/{run}", f"name={name}", *given) == 0
        transfer = yaml.safe_load(Path(f"runs/finetune/{name}/config.yaml").read_text())["transfer"]
        assert (transfer["attention"], transfer["pieces"]) == (read, "last" if read == "causal" else "first")
        assert lmtransfer("evaluate", f"run=runs/finetune/{name}", f"name={name}", "split=dev", "hardware=exact") == 0
        metrics = result(f"runs/finetune/{name}")["metrics"]
        assert result(f"runs/evaluate/{name}")["metrics"] == pytest.approx(metrics, rel=1e-6)
        losses.add(metrics["loss"])
    assert len(losses) == 4
    # From a task run: with the attention of that run.
    assert lmtransfer(*TUNE, f"init=runs/finetune/{causal}-0", "name=again") == 0
    assert yaml.safe_load(Path("runs/finetune/again/config.yaml").read_text())["transfer"]["attention"] == "causal"


def test_what_does_not_fit_an_attention_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    gpt = trained(*without(CAUSAL, "model=bert_tiny"), "model=gpt_mini")
    lm = "+objective.losses.lm._target_=lmtransfer.objectives.language_model.LanguageModel"
    capsys.readouterr()
    for words, names in (
        (
            [*TUNE, f"init=runs/pretrain/{gpt}", "transfer.attention=bidirectional"],
            ("transfer.attention=bidirectional", "GptEncoder", "causal", "auto"),
        ),
        ([*TINY, lm], ("mlm bidirectional, lm causal",)),
    ):
        assert lmtransfer(*words, "name=refused") == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert all(name in said for name in names), said
    assert not Path("runs/pretrain/refused").exists()


def test_a_mixed_run_has_one_head_whatever_its_micro_batches() -> None:
    still = [*MIXED, "model.dropout=0.0"]
    whole, halved = trained(*still), trained(*still, "train.micro_batch_tokens=32")
    assert {"loss/mlm", "loss/lm"} <= set().union(*records(whole))  # all four rows of a step may be of the same kind
    assert {"mlm", "lm", "loss"} <= set(result(f"runs/pretrain/{whole}")["metrics"])
    one, other = saved(whole), saved(halved)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=2e-4, rtol=1e-3)
    assert {name.removeprefix("objectives.mlm.") for name in one if name.startswith("objectives.")} == {
        *("bias", "dense.weight", "dense.bias", "norm.weight", "norm.bias")
    }


@pytest.mark.slow
def test_a_mixed_run_is_read_either_way_and_fills_masks(capsys: pytest.CaptureFixture[str]) -> None:
    run = f"runs/pretrain/{trained(*MIXED)}"
    assert (result(run)["attention"], result(run)["causal_share"]) == ("bidirectional", 0.4)
    for attention in ("bidirectional", "causal"):
        assert lmtransfer(*TUNE, f"init={run}", f"transfer.attention={attention}", f"name=mixed_{attention}") == 0
    losses = [result(f"runs/finetune/mixed_{name}")["metrics"]["loss"] for name in ("bidirectional", "causal")]
    assert losses[0] != losses[1]
    capsys.readouterr()
    assert lmtransfer("predict", f"run={run}", "text=the [MASK] was good", "hardware=exact") == 0
    assert json.loads(capsys.readouterr().out)["masks"][0]["candidates"]
    assert lmtransfer("export", "run=runs/finetune/mixed_causal", "to=no") == 2
    assert "transfer.attention=causal" in capsys.readouterr().err
    assert not Path("no").exists()


@pytest.mark.slow  # compared with transformers
def test_a_mixed_run_is_exported_as_a_bert() -> None:
    assert lmtransfer("export", f"run=runs/pretrain/{trained(*MIXED)}", "to=mixed") == 0
    assert json.loads(Path("mixed/config.json").read_text())["architectures"] == ["BertModel"]
    card = Path("mixed/README.md").read_text()
    assert all(name in card for name in ("(mlm)", "(lm)", "0.4 of the rows", "predict=next")), card


def test_left_to_right_first_suits_replaced_tokens_too() -> None:
    more = ["phases=left_to_right_then_masked", "objective=rtd", "model.dropout=0.0", "model.embedding_dim=8"]
    words = without(TINY, "model=", "model.dropout", "objective=")
    run = f"runs/pretrain/{trained(*words, 'model=electra_laptop', *more)}"
    assert result(run)["attention"] == "bidirectional"
    assert yaml.safe_load(Path(run, "config.yaml").read_text())["phases"]["left_to_right"]["share"] == 0.4


def test_the_tied_phase_begins_with_the_embedding_and_the_rest_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, torch.Tensor]] = []

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Pretraining, training: Training, *more: Any) -> Any:
            states.append({name: tensor.detach().clone() for name, tensor in training.learner.state_dict().items()})
            return method(self, training, *more)

        return noted

    for name in ("carry_over", "build_trainer"):
        monkeypatch.setattr(Pretraining, name, noting(getattr(Pretraining, name)))
    run = new_name()
    assert lmtransfer(*UNTIED_FIRST, f"name={run}") == 0
    _, untied, tied = states
    assert untied.keys() - tied.keys() == {OUTPUT}
    assert all(torch.equal(untied[name], tied[name]) for name in tied)
    assert not torch.equal(untied[OUTPUT], untied["encoder.embeddings.token.weight"])
    config = yaml.safe_load(Path(f"runs/pretrain/{run}/config.yaml").read_text())
    assert config["objective"]["losses"]["mlm"]["tie_output"] is True
    assert config["phases"]["untied"]["objective"]["losses"]["mlm"]["tie_output"] is False


@pytest.mark.slow
def test_an_untied_run_is_read_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    run = f"runs/pretrain/{trained(*UNTIED)}"
    assert lmtransfer("evaluate", f"run={run}", "name=untied", "hardware=exact") == 0
    assert result("runs/evaluate/untied")["metrics"]["loss"] == pytest.approx(result(run)["metrics"]["loss"])
    assert lmtransfer("predict", f"run={run}", "text='the [MASK] .'", "hardware=exact") == 0
    capsys.readouterr()
    assert lmtransfer("export", f"run={run}", "to=untied") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\bmlm\b.*\btie_output=False\b.*\bTrue\b", said)


def test_gone_on_with_it_keeps_its_matrix_unless_it_is_to_be_tied() -> None:
    tiny = without(TINY, "model", "tokenizer", "train.steps")
    on = [*tiny, f"init=runs/pretrain/{trained(*UNTIED)}", "train.steps=1"]
    assert OUTPUT in saved(trained(*on))
    dropped = trained(*on, "objective.tie_output=true")
    assert OUTPUT not in saved(dropped)
    # A tied head may be untied in the first phase.
    first = trained(*tiny, f"init=runs/pretrain/{dropped}", "train.steps=10", "phases=untied_first")
    config = yaml.safe_load(Path(f"runs/pretrain/{first}/config.yaml").read_text())
    assert config["phases"]["untied"]["objective"]["losses"]["mlm"]["tie_output"] is False
    assert config["objective"]["losses"]["mlm"]["tie_output"] is True


@pytest.mark.slow
def test_what_words_weigh_is_the_runs_on_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(*BOW)
    information = saved(run)["objectives.bow.information"]
    assert len(set(information.tolist())) > 10
    assert torch.equal(saved(trained(*BOW, "phases=words_then_masked"))["objectives.bow.information"], information)
    evaluate = ["evaluate", f"run=runs/pretrain/{run}", "hardware=exact"]
    assert lmtransfer(*evaluate, "name=bow") == 0
    known = result(f"runs/pretrain/{run}")["metrics"]["bow"]
    assert result("runs/evaluate/bow")["metrics"]["bow"] == pytest.approx(known, rel=0.05)
    other = ["corpus=text", "corpus.path=data/other.txt", "corpus.validation_fraction=0.2"]
    monkeypatch.setattr("lmtransfer.objectives.bag_of_words.BagOfWords.observe", None)  # not asked for
    assert lmtransfer(*evaluate, *other, "name=bow_of_others") == 0
    assert 0 < result("runs/evaluate/bow_of_others")["metrics"]["bow"] < 20


@pytest.mark.slow
def test_a_bag_of_words_is_transferred_exported_and_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*BOW)
    assert lmtransfer(*TUNE, f"init=runs/pretrain/{run}", "name=of_bow") == 0
    assert lmtransfer("export", f"run=runs/pretrain/{run}", "to=bow") == 0
    capsys.readouterr()
    words = without(BOW, "model", "tokenizer", "corpus.path", "train.steps")
    on = trained(*words, f"init=runs/pretrain/{run}", "corpus.path=data/other.txt", "train.steps=1")
    assert str(InheritedHeads(("mlm", "bow"), (), ())) in capsys.readouterr().err
    assert not torch.equal(*(saved(name)["objectives.bow.information"] for name in (run, on)))  # of its own text


@pytest.mark.parametrize(
    ("model", "objective"),
    [("electra_laptop", "rtd"), ("gpt_laptop", "lm")],
)
def test_a_bag_of_words_joins_any_objective(model: str, objective: str) -> None:
    joined = "+objective.losses.bow={_target_: lmtransfer.objectives.bag_of_words.BagOfWords}"
    words = without(BOW, "model=", "objective=", "train.steps")
    run = trained(*words, f"model={model}", f"objective={objective}", joined, "train.steps=2")
    assert {"bow", objective.rpartition("_")[2]} <= result(f"runs/pretrain/{run}")["metrics"].keys()


@pytest.mark.parametrize("kind", SHARING)
def test_replaced_tokens_that_are_found_are_in_log_and_result(kind: str) -> None:
    run = trained(*SHARING[kind])
    metrics = result(f"runs/pretrain/{run}")["metrics"]
    assert 0 < metrics[f"{kind}_base_rate"] < metrics[f"{kind}_replaced"] <= 1
    assert 0 <= metrics[f"{kind}_recall"] <= 1
    assert sum(f"validation/{kind}_recall" in record for record in records(run)) == 3
    assert any(f"loss/{kind}_recall" in record for record in records(run))


def test_an_encoder_with_disentangled_embeddings_is_an_ordinary_one(capsys: pytest.CaptureFixture[str]) -> None:
    kind = "rtd"
    run = trained(*SHARING[kind])
    path, tensors = f"runs/pretrain/{run}", saved(run)
    table = tensors["encoder.embeddings.token.weight"]
    base, difference = (
        tensors[f"objectives.{kind}.{key}.weight"] for key in ("generator.embeddings.token", "difference")
    )
    assert difference.abs().max() > 0
    assert torch.equal(table, base + difference)
    for command in ("finetune", "probe"):
        assert lmtransfer(command, *TUNE[1:], f"init={path}", f"name={kind}") == 0
    assert lmtransfer("evaluate", f"run={path}", f"name={kind}", "hardware=exact") == 0
    again, known = (result(folder)["metrics"] for folder in (f"runs/evaluate/{kind}", path))
    assert again[kind] == pytest.approx(known[kind], rel=0.2)
    assert again[f"{kind}_base_rate"] == pytest.approx(known[f"{kind}_base_rate"], rel=0.2)
    # Pretraining continues from this run.
    still = ["optimizer=adamw", "optimizer.learning_rate=1e-30", "train.steps=1", f"objective={kind}"]
    words = without(SHARING[kind], "model", "tokenizer", "objective", "train.steps")
    capsys.readouterr()
    on = saved(trained(*words, "objective.max_length=24", *still, f"init={path}"))
    assert str(InheritedHeads((kind,), (), ())) in capsys.readouterr().err
    before = saved(run, checkpoint="best")
    assert before.keys() == on.keys()
    name = "encoder.embeddings.token.weight"
    torch.testing.assert_close(on[name], before[name])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize("form", ["transformers", "onnx"])
def test_it_is_exported_as_an_ordinary_model(kind: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    peer = pytest.importorskip("transformers" if form == "transformers" else "onnxruntime")
    version = f"transformers {peer.__version__}" if form == "transformers" else "onnxruntime"
    words = [f"run=runs/pretrain/{trained(*SHARING[kind])}", f"format={form}", f"to=out/{form}/{kind}"]
    assert lmtransfer("export", *words, "license=mit", "language=en") == 0
    assert version in capsys.readouterr().out

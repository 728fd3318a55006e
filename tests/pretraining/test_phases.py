"""Pretraining in phases: what each does and leaves to the next, going on from anywhere, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.phases import TINY, WORDS, assert_same, here, made, records, saved, stop_after  # noqa: F401 (fixtures)

from lmtransfer.config.paths import conf_dir
from lmtransfer.pretraining import phases
from lmtransfer.training import loop


def test_a_run_that_goes_on_in_any_phase_is_the_uninterrupted_one() -> None:
    assert lmtransfer(*WORDS, "name=whole") == 0
    for step in (2, 3, 5):  # in the first phase, in its last step, in the second
        name = f"cut{step}"
        with pytest.MonkeyPatch.context() as patch:
            stop_after(step, patch)
            assert lmtransfer(*WORDS, f"name={name}") != 0
        assert [record["step"] for record in records(name)][-1] <= step
        assert lmtransfer(*WORDS, f"name={name}", "resume=true") == 0
        assert_same("whole", name)


def test_a_resumed_run_builds_only_the_phase_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(5, patch)
        assert lmtransfer(*WORDS, "name=cut") != 0
    names: list[str] = []
    learner, training = phases.Pretraining.build_learner, phases.Pretraining.build_training

    def noted(self: phases.Pretraining, phase: phases.TrainingPhase) -> Any:
        names.append(phase.name)
        return learner(self, phase)

    def also_noted(self: phases.Pretraining, phase: phases.TrainingPhase, *more: Any) -> Any:
        names.append(f"training of {phase.name}")
        return training(self, phase, *more)

    monkeypatch.setattr(phases.Pretraining, "build_learner", noted)
    monkeypatch.setattr(phases.Pretraining, "build_training", also_noted)
    assert lmtransfer(*WORDS, "name=cut", "resume=true") == 0
    assert names == ["rest", "training of rest"]


def test_a_kill_between_two_phases_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lmtransfer(*WORDS, "name=whole") == 0

    class Kill(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(phases, "standardize", killed)
        with pytest.raises(Kill):
            lmtransfer(*WORDS, "name=cut")
    assert len(records("cut")) == 3
    assert lmtransfer(*WORDS, "name=cut", "resume=true") == 0
    assert_same("whole", "cut")


def test_phases_of_one_objective_go_on_with_its_head_and_optimiser() -> None:
    growing = [*TINY, "--config-dir=own", "phases=growing"]
    assert lmtransfer(*growing, "name=whole") == 0
    for step in (4, 5, 8):  # between the first phase and the second, in the second, in the third
        name = f"cut{step}"
        with pytest.MonkeyPatch.context() as patch:
            stop_after(step, patch)
            assert lmtransfer(*growing, f"name={name}") != 0
        assert lmtransfer(*growing, f"name={name}", "resume=true") == 0
        assert_same("whole", name)
    moments = saved("whole", "optimizer")
    assert {int(moments[name]) for name in moments if name.endswith("/step")} == {10}  # over all three phases


def test_masks_rows_batches_and_rates_change_where_a_phase_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, int, int]] = []
    taken = loop.Updater.launch_step

    def noted(self: Any, step: Any, **more: Any) -> Any:
        (batch,) = step.micro_batches
        lengths = np.diff(batch.original.cu_seqlens.numpy())
        seen.append((batch.num_targets / batch.num_tokens, int(lengths.max()), batch.num_tokens))
        return taken(self, step, **more)

    monkeypatch.setattr(loop.Updater, "launch_step", noted)
    assert lmtransfer(*TINY, "--config-dir=own", "phases=growing", "name=run") == 0
    shares, rows, tokens = (np.array(numbers) for numbers in zip(*seen, strict=True))
    assert [record["phase"] for record in records("run")] == ["first"] * 4 + ["second"] * 2 + ["third"] * 4
    assert rows.tolist() == [16] * 4 + [32] * 2 + [16] * 4
    assert (tokens <= np.repeat([64, 128, 64], [4, 2, 4])).all()
    assert (tokens[4:6] > 64).all()
    assert shares[:4].mean() == pytest.approx(0.4 * 14 / 16, abs=0.05)
    assert shares[6:].mean() == pytest.approx(0.2 * 14 / 16, abs=0.05)
    # One schedule over all of the run, of another peak in the last phase.
    rates = [record["learning_rate"] for record in records("run")]
    peaks = [0.02] * 6 + [0.01] * 4
    assert rates == pytest.approx([peak * (1 - step / 10) for step, peak in enumerate(peaks)])
    # What the last phase says is the run's own.
    config = yaml.safe_load(Path("runs/pretrain/run/config.yaml").read_text())
    assert config["objective"]["mask_prob"] == 0.2
    assert config["objective"]["corruption"]["mask_prob"] == 0.2
    assert config["phases"]["first"]["objective"]["corruption"]["mask_prob"] == 0.4
    assert config["optimizer"]["learning_rate"] == 0.01


def test_the_schedule_begins_anew_where_it_is_to() -> None:
    own = Path("own/phases/anew.yaml")
    own.write_text("one: {share: 0.4}\ntwo: {share: 0.2, restart: true}\nthree: {share: 0.4}\n")
    assert lmtransfer(*TINY, "--config-dir=own", "phases=anew", "name=run") == 0
    factors = [1 - step / 4 for step in range(4)] + [1 - step / 6 for step in range(6)]
    assert [record["learning_rate"] / 0.02 for record in records("run")] == pytest.approx(factors)


def test_word_vectors_are_learnt_in_the_table_alone_then_centred_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, torch.Tensor]] = []
    enter = phases.Pretraining.build_trainer

    def noted(self: phases.Pretraining, *more: Any) -> Any:
        whole = self.phases[-1].parts.encoder
        states.append({name: tensor.detach().clone() for name, tensor in whole.state_dict().items()})
        return enter(self, *more)

    monkeypatch.setattr(phases.Pretraining, "build_trainer", noted)
    assert lmtransfer(*WORDS, "name=run") == 0
    before, after = states
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    (table,) = changed
    assert before[table].shape == saved("run")[f"encoder.{table}"].shape
    assert "token" in table
    vectors = after[table].double()
    assert vectors.mean(0).abs().max() < 1e-8
    assert float(vectors.std(correction=0)) == pytest.approx(0.02, rel=1e-5)
    # It is the learned vectors' differences that are kept, and not those of the random ones.
    random_ones = before[table].double() - before[table].double().mean(0)
    assert not torch.allclose(vectors / vectors.std(), random_ones / random_ones.std(), atol=0.1)
    # Steps are numbered on, and the best checkpoint is one of the last phase.
    assert [record["step"] for record in records("run")] == list(range(1, 11))
    assert result("runs/pretrain/run")["checkpoint_step"] > 3
    assert [phase["step"] for phase in result("runs/pretrain/run")["phases"]] == [0, 3]


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "phases").glob("*.yaml")))
def test_the_shipped_phases_train_one_after_the_other(name: str) -> None:
    instead = {"model.max_length=32": "model.max_length=512"}
    if name == "generator_first":
        instead |= {"model=bert_tiny": "model=electra_laptop", "model.num_heads=2": "model.num_heads=1"}
        instead |= {"objective=mlm": "objective=rtd"}
    words = [instead.get(word, word) for word in TINY]
    assert lmtransfer(*words, f"phases={name}", "name=run") == 0
    named = list(dict.fromkeys(record["phase"] for record in records("run")))
    assert named == list(yaml.safe_load(Path("runs/pretrain/run/config.yaml").read_text())["phases"])
    assert len(named) > 1
    assert records("run")[-1]["step"] == 10


def test_a_run_in_phases_is_transferred_and_reported_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*WORDS, "name=run") == 0
    said = capsys.readouterr().err
    assert re.search(r"skipgram \(words, 30 %\).*mlm \(rest, 70 %\)", said)
    assert "  words  30 %" in said
    assert "  rest  100 %" in said
    tuning = [
        "finetune",
        *TASK,
        "init=runs/pretrain/run",
        "hardware=exact",
        "baseline=null",
        "train.epochs=1",
        "name=ft",
    ]
    assert lmtransfer(*tuning) == 0
    assert lmtransfer("evaluate", "run=runs/pretrain/run", "name=again", "hardware=exact") == 0
    assert result("runs/evaluate/again")["metrics"]["loss"] == pytest.approx(
        result("runs/pretrain/run")["metrics"]["loss"]
    )
    assert lmtransfer("export", "run=runs/pretrain/run", "to=out") == 0
    card = Path("out/README.md").read_text()
    assert re.search(r"words \(skipgram, 30 %.*rest \(mlm, 70 %", card)
    assert lmtransfer("report", "runs") == 0
    drawn = "".join(path.read_text() for path in Path("runs").rglob("pretraining-loss*.svg"))
    assert "phase rest" in drawn


REFUSED: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "shares": ("a: {share: 0.5}\nb: {share: 0.3}", [], ("phases: ", "0.8", "0.5 + 0.3")),
    "no share": ("a: {share: 1}\nb: {}", [], ("phases.b.share: ", " 1 ")),
    "a share that is none": ("a: {share: -1}\nb: {share: 2}", [], ("phases.a.share: ", "-1")),
    "unknown key": ("a: {share: 0.5, obiective: {}}\nb: {share: 0.5}", [], ("phases.a.obiective: ", "'objective'")),
    "unknown setting": (
        "a: {share: 0.5, objective: {mask_prop: 0.3}}\nb: {share: 0.5}",
        [],
        ("phases.a.objective.mask_prop: ", "'mask_prob'"),
    ),
    "unknown objective": (
        "defaults: [{/objective@a.objective: skipgrams}, _self_]\na: {share: 0.5}\nb: {share: 0.5}",
        [],
        ("phases/bad.yaml", "objective/skipgrams", "'skipgram'"),
    ),
    "masks": (
        "a: {share: 0.5, objective: {mask_prob: 1.5}}\nb: {share: 0.5}",
        [],
        ("phases.a.objective.corruption.mask_prob: ", "1.5"),
    ),
    "no phase": ("a: 3\nb: {share: 1}", [], ("phases.a: ", "3 ")),
    "nothing after": ("a: {share: 0.5}\nb: {share: 0.5, embedding_after: {}}", [], ("phases.b.embedding_after: ",)),
    "less than a step": ("a: {share: 0.01}\nb: {share: 0.99}", [], ("phases.a.share: ", "0.01", "train.steps=10")),
    "epochs": ("a: {share: 0.5}\nb: {share: 0.5}", ["train.steps=null", "train.epochs=2"], ("train.epochs: ",)),
    "another direction": (
        "defaults: [{/objective@a.objective: backward_lm}, _self_]\na: {share: 0.5, objective: {max_length: 16}}\n"
        "b: {share: 0.5}",
        [],
        ("phases.a: ", "objective=backward_lm"),
    ),
    "rows": (
        "a: {share: 0.5, objective: {max_length: 99}}\nb: {share: 0.5}",
        [],
        ("phases.a: ", "objective.max_length=99"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, more, names = REFUSED[name]
    Path("own/phases/bad.yaml").write_text(text + "\n")
    assert lmtransfer(*TINY, "--config-dir=own", "phases=bad", "name=run", *more) == 2
    said = capsys.readouterr().err.strip()
    assert all(name in said for name in names), said
    assert len(said.splitlines()) <= 2, said
    assert not Path("runs/pretrain/run").exists()


def test_encoders_of_characters_have_no_table_to_learn_in(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if not word.startswith(("model", "objective=", "tokenizer"))]
    elmo = ["model=elmo_laptop", "objective=bilm", "tokenizer=words", "tokenizer.vocab_size=60"]
    assert lmtransfer(*words, *elmo, "name=run") == 2
    said = capsys.readouterr().err.strip()
    assert "phases.words: " in said
    assert "ElmoEncoder" in said
    assert "characters" in said
    assert len(said.splitlines()) == 1


def test_other_phases_are_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*WORDS, "name=run") == 0
    capsys.readouterr()
    assert lmtransfer(*WORDS, "name=run", "phases.words.share=0.4", "resume=true") == 2
    assert re.search(r"phases\.words\.share .*\b0\.3 .*\b0\.4 ", capsys.readouterr().err)


def test_phases_of_a_recipe_are_taken_back_by_null() -> None:
    Path("own/experiment").mkdir()
    Path("own/experiment/growing.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /phases: growing\ntrain: {steps: 10}\n"
    )
    Path("own/experiment/grown.yaml").write_text("# @package _global_\ndefaults:\n  - growing\n")
    words = ["experiment=grown" if word.startswith("experiment") else word for word in TINY]
    assert lmtransfer(*words, "--config-dir=own", "name=with") == 0
    assert {record["phase"] for record in records("with")} == {"first", "second", "third"}
    assert lmtransfer(*words, "--config-dir=own", "phases=null", "name=without") == 0
    assert not any("phase" in record for record in records("without"))


def test_an_interrupted_phase_is_not_taken_for_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        assert lmtransfer(*WORDS, "name=cut") != 0
    capsys.readouterr()
    assert lmtransfer("finetune", *TASK, "init=runs/pretrain/cut", "hardware=exact", "train.epochs=1", "name=ft") == 2
    said = capsys.readouterr().err.strip()
    assert "runs/pretrain/cut" in said
    assert "'words'" in said
    assert "resume=true" in said
    assert len(said.splitlines()) == 1

"""Pretraining in phases: what carries over to the next phase, resuming, and refused settings."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.refusals import refuses
from support.tiny_runs import (
    TINY,
    WORDS,
    assert_goes_on_exactly,
    assert_same,
    cut,
    here,  # noqa: F401 (a fixture)
    new_name,
    records,
    saved,
    trained,
    without,
)

from lmtransfer.config.component import Node
from lmtransfer.config.paths import conf_dir
from lmtransfer.config.phases import Phase
from lmtransfer.config.settings import ObjectiveSettings
from lmtransfer.errors import CheckpointError
from lmtransfer.pretraining import phases
from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.pretraining.phases import Pretraining, Training, Transition, find_phase, schedule_span, transitions_of
from lmtransfer.training import loop

GROWING = [*TINY, "--config-dir=own", "phases=growing"]
SMALL = [
    *("pretrain", "train.seconds=null", "corpus=text", "corpus.path=data/lines.txt", "corpus.validation_fraction=0.2"),
    *("tokenizer.vocab_size=60", "tokenizer.allow_fewer=true", "train.batch_tokens=64", "hardware=exact"),
    *("train.log_every=1", "train.eval_tokens=64", "model.dim=16", "model.num_layers=1", "model.max_length=32"),
    "objective.max_length=16",
]
ELECTRA = [
    *(*SMALL, "model.num_heads=1", "model.hidden_dim=16", "experiment=electra_laptop", "objective=rtd"),
    *("objective.losses.rtd.generator_size=0.5", "model.embedding_dim=8", "train.steps=8"),
]
WORDS_FIRST = [*ELECTRA, "phases=words_then_masked"]
GENERATOR_FIRST = [*ELECTRA, "phases=generator_first"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (WORDS, (2, 3, 5)),  # in the first phase, in its last step, in the second
        (GROWING, (4, 8)),  # between two phases, in the third
        (GENERATOR_FIRST, (4, 6)),
        (WORDS_FIRST, (6,)),
    ],
    ids=["words", "growing", "generator first", "words of a generator"],
)
def test_a_run_that_goes_on_in_any_phase_is_the_uninterrupted_one(words: list[str], steps: tuple[int, ...]) -> None:
    for step in steps:
        assert_goes_on_exactly(*words, after=step)


def test_phases_of_one_objective_share_the_state_of_its_optimiser() -> None:
    moments = saved(trained(*GROWING), "optimizer")
    assert {int(moments[name]) for name in moments if name.endswith("/step")} == {10}  # in all three phases


def test_a_resumed_run_builds_only_the_phase_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    name = cut(*WORDS, after=5)
    names: list[str] = []
    for method in ("build_learner", "build_training"):
        original = getattr(Pretraining, method)

        def noted(self: Pretraining, phase: Any, *more: Any, method: str = method, original: Any = original) -> Any:
            names.append(f"{method} of {phase.name}")
            return original(self, phase, *more)

        monkeypatch.setattr(Pretraining, method, noted)
    assert lmtransfer(*WORDS, f"name={name}", "resume=true") == 0
    assert names == ["build_learner of rest", "build_training of rest"]


def test_a_kill_between_two_phases_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kill(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Kill

    name = new_name()
    with monkeypatch.context() as patch:
        patch.setattr(phases, "standardize", killed)
        with pytest.raises(Kill):
            lmtransfer(*WORDS, f"name={name}")
    assert len(records(name)) == 3
    assert lmtransfer(*WORDS, f"name={name}", "resume=true") == 0
    assert_same(trained(*WORDS), name)


def test_masks_rows_batches_and_rates_change_where_a_phase_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, int, int]] = []
    taken = loop.Updater.launch_step

    def noted(self: Any, step: Any, **more: Any) -> Any:
        (batch,) = step.micro_batches
        lengths = np.diff(batch.original.cu_seqlens.numpy())
        seen.append((batch.num_targets / batch.num_tokens, int(lengths.max()), batch.num_tokens))
        return taken(self, step, **more)

    monkeypatch.setattr(loop.Updater, "launch_step", noted)
    run = new_name()
    assert lmtransfer(*GROWING, f"name={run}") == 0
    shares, rows, tokens = (np.array(numbers) for numbers in zip(*seen, strict=True))
    assert [record["phase"] for record in records(run)] == ["first"] * 4 + ["second"] * 2 + ["third"] * 4
    assert rows.tolist() == [16] * 4 + [32] * 2 + [16] * 4
    assert (tokens <= np.repeat([64, 128, 64], [4, 2, 4])).all()
    assert (tokens[4:6] > 64).all()
    assert shares[:4].mean() == pytest.approx(0.4 * 14 / 16, abs=0.05)
    assert shares[6:].mean() == pytest.approx(0.2 * 14 / 16, abs=0.05)
    # One schedule over the whole run, with a different peak in the last phase.
    rates = [record["learning_rate"] for record in records(run)]
    peaks = [0.02] * 6 + [0.01] * 4
    assert rates == pytest.approx([peak * (1 - step / 10) for step, peak in enumerate(peaks)])
    # The settings of the last phase are those of the run.
    config = yaml.safe_load(Path(f"runs/pretrain/{run}/config.yaml").read_text())
    assert config["objective"]["mask_prob"] == 0.2
    assert config["objective"]["corruption"]["mask_prob"] == 0.2
    assert config["phases"]["first"]["objective"]["corruption"]["mask_prob"] == 0.4
    assert config["optimizer"]["learning_rate"] == 0.01


def test_the_schedule_begins_anew_where_it_is_to() -> None:
    own = Path("own/phases/anew.yaml")
    own.write_text("one: {share: 0.4}\ntwo: {share: 0.2, restart: true}\nthree: {share: 0.4}\n")
    run = trained(*TINY, "--config-dir=own", "phases=anew")
    factors = [1 - step / 4 for step in range(4)] + [1 - step / 6 for step in range(6)]
    assert [record["learning_rate"] / 0.02 for record in records(run)] == pytest.approx(factors)


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Record the weights of the learner at the start of each phase."""
    states: list[dict[str, torch.Tensor]] = []
    enter = Pretraining.build_trainer

    def noted(self: Pretraining, training: Training, *more: Any) -> Any:
        states.append({name: tensor.detach().clone() for name, tensor in training.learner.state_dict().items()})
        return enter(self, training, *more)

    monkeypatch.setattr(Pretraining, "build_trainer", noted)
    return states


#: What each recipe's tiny model needs beside the common settings.
HEADS = ["model.num_heads=1", "model.hidden_dim=16"]
OWN = {
    "albert": [*HEADS, "model.embedding_dim=8"],
    "elmo_subword": ["model.cell_dim=16"],
    "xlnet": HEADS,
}


@pytest.mark.parametrize("family", ["tiny", *OWN])
def test_word_vectors_are_learnt_in_the_table_alone_then_centred_and_scaled(
    family: str, entered: list[dict[str, torch.Tensor]]
) -> None:
    """The recipe of each family trains the table further."""
    run = new_name()
    phase = ["phases=words_then_masked", "phases.words.share=0.5", "train.steps=4"]
    words = WORDS if family == "tiny" else [*SMALL, f"experiment={family}_laptop", *phase, *OWN[family]]
    assert lmtransfer(*words, f"name={run}") == 0
    random_ones, vectors = entered
    table = next(name for name in random_ones if name.startswith("encoder.whole.") and "token" in name)
    tuned = table.replace("whole.", "")
    after = vectors[tuned].double()
    assert after.shape == random_ones[table].shape
    assert after.mean(0).abs().max() < 1e-8
    assert float(after.std(correction=0)) == pytest.approx(0.02, rel=1e-5)
    # The differences between the learned vectors are preserved, not those between the random ones.
    before = random_ones[table].double() - random_ones[table].double().mean(0)
    assert not torch.allclose(after / after.std(), before / before.std(), atol=0.1 if family == "tiny" else 1e-6)
    for name, tensor in vectors.items():
        other = random_ones.get(name.replace("encoder.", "encoder.whole.", 1))
        if other is not None and other.shape != after.shape:
            assert torch.equal(other, tensor), name
    assert not torch.equal(saved(run)[tuned].double(), after)


@pytest.mark.parametrize("sharing", ["tied", "none"])
def test_the_generator_has_the_vectors_too(sharing: str, entered: list[dict[str, torch.Tensor]]) -> None:
    set_sharing = f"objective.losses.rtd.embedding_sharing={sharing}"
    assert lmtransfer(*WORDS_FIRST, set_sharing, f"name={new_name()}") == 0
    vectors = entered[1]["encoder.embeddings.token.weight"]
    assert float(vectors.double().std(correction=0)) == pytest.approx(0.02, rel=1e-5)
    own = entered[1].get("objectives.rtd.generator.embeddings.token.weight")
    assert (own is None) == (sharing == "tied")
    assert own is None or torch.equal(own, vectors)


def test_discriminator_and_generator_go_on_from_the_masked_language_model(
    entered: list[dict[str, torch.Tensor]],
) -> None:
    run = new_name()
    assert lmtransfer(*GENERATOR_FIRST, f"name={run}") == 0
    begun, switched = entered
    layers = [name.removeprefix("encoder.") for name in switched if name.startswith("encoder.stack.")]
    assert len(layers) > 8
    for name in [*layers, "project.weight", "project.bias"]:
        assert torch.equal(switched[f"objectives.rtd.generator.{name}"], switched[f"encoder.{name}"]), name
    assert not torch.equal(begun["encoder.project.weight"], switched["encoder.project.weight"])
    head = switched["objectives.rtd.generator_head.dense.weight"]
    assert not torch.equal(begun["objectives.mlm.dense.weight"], head)
    assert [record["phase"] for record in records(run)] == ["masked"] * 4 + ["replaced"] * 4
    assert not torch.equal(*(saved(run)[f"{part}.project.weight"] for part in ("encoder", "objectives.rtd.generator")))


def test_a_generator_may_begin_as_another_run_ended(capsys: pytest.CaptureFixture[str]) -> None:
    masked = without(ELECTRA, "experiment", "objective=", "objective.losses")
    first = saved(init := trained(*masked, "experiment=null", "model=electra_laptop", "objective=mlm"))
    words = without(ELECTRA, "model", "tokenizer", "train.steps", "objective.losses")
    start = [f"objective.losses.rtd.generator_{word}" for word in ("size=1.0", "start=encoder")]
    still = ["optimizer=adamw", "optimizer.learning_rate=1e-30", "optimizer.weight_decay=0", "train.steps=1"]
    capsys.readouterr()
    name = new_name()
    assert lmtransfer(*words, *start, *still, f"init=runs/pretrain/{init}", f"name={name}") == 0
    assert str(InheritedHeads((), ("rtd",), ())) in capsys.readouterr().err
    second = saved(name)
    torch.testing.assert_close(second["objectives.rtd.generator.project.weight"], second["encoder.project.weight"])
    torch.testing.assert_close(
        second["objectives.rtd.generator_head.dense.weight"], first["objectives.mlm.dense.weight"]
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "phases").glob("*.yaml")))
def test_the_shipped_phases_train_one_after_the_other(name: str) -> None:
    instead = {"model.max_length=32": "model.max_length=512"}
    if name == "generator_first":
        instead |= {"model=bert_tiny": "model=electra_laptop", "model.num_heads=2": "model.num_heads=1"}
        instead |= {"objective=mlm": "objective=rtd"}
    run = trained(*(instead.get(word, word) for word in TINY), f"phases={name}")
    named = list(dict.fromkeys(record["phase"] for record in records(run)))
    assert named == list(yaml.safe_load(Path(f"runs/pretrain/{run}/config.yaml").read_text())["phases"])
    assert len(named) > 1
    assert [record["step"] for record in records(run)] == list(range(1, 11))


@pytest.mark.slow
def test_a_run_in_phases_is_transferred_and_exported_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    run = new_name()
    assert lmtransfer(*WORDS, f"name={run}") == 0
    said = capsys.readouterr().err
    assert re.search(r"skipgram \(words, 30 %\).*mlm \(rest, 70 %\)", said)
    assert "  words  30 %" in said
    assert "  rest  100 %" in said
    path = f"runs/pretrain/{run}"
    found = result(path)
    assert found["checkpoint_step"] > 3, "the best checkpoint is one of the last phase"
    assert [phase["step"] for phase in found["phases"]] == [0, 3]
    quick = ["hardware=exact", "name=of_phases"]
    assert lmtransfer("finetune", *TASK, f"init={path}", *quick, "baseline=null", "train.epochs=1") == 0
    assert lmtransfer("evaluate", f"run={path}", *quick) == 0
    assert result("runs/evaluate/of_phases")["metrics"]["loss"] == pytest.approx(found["metrics"]["loss"])
    assert lmtransfer("export", f"run={path}", "to=exported") == 0
    card = Path("exported/README.md").read_text()
    assert re.search(r"words \(skipgram, 30 %.*rest \(mlm, 70 %", card)


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
    assert lmtransfer(*TINY, "--config-dir=own", "phases=bad", "name=refused", *more) == 2
    said = capsys.readouterr().err.strip()
    assert all(name in said for name in names), said
    assert len(said.splitlines()) <= 3, said
    assert not Path("runs/pretrain/refused").exists()


def test_what_does_not_suit_a_model_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for words, names in (
        (
            ["pretrain", "experiment=elmo_laptop", "phases=words_then_masked"],
            ("phases.words: ", "ElmoEncoder", "characters"),
        ),
        (
            [*GENERATOR_FIRST, "phases.replaced.objective.losses.rtd.generator_size=0.5"],
            ("rtd.generator_start=encoder", " 0.5 ", "rtd.generator_size=1.0", "generator_start=random"),
        ),
    ):
        assert lmtransfer(*words, "name=refused") == 2
        said = capsys.readouterr().err.strip()
        assert all(name in said for name in names), said
        assert len(said.splitlines()) == 1


def test_other_phases_are_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*WORDS, f"name={trained(*WORDS)}", "phases.words.share=0.4", "resume=true") == 2
    assert re.search(r"phases\.words\.share .*\b0\.3 .*\b0\.4 ", capsys.readouterr().err)


def test_phases_of_a_recipe_are_taken_back_by_null() -> None:
    Path("own/experiment").mkdir(exist_ok=True)
    Path("own/experiment/growing.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /phases: growing\ntrain: {steps: 10}\n"
    )
    Path("own/experiment/grown.yaml").write_text("# @package _global_\ndefaults:\n  - growing\n")
    words = [*without(TINY, "experiment"), "experiment=grown", "--config-dir=own"]
    assert {record["phase"] for record in records(trained(*words))} == {"first", "second", "third"}
    assert not any("phase" in record for record in records(trained(*words, "phases=null")))


def test_an_interrupted_phase_is_not_taken_for_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = f"runs/pretrain/{cut(*WORDS, after=2)}"
    capsys.readouterr()
    assert lmtransfer("finetune", *TASK, f"init={run}", "hardware=exact", "train.epochs=1", "name=ft") == 2
    said = capsys.readouterr().err.strip()
    assert all(name in said for name in (run, "'words'", "resume=true")), said
    assert len(said.splitlines()) == 1


MASKED, CAUSAL = [object()], [object()]


def described(*each: tuple[Any, str, float, bool | None]) -> tuple[list[Phase], list[Transition]]:
    """Return phases of equal length with these objectives, optimizers, learning rates and restarts."""
    count = len(each)
    optimizers = [Node[Any]({"_target_": kind, "learning_rate": rate}) for _, kind, rate, _ in each]
    none = ObjectiveSettings.model_construct()
    phases = [
        Phase(f"p{i}", i / count, (i + 1) / count, none, optimizers[i], restart=restart)
        for i, (_, _, _, restart) in enumerate(each)
    ]
    parts: list[Any] = [SimpleNamespace(objectives=objectives) for objectives, _, _, _ in each]
    return phases, transitions_of(phases, parts)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((MASKED, "adam", 0.1, None), Transition(True, True, True, restarts=False)),
        ((MASKED, "adam", 0.2, None), Transition(True, False, True, restarts=False)),
        ((MASKED, "muon", 0.1, None), Transition(True, False, False, restarts=True)),
        ((CAUSAL, "adam", 0.1, None), Transition(False, True, True, restarts=True)),
        ((CAUSAL, "adam", 0.1, False), Transition(False, True, True, restarts=False)),
        ((MASKED, "adam", 0.1, True), Transition(True, True, True, restarts=True)),
    ],
)
def test_two_phases(second: tuple[Any, str, float, bool | None], expected: Transition) -> None:
    _, transitions = described((MASKED, "adam", 0.1, None), second)
    assert transitions[0].restarts
    assert not transitions[0].same_losses
    assert transitions[1] == expected


def test_equal_objectives_that_are_not_shared_are_not_the_same_losses() -> None:
    same = [1.0]
    _, transitions = described((same, "adam", 0.1, None), (list(same), "adam", 0.1, None))
    assert not transitions[1].same_losses


def test_the_schedule_runs_from_restart_to_restart() -> None:
    phases, transitions = described(
        (CAUSAL, "adam", 0.1, False),  # the first phase always starts a schedule
        (CAUSAL, "adam", 0.1, None),
        (MASKED, "adam", 0.1, None),
        (MASKED, "adam", 0.2, None),
        (MASKED, "adam", 0.2, True),
    )
    spans = [schedule_span(phases, transitions, place) for place in range(5)]
    assert spans == [(0, 0.4), (0, 0.4), (2, 0.8), (2, 0.8), (4, 1.0)]


def test_one_phase_has_the_whole_budget() -> None:
    phases, transitions = described((MASKED, "adam", 0.1, None))
    assert schedule_span(phases, transitions, 0) == (0, 1.0)


def _with_checkpoint(*names: str) -> Any:
    """Return a run whose newest checkpoint was saved after these phases had started."""
    checkpoint = SimpleNamespace(folder="last", state={"phases": [{"name": name} for name in names]})
    return SimpleNamespace(checkpoints=SimpleNamespace(recover_newest=lambda: (checkpoint, [])))


PHASES: list[Any] = [SimpleNamespace(name=name) for name in ("words", "masked", "rest")]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_run_resumes_in_the_phase_of_its_newest_checkpoint(place: int) -> None:
    names = [phase.name for phase in PHASES[: place + 1]]
    phase, state = find_phase(PHASES, _with_checkpoint(*names), start=None)
    assert phase is PHASES[place]
    assert [one["name"] for one in state.phases] == names


def test_a_run_begins_in_its_first_phase() -> None:
    empty: Any = SimpleNamespace(checkpoints=SimpleNamespace(recover_newest=lambda: (None, [])))
    counted: Any = SimpleNamespace(seconds=3.0)
    for run in (None, empty):
        phase, state = find_phase(PHASES, run, start=counted)
        assert phase is PHASES[0]
        assert (state.phases, state.seconds, state.prepared) == ([], 3.0, 3.0)


@pytest.mark.parametrize("names", [("masked",), ("words", "rest"), ("words", "masked", "rest", "more")])
def test_a_checkpoint_with_other_phases_is_refused(names: tuple[str, ...]) -> None:
    with refuses(CheckpointError, "last", ", ".join(names), "words, masked, rest"):
        find_phase(PHASES, _with_checkpoint(*names), start=None)

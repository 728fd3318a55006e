"""Continued pretraining: the encoder, the heads and a generator are those of the run, and words can be added."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.objectives import bert, electra, modern
from fakes.transfer_files import lmtransfer, result
from safetensors.torch import load_file
from support.refusals import refuses
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import AllTokensMaskedLanguageModel, ReplacedTokenDetection
from lmtransfer.pretraining.continued import InheritedHeads, inherit_heads
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.weights import weights

LINE = "the old boat lay on the shore and the small dog ran along it all day while rain fell"
WORDS = LINE.split()
MODEL = [
    "model=bert_laptop",
    "model.dim=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.hidden_dim=64",
    "model.max_length=32",
]
TEXT = ["corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.2", "objective.max_length=16"]
SHORT = ["hardware=exact", "train.seconds=null", "train.batch_tokens=256", "train.log_every=1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on documents that each repeat one word, so that the context determines a masked word."""
    folder = tmp_path_factory.mktemp("world")
    documents = [" ".join([word] * (60 + number)) for number in range(3) for word in dict.fromkeys(WORDS)]
    (folder / "text.txt").write_text("\n\n".join([LINE, *documents]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        small = ["tokenizer.vocab_size=64", "tokenizer.allow_fewer=true", "train.steps=120", "name=base"]
        adamw = ["optimizer=adamw", "optimizer.learning_rate=1e-2"]
        assert lmtransfer("pretrain", *MODEL, *TEXT, *SHORT, *small, *adamw, "objective=mlm") == 0
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "world" / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


def go_on(*words: str) -> int:
    recipe = ["experiment=adapt", *TEXT, *SHORT, "train.steps=2", "init=runs/pretrain/base"]
    return lmtransfer("pretrain", *recipe, "name=on", *words)


def losses(run: str) -> list[float]:
    return [json.loads(line)["loss/mlm"] for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def weights_of(run: str, checkpoint: str = "best") -> dict[str, torch.Tensor]:
    return load_file(Path(run) / "checkpoints" / checkpoint / "model.safetensors")


def config(run: str) -> dict[str, Any]:
    return yaml.safe_load((Path(run) / "config.yaml").read_text())


@pytest.mark.slow
def test_the_loss_goes_on_where_it_was(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = sum(losses("runs/pretrain/base")[-10:]) / 10
    unlearnt = math.log(load_tokenizer(Path("runs/pretrain/base/tokenizer")).num_pieces)
    assert end < 0.3 * unlearnt
    assert go_on() == 0
    said = capsys.readouterr().err
    assert str(InheritedHeads(("mlm",), (), ())) in said
    assert "experiment=adapt" not in said
    assert losses("runs/pretrain/on")[0] == pytest.approx(end, abs=0.25 * unlearnt)
    assert losses("runs/pretrain/on")[0] < 0.5 * unlearnt
    assert config("runs/pretrain/on")["init"] == str(world / "runs" / "pretrain" / "base")


def test_without_a_step_all_weights_are_those_of_the_run(world: Path) -> None:
    assert go_on("optimizer.learning_rate=1e-30", "optimizer.weight_decay=0.0") == 0
    before, after = weights_of("runs/pretrain/base"), weights_of("runs/pretrain/on")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_schedule_is_fresh_and_resuming_changes_nothing(world: Path) -> None:
    assert go_on("name=whole", "train.steps=4") == 0
    lines = Path("runs/pretrain/whole/metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines]
    assert max(rates) == pytest.approx(5e-5)
    assert rates[-1] < max(rates)
    assert go_on("name=whole", "train.steps=4", "resume=true") == 0  # the run is finished
    assert go_on("name=whole", "train.steps=4", "resume=true", "init=null") == 2


def test_a_recipe_for_random_weights_is_remarked_on(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("pretrain", *TEXT, *SHORT, "train.steps=1", "init=runs/pretrain/base", "name=on") == 0
    assert "experiment=adapt" in capsys.readouterr().err


def test_heads_that_are_new_are_said(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go_on("objective=mlm_nsp") == 0
    assert str(InheritedHeads(("mlm",), (), ("nsp",))) in capsys.readouterr().err
    before, after = weights_of("runs/pretrain/base"), weights_of("runs/pretrain/on", "last")
    assert set(after) - set(before) == {"objectives.nsp.classifier.weight", "objectives.nsp.classifier.bias"}


def test_the_heads_compute_as_they_did(world: Path) -> None:
    """Activation and epsilon are those of the run, whatever the objective's file says, unless the user sets them."""
    path = Path("runs/pretrain/base/config.yaml")
    changed = config("runs/pretrain/base")
    changed["objective"]["losses"]["mlm"] |= {"activation": "relu", "norm_eps": 1e-5, "weight": 3.0}
    path.write_text(yaml.safe_dump(changed))
    assert go_on("objective.losses.mlm.norm_eps=1e-6") == 0
    mlm = config("runs/pretrain/on")["objective"]["losses"]["mlm"]
    assert (mlm["activation"], mlm["norm_eps"], mlm["weight"]) == ("relu", 1e-6, 1.0)


@pytest.mark.slow
def test_the_model_and_the_tokenizer_are_the_runs(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, names in (
        (["model.dim=64"], ("model.dim=64", "init=", "bert 2x32 pre-norm")),
        (["model=bert_tiny"], ("model=bert_tiny", "init=", "bert 2x32 pre-norm")),
        (["tokenizer=bpe"], ("tokenizer=bpe", "init=")),
        (["tokenizer.vocab_size=128"], ("tokenizer.vocab_size=128", "init=")),
        (["objective.max_length=64"], ("objective.max_length=64",)),
        (["objective=backward_lm"], ("objective=backward_lm",)),
        (["init=runs/pretrain/none"], ("runs/pretrain/none",)),
    ):
        assert go_on(*words) == 2
        said = capsys.readouterr().err
        assert all(name in said for name in names), said
        assert not Path("runs/pretrain/on").exists()
    assert go_on("model.dropout=0.3") == 0
    assert config("runs/pretrain/on")["model"]["dropout"] == 0.3
    assert config("runs/pretrain/on")["model"]["dim"] == 32


def test_added_words_are_tokens_and_change_nothing_else(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.txt").write_text("zyxotide\nboatyard\n")
    still = ["optimizer.learning_rate=1e-30", "optimizer.weight_decay=0.0"]
    assert go_on("tokenizer.add=words.txt", *still) == 0
    assert str(InheritedHeads(("mlm",), (), ())) in capsys.readouterr().err
    base, resized = (load_tokenizer(Path(f"runs/pretrain/{name}/tokenizer")) for name in ("base", "on"))
    assert resized.num_pieces == base.num_pieces + 2
    assert len(resized.encode_ids(["zyxotide"])[0]) == 1 < len(base.encode_ids(["zyxotide"])[0])
    assert resized.encode_ids(["the old boat lay"])[0].tolist() == base.encode_ids(["the old boat lay"])[0].tolist()
    before, after = weights_of("runs/pretrain/base"), weights_of("runs/pretrain/on")
    num = base.num_pieces
    with_rows = {"encoder.embeddings.token.weight", "objectives.mlm.bias"}
    assert all(torch.equal(after[name][:num], before[name][:num]) for name in with_rows)
    assert all(torch.equal(before[name], after[name]) for name in before if name not in with_rows)
    pieces = base.encode_ids([" boatyard"])[0].tolist()
    for name in with_rows:
        torch.testing.assert_close(after[name][num + 1], before[name][pieces].mean(0))
    encoder, tokenizer, _ = load_encoder("runs/pretrain/on")
    assert encoder.vocab_size == tokenizer.vocab_size
    assert config("runs/pretrain/on")["tokenizer"]["add"] == str(world / "words.txt")
    for name in ("base", "on"):
        assert lmtransfer("evaluate", f"run=runs/pretrain/{name}", "hardware=exact", f"name={name}") == 0
    assert math.isfinite(result("runs/evaluate/on")["metrics"]["mlm"])


def test_words_that_changed_are_refused_on_resume(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.txt").write_text("zyxotide\n")
    words = ["tokenizer.add=words.txt", "train.save_every=1"]
    assert go_on(*words) == 0
    Path("runs/pretrain/on/result.json").unlink()
    Path("words.txt").write_text("boatyard\n")
    assert go_on(*words, "resume=true") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/pretrain/on", "tokenizer.add", "name=")), said


def test_words_can_be_added_to_a_new_vocabulary(world: Path) -> None:
    Path("words.txt").write_text("zyxotide\n")
    small = ["tokenizer.vocab_size=64", "tokenizer.allow_fewer=true", "train.steps=1", "name=new"]
    assert lmtransfer("pretrain", *MODEL, *TEXT, *SHORT, *small, "tokenizer.add=words.txt") == 0
    encoder, tokenizer, _ = load_encoder("runs/pretrain/new")
    assert encoder.vocab_size == tokenizer.vocab_size
    assert len(tokenizer.encode_ids(["zyxotide"])[0]) == 1
    assert lmtransfer("evaluate", "run=runs/pretrain/new", "hardware=exact") == 0
    assert lmtransfer("pretrain", *TEXT, *SHORT, "name=x", "tokenizer.add=none.txt") == 2


def test_an_evaluation_on_other_text(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = [WORDS[start::-1] + WORDS[:start:-1] for start in range(len(WORDS))]
    Path("other.txt").write_text("\n\n".join(" ".join(times * order) for times in (3, 4) for order in orders) + "\n")
    evaluate = ["evaluate", "run=runs/pretrain/base", "hardware=exact"]
    assert lmtransfer(*evaluate) == 0
    other = ["corpus=text", "corpus.path=other.txt", "corpus.name=other", "corpus.validation_fraction=0.5"]
    assert lmtransfer(*evaluate, *other) == 0
    known, unknown = result("runs/evaluate/pretrain-base"), result("runs/evaluate/pretrain-base-other")
    assert unknown["metrics"]["mlm"] > known["metrics"]["mlm"] + 1
    saved = config("runs/evaluate/pretrain-base-other")
    assert saved["corpus"]["path"] == [str(world / "other.txt")]


def test_an_evaluation_without_held_out_text_says_so(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate = ["evaluate", "run=runs/pretrain/base", "hardware=exact", "overwrite=true"]
    for name in ("one", "two"):
        Path(f"{name}.txt").write_text(" ".join(WORDS) + "\n")  # a single sentence: nothing can be held out
    for corpus in (
        ["corpus=mixture", "corpus.parts=[one.txt,two.txt]"],
        ["corpus=text", "corpus.path=one.txt", "corpus.validation_fraction=0"],
    ):
        assert lmtransfer(*evaluate, *corpus) == 2
        said = capsys.readouterr().err
        assert "run=runs/pretrain/base: the held-out text yields no rows" in said
        assert "corpus.validation_fraction" in said
        assert "bug" not in said


ENCODERS: dict[str, Callable[..., Any]] = {"electra": electra, "modern": modern}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "rtd": ReplacedTokenDetection,
    "all_tokens_mlm": AllTokensMaskedLanguageModel,
}
COPY = {"generator_size": 1.0, "generator_start": "encoder"}


def masked_learner(name: str) -> PretrainingLearner:
    """Return a masked language model with perturbed weights."""
    learner = PretrainingLearner(ENCODERS[name](num_heads=1), [MaskedLanguageModel()])
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return learner


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", ENCODERS)
def test_it_computes_what_the_encoder_and_its_head_did(name: str, kind: str, sharing: str) -> None:
    before = masked_learner(name)
    packed = pack([np.array([1, 7, 30, 5, 2]), np.array([1, 80, 2])])
    states_TD = before.encoder(packed).last
    logits_TV = before.objective_list()[0].token_logits(states_TD)
    heads = {key.removeprefix("objectives."): tensor for key, tensor in weights(before).items()}

    learner = PretrainingLearner(before.encoder, [OBJECTIVES[kind](embedding_sharing=sharing, **COPY)])
    assert inherit_heads(learner, heads).partly_loaded == (kind,)
    generator = learner.objective_list()[0].generator
    generator_TD = generator(packed).last
    torch.testing.assert_close(generator_TD, states_TD, rtol=0, atol=0)
    torch.testing.assert_close(learner.encoder(packed).last, states_TD, rtol=0, atol=0)
    head = learner.objective_list()[0].inner()["generator"]
    torch.testing.assert_close(head.token_logits(generator_TD), logits_TV, rtol=0, atol=0)

    with torch.no_grad():  # separate from then on
        for parameter in generator.stack.parameters():
            parameter.zero_()
    torch.testing.assert_close(learner.encoder(packed).last, states_TD, rtol=0, atol=0)


def test_a_head_of_its_own_goes_before_one_of_masked_tokens() -> None:
    other = PretrainingLearner(electra(num_heads=1), [ReplacedTokenDetection(**COPY)])
    with torch.no_grad():
        other.objective_list()[0].generator_head.bias.fill_(3.0)
    heads = {key.removeprefix("objectives."): tensor for key, tensor in weights(other).items()}
    heads["mlm.bias"] = torch.full((96,), 5.0)
    learner = PretrainingLearner(electra(num_heads=1), [ReplacedTokenDetection(**COPY)])
    inherit_heads(learner, heads)
    assert set(learner.objective_list()[0].generator_head.bias.tolist()) == {3.0}


def test_by_itself_it_takes_no_other_head() -> None:
    learner = PretrainingLearner(electra(), [ReplacedTokenDetection()])
    assert inherit_heads(learner, {"mlm.bias": torch.full((96,), 5.0)}).random == ("rtd",)
    assert set(learner.objective_list()[0].generator_head.bias.tolist()) == {0.0}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_what_is_refused(kind: str) -> None:
    make, key = OBJECTIVES[kind], f"objective.losses.{kind}"
    other_ways = (f"{key}.generator_size=1.0", "generator_start=random")
    with refuses(ConfigError, f"{key}.generator_start=encoder", "0.5", *other_ways):
        make(generator_size=0.5, generator_start="encoder")
    with refuses(ConfigError, "generator_start=encoder", "num_heads=1", " 2", "generator_start=random"):
        PretrainingLearner(electra(), [make(**COPY)])
    with refuses(ConfigError, f"objective={kind}", "BertEncoder", "model=electra_laptop"):
        PretrainingLearner(bert(), [make(**COPY)])

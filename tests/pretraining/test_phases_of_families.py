"""Word vectors before the recipe of each family, and ELECTRA after a masked language model: what each phase leaves."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import lmtransfer, make_world, sentence
from safetensors.torch import load_file

from lmtransfer.config.paths import conf_dir
from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.pretraining.phases import Pretraining, Training
from lmtransfer.training import loop

QUICK = [
    *("pretrain", "train.seconds=null", "corpus=text", "corpus.path=data/text.txt", "corpus.validation_fraction=0.2"),
    *(
        "tokenizer.vocab_size=60",
        "train.batch_tokens=64",
        "hardware=exact",
        "train.log_every=1",
        "train.eval_tokens=64",
    ),
    *("model.dim=16", "model.num_layers=1", "model.max_length=32", "objective.max_length=16"),
]
SMALL = [*QUICK, "model.num_heads=1", "model.hidden_dim=16"]
ELECTRA = [
    *(*SMALL, "experiment=electra_laptop", "objective=rtd", "objective.losses.rtd.generator_size=0.5"),
    *("model.embedding_dim=8", "tokenizer.allow_fewer=true", "train.steps=8"),
]
WORDS_FIRST = [*ELECTRA, "phases=words_then_masked"]
GENERATOR_FIRST = [*ELECTRA, "phases=generator_first"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    make_world(folder)
    rng = random.Random(0)
    documents = ["\n".join(sentence(k % 2, rng).capitalize() + "." for _ in range(6)) for k in range(60)]
    (folder / "data/text.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def saved(run: str, file: str = "model") -> dict[str, torch.Tensor]:
    return load_file(Path("runs/pretrain") / run / "checkpoints/last" / f"{file}.safetensors")


def records(run: str) -> list[dict[str, Any]]:
    lines = (Path("runs/pretrain") / run / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The weights of the learner where each phase begins."""
    states: list[dict[str, torch.Tensor]] = []
    enter = Pretraining.build_trainer

    def noted(self: Pretraining, training: Training, *more: Any) -> Any:
        states.append({name: tensor.detach().clone() for name, tensor in training.learner.state_dict().items()})
        return enter(self, training, *more)

    monkeypatch.setattr(Pretraining, "build_trainer", noted)
    return states


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C in a step does."""
    taken = loop.Trainer._step

    def counted(self: loop.Trainer, steps: Any) -> str | None:
        monkeypatch.setattr(loop, "requested_stop", lambda: "Ctrl-C" if self.state.step == step else None)
        return taken(self, steps)

    monkeypatch.setattr(loop.Trainer, "_step", counted)


#: What each recipe's tiny model needs beside the common settings.
OWN = {
    "albert": ["model.embedding_dim=8", "model.num_heads=1", "model.hidden_dim=16"],
    "electra": ["model.embedding_dim=8", "model.num_heads=1", "model.hidden_dim=16"],
    "elmo_subword": ["model.cell_dim=16"],
    "roberta": ["tokenizer.vocab_size=300", "model.num_heads=1", "model.hidden_dim=16"],
    **dict.fromkeys(
        ("bi_gpt", "gpt", "modern", "transformer_xl", "xlnet"), ["model.num_heads=1", "model.hidden_dim=16"]
    ),
}


@pytest.mark.parametrize("family", OWN)
def test_the_recipe_of_each_family_follows_word_vectors(family: str, entered: list[dict[str, torch.Tensor]]) -> None:
    words = [f"experiment={family}_laptop", "phases=words_then_masked", "tokenizer.allow_fewer=true", "train.steps=4"]
    more = ["phases.words.share=0.5", "name=run"]
    assert lmtransfer(*QUICK, *words, *OWN[family], *more) == 0
    random_ones, vectors = entered
    table = next(name for name in random_ones if name.startswith("encoder.whole.") and "token" in name)
    trained = table.replace("whole.", "")
    after = vectors[trained].double()
    assert after.shape == random_ones[table].shape
    assert after.mean(0).abs().max() < 1e-8
    assert float(after.std(correction=0)) == pytest.approx(0.02, rel=1e-5)
    # Nothing else was learned, and the recipe trains the table on.
    for name, tensor in vectors.items():
        before = random_ones.get(name.replace("encoder.", "encoder.whole.", 1))
        if before is not None and before.shape != after.shape:
            assert torch.equal(before, tensor), name
    assert not torch.equal(saved("run")[trained].double(), after)


def test_every_laptop_recipe_is_tried() -> None:
    recipes = {path.stem.removesuffix("_laptop") for path in (conf_dir() / "experiment").glob("*_laptop.yaml")}
    assert recipes == {*OWN, "elmo", "word_embeddings"}  # of characters; nothing but a table


def test_where_words_are_read_as_characters_there_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("pretrain", "experiment=elmo_laptop", "phases=words_then_masked", "name=run") == 2
    said = capsys.readouterr().err.strip()
    assert all(name in said for name in ("phases.words: ", "ElmoEncoder", "characters")), said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
def test_the_generator_has_the_vectors_too(sharing: str, entered: list[dict[str, torch.Tensor]]) -> None:
    set_sharing = f"objective.losses.rtd.embedding_sharing={sharing}"
    assert lmtransfer(*WORDS_FIRST, set_sharing, "name=run") == 0
    vectors = entered[1]["encoder.embeddings.token.weight"]
    assert float(vectors.double().std(correction=0)) == pytest.approx(0.02, rel=1e-5)
    own = entered[1].get("objectives.rtd.generator.embeddings.token.weight")
    assert (own is None) == (sharing == "tied")
    if own is not None:
        assert torch.equal(own, vectors)


def test_discriminator_and_generator_go_on_from_the_masked_language_model(
    entered: list[dict[str, torch.Tensor]],
) -> None:
    assert lmtransfer(*GENERATOR_FIRST, "name=run") == 0
    begun, switched = entered
    layers = [name.removeprefix("encoder.") for name in switched if name.startswith("encoder.stack.")]
    assert len(layers) > 8
    for name in [*layers, "project.weight", "project.bias"]:
        assert torch.equal(switched[f"objectives.rtd.generator.{name}"], switched[f"encoder.{name}"]), name
    assert not torch.equal(begun["encoder.project.weight"], switched["encoder.project.weight"])
    head = switched["objectives.rtd.generator_head.dense.weight"]
    assert not torch.equal(begun["objectives.mlm.dense.weight"], head)
    assert [record["phase"] for record in records("run")] == ["masked"] * 4 + ["replaced"] * 4
    assert not torch.equal(
        *(saved("run")[f"{part}.project.weight"] for part in ("encoder", "objectives.rtd.generator"))
    )


@pytest.mark.parametrize("step", [3, 4, 6])  # in the first phase, at its end, in the second
@pytest.mark.parametrize("words", [GENERATOR_FIRST, WORDS_FIRST], ids=["generator_first", "words_then_masked"])
def test_gone_on_with_it_is_the_same_to_the_last_bit(words: list[str], step: int) -> None:
    assert lmtransfer(*words, "name=whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(step, patch)
        assert lmtransfer(*words, "name=cut") != 0
    assert lmtransfer(*words, "name=cut", "resume=true") == 0
    for file in ("model", "optimizer"):
        whole, cut = saved("whole", file), saved("cut", file)
        assert whole.keys() == cut.keys()
        assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert records("whole") == records("cut")


def test_a_smaller_generator_cannot_begin_as_the_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*GENERATOR_FIRST, "phases.replaced.objective.losses.rtd.generator_size=0.5", "name=run") == 2
    said = capsys.readouterr().err.strip()
    for name in ("rtd.generator_start=encoder", " 0.5 ", "rtd.generator_size=1.0", "generator_start=random"):
        assert name in said
    assert len(said.splitlines()) == 1


def test_it_may_begin_as_another_run_ended(capsys: pytest.CaptureFixture[str]) -> None:
    masked = [word for word in ELECTRA if not word.startswith(("experiment", "objective=", "objective.losses"))]
    assert lmtransfer(*masked, "experiment=null", "model=electra_laptop", "objective=mlm", "name=first") == 0
    words = [word for word in ELECTRA if not word.startswith(("model", "tokenizer", "train.steps", "objective.losses"))]
    set_start = [f"objective.losses.rtd.generator_{word}" for word in ("size=1.0", "start=encoder")]
    still = ["optimizer=adamw", "optimizer.learning_rate=1e-30", "optimizer.weight_decay=0", "train.steps=1"]
    capsys.readouterr()
    assert lmtransfer(*words, *set_start, *still, "init=runs/pretrain/first", "name=second") == 0
    assert str(InheritedHeads((), ("rtd",), ())) in capsys.readouterr().err
    first, second = saved("first"), saved("second")
    torch.testing.assert_close(second["objectives.rtd.generator.project.weight"], second["encoder.project.weight"])
    head = "dense.weight"
    torch.testing.assert_close(second[f"objectives.rtd.generator_head.{head}"], first[f"objectives.mlm.{head}"])

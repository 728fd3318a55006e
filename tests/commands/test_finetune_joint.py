"""``transfer=joint`` from the command line, from pretrained and from random weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import TASK, check_refused, lmtransfer, make_world, result, sentence
from safetensors.torch import load_file

from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import Interrupted
from lmtransfer.objectives.bag_of_words import BagOfWords
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.continued import InheritedHeads
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.transfer.joint import JointText

MODEL = [
    "model=bert_tiny",
    "model.dropout=0",
    "model.dim=16",
    "model.num_heads=2",
    "model.hidden_dim=32",
    "model.max_length=32",
]
PRETRAIN = [
    *("pretrain", *MODEL, "hardware=exact", "corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.2"),
    *("objective.max_length=16", "train.seconds=null", "train.steps=20", "train.batch_tokens=64"),
]
TOKENIZER = ["tokenizer.vocab_size=60", "tokenizer.allow_fewer=true"]
QUICK = [*TASK, "hardware=exact", "baseline=null", "train.epochs=2", "optimizer.learning_rate=0.01"]
FROM_BASE = [*QUICK, "init=runs/pretrain/text"]
JOINT = ["finetune", *FROM_BASE, "transfer=joint", "transfer.text_tokens=64"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joint_world")
    make_world(folder)
    rng = random.Random(7)
    (folder / "text.txt").write_text("\n\n".join(sentence(i % 2, rng) for i in range(200)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        assert lmtransfer(*PRETRAIN, *TOKENIZER, "name=text") == 0
    return folder


def _lines(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path("runs/finetune") / run / "metrics.jsonl").read_text().splitlines()]


def _model(run: str, checkpoint: str = "best") -> dict[str, torch.Tensor]:
    return load_file(Path("runs/finetune") / run / "checkpoints" / checkpoint / "model.safetensors")


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_the_final_model_is_the_joint_run_on_one_file_with_all_labels(world: Path) -> None:
    assert lmtransfer(*JOINT, "final=true", "name=own") == 0
    steps = result("runs/finetune/own")["chosen_step"]
    rows = [Path(f"data/{split}.tsv").read_text().splitlines() for split in ("train", "dev")]
    Path("data/all.tsv").write_text("\n".join([*rows[0], *rows[1][1:]]) + "\n")
    words = [word for word in JOINT if not word.startswith("train.epochs")]
    words += ["task.train=data/all.tsv", f"train.steps={steps}", "checkpoint=last", "name=hand"]
    assert lmtransfer(*words) == 0
    assert _same(_model("own/final", "last"), _model("hand", "last"))
    assert result("runs/finetune/own/final")["losses"] == result("runs/finetune/hand")["losses"]


@pytest.mark.slow
def test_both_losses_are_in_log_and_result(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*JOINT, "transfer.text_weight=0.5", "train.log_every=1", "control=true", "name=j") == 0
    said = " ".join(capsys.readouterr().out.split())
    for name in ("text, mlm, 64 tokens", "weight 0.5", "80 %", str(InheritedHeads(("mlm",), (), ())), "same text"):
        assert name in said
    for run in ("j", "j/control"):
        lines = _lines(run)
        together = [line for line in lines if "loss/mlm" in line]
        alone = [line for line in lines if "loss/mlm" not in line]
        assert [line["step"] for line in together] == [1, 2, 3, 4, 5, 6, 7]  # without text from 7/8 of the budget on
        assert [line["step"] for line in alone] == [8]
        for line in together:
            assert line["loss"] == pytest.approx(line["loss/classification"] + 0.5 * line["loss/mlm"])
        assert result(f"runs/finetune/{run}")["losses"] == {
            "classification": alone[-1]["loss/classification"],
            "mlm": together[-1]["loss/mlm"],
            "mlm_accuracy": together[-1]["loss/mlm_accuracy"],
        }


@pytest.mark.slow
def test_the_run_is_used_as_any_other(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*JOINT, "seeds=2", "control=true", "name=j") == 0
    assert result("runs/finetune/j")["control"]["n"] == 2
    checkpoint = Path("runs/finetune/j/seed-0/checkpoints/best")
    assert sorted(path.name for path in checkpoint.iterdir()) == ["manifest.json", "model.safetensors", "state.json"]
    assert {name.split(".")[0] for name in _model("j/seed-0")} == {"encoder", "head"}
    assert lmtransfer("evaluate", "run=runs/finetune/j", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(result("runs/finetune/j")["metrics"], abs=1e-6)
    one = "run=runs/finetune/j/seed-0"
    assert lmtransfer("predict", one, "text=a good film", "hardware=exact", "output=o.jsonl") == 0
    assert json.loads(Path("o.jsonl").read_text())["label"] in ("negative", "positive")
    assert lmtransfer("export", one, "to=out") == 0
    assert "on labels and on text" in Path("out/README.md").read_text()
    assert lmtransfer("finetune", *QUICK, "init=runs/finetune/j/seed-0", "name=on") == 0
    capsys.readouterr()
    assert lmtransfer("report", "runs") == 0
    page = Path("runs/report/report.md").read_text()
    assert any(" j " in line and "joint" in line for line in page.splitlines())


@pytest.mark.slow
def test_text_without_weight_changes_nothing_to_the_last_bit(world: Path) -> None:
    """Order, dropout and learning rates of the labeled examples are the same as without text."""
    words = ["transfer.dropout=0.3", "transfer.layer_decay=0.7"]
    assert lmtransfer("finetune", *FROM_BASE, "transfer=full", *words, "name=plain") == 0
    assert lmtransfer(*JOINT, *words, "transfer.text_weight=0", "name=weightless") == 0
    assert lmtransfer(*JOINT, *words, "transfer.text_weight=0.1", "name=light") == 0
    assert _same(_model("plain"), _model("weightless"))
    assert not _same(_model("plain"), _model("light"))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_one_other_text(world: Path) -> None:
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        assert lmtransfer(*JOINT, f"seed={seed}", f"name={name}", "train.log_every=1") == 0
    assert _same(_model("one"), _model("again"))
    losses = {name: [line.get("loss/mlm") for line in _lines(name)] for name in ("one", "again", "other")}
    assert losses["one"] == losses["again"]
    assert losses["one"][0] != losses["other"][0]


@pytest.mark.parametrize("saved", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_to_the_same_bits(world: Path, monkeypatch: pytest.MonkeyPatch, saved: int) -> None:
    """The run is interrupted while it reads text, and later; the interrupted run can be evaluated."""
    words = ["train.save_every=1", "train.log_every=1", "transfer.text_until=0.7", "checkpoint=last"]
    assert lmtransfer(*JOINT, *words, "name=whole") == 0
    save = Checkpoints.save

    def and_stop(self: Checkpoints, name: str, **content: Any) -> Path:
        path = save(self, name, **content)
        if content["state"]["step"] == saved and name == "last":
            raise Interrupted("stopped")
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", and_stop)
        assert lmtransfer(*JOINT, *words, "name=torn") != 0
    folder = Path("runs/finetune/torn/checkpoints/last")
    assert (folder / "objectives.safetensors").is_file()
    assert lmtransfer("evaluate", "run=runs/finetune/torn", "split=dev", "hardware=exact", "name=e") == 0
    assert lmtransfer(*JOINT, *words, "name=torn", "resume=true") == 0
    assert _same(_model("whole", "last"), _model("torn", "last"))
    assert [line["loss"] for line in _lines("whole")] == [line["loss"] for line in _lines("torn")]
    assert result("runs/finetune/torn")["losses"] == result("runs/finetune/whole")["losses"]


@pytest.mark.slow
def test_micro_batches_change_nothing(world: Path) -> None:
    words = ["transfer.dropout=0", "checkpoint=last", "train.log_every=1"]
    for name, more in (("whole", []), ("cut", ["train.micro_batch_tokens=40"])):
        assert lmtransfer(*JOINT, *words, *more, f"name={name}") == 0
    whole, cut = ([line["loss"] for line in _lines(name)] for name in ("whole", "cut"))
    assert whole == pytest.approx(cut, rel=1e-3)
    assert whole[0] == pytest.approx(cut[0], rel=1e-6)
    assert result("runs/finetune/whole")["tokens"] == result("runs/finetune/cut")["tokens"]


def test_a_control_has_random_heads_and_the_same_text(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    heads: list[torch.Tensor] = []
    build, make = PretrainingSource.build, JointText.learner

    def keep_keys(self: PretrainingSource, *arguments: Any, **named: Any) -> Any:
        batch = build(self, *arguments, **named)
        seen.append(batch.keys)
        return batch

    def keep_heads(self: JointText, *arguments: Any, **named: Any) -> Any:
        learner, taken = make(self, *arguments, **named)
        heads.append(learner.objectives["mlm"].dense.weight.detach().clone())
        return learner, taken

    monkeypatch.setattr(PretrainingSource, "build", keep_keys)
    monkeypatch.setattr(JointText, "learner", keep_heads)
    assert lmtransfer(*JOINT, "control=true", "name=j") == 0
    own = load_file("runs/pretrain/text/checkpoints/best/model.safetensors")["objectives.mlm.dense.weight"]
    _, pretrained, control = heads  # the first are built to check the settings
    assert torch.equal(pretrained, own)
    assert not torch.equal(control, own)
    assert len(seen) == 14
    assert seen[:7] == seen[7:]


@pytest.mark.slow
def test_the_text_is_of_the_training_part_of_the_corpus_alone(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has no sentence from any split of the task, and no document held out for validation."""
    words = [f"word{number}" for number in range(60)]
    Path("text.txt").write_text("\n\n".join(f"{word} {word} {word}" for word in words) + "\n")
    read: dict[Path, set[int]] = {}
    build = PretrainingSource.build

    def keep_tokens(self: PretrainingSource, *arguments: Any, **named: Any) -> Any:
        batch = build(self, *arguments, **named)
        tokens = batch.original.tokens_T[: batch.num_tokens].tolist()
        read.setdefault(self.store.folder, set()).update(tokens)
        return batch

    monkeypatch.setattr(PretrainingSource, "build", keep_tokens)
    assert lmtransfer(*PRETRAIN, "tokenizer=words", "tokenizer.vocab_size=100", "train.steps=40", "name=w") == 0
    held_out, trained = sorted(read.values(), key=len)
    assert len(held_out - trained) == 1  # its words are unknown ([UNK]), like those of the task
    assert len(trained) > 30
    read.clear()
    more = ["init=runs/pretrain/w", "transfer=joint", "transfer.text_tokens=400", "transfer.text_until=1"]
    assert lmtransfer("finetune", *QUICK, *more, "name=j") == 0
    (found,) = read.values()
    assert found == trained


def test_from_random_weights_and_on_other_text(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tokenizer_from=runs/pretrain/text", *MODEL, "transfer=joint", "transfer.text_tokens=64"]
    assert lmtransfer("finetune", *QUICK, *words, "name=scratch") == 0
    assert str(InheritedHeads((), (), ("mlm",))) in " ".join(capsys.readouterr().out.split())
    assert "mlm" in result("runs/finetune/scratch")["losses"]
    Path("other.txt").write_text("\n\n".join(["a dull story with a superb actor"] * 30) + "\n")
    assert lmtransfer(*JOINT, "corpus=text", "corpus.path=other.txt", "corpus.name=other", "name=other") == 0
    assert " other, mlm, 64 tokens" in " ".join(capsys.readouterr().out.split())
    assert str(world / "other.txt") in Path("runs/finetune/other/config.yaml").read_text()


def test_a_run_without_objective_is_given_one(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", *QUICK, "init=runs/pretrain/base", "transfer=joint", "name=given"]
    check_refused(capsys, [*words], "transfer=joint", "objective=mlm", "corpus=text", "corpus.path=", "transfer=full")
    text = ["corpus=text", "corpus.path=text.txt", "objective=mlm", "objective.max_length=16"]
    assert lmtransfer(*words, *text) == 0
    assert " text, mlm, " in " ".join(capsys.readouterr().out.split())
    assert "mlm" in result("runs/finetune/given")["losses"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["transfer=full", "corpus=text", "corpus.path=text.txt"], ("corpus=", "transfer=joint")),
        (["transfer=joint", "transfer.text_tokens=15"], ("transfer.text_tokens=15", "objective.max_length=")),
        (["transfer=joint", "transfer.text_weight=-1"], ("transfer.text_weight", "-1")),
    ],
)
def test_mistakes(world: Path, words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, ["finetune", *FROM_BASE, *words, "name=x"], *names)
    assert not Path("runs/finetune/x").exists()


def test_static_word_vectors_are_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tokenizer_from=runs/pretrain/text", "model=word_embeddings_laptop", "model.dim=16", "objective=skipgram"]
    check_refused(
        capsys,
        ["finetune", *QUICK, *words, "transfer=joint", "transfer.pooling=mean", "name=x"],
        "transfer=joint",
        "WordEmbeddings",
        "transfer=full",
    )


def test_text_and_task_read_the_encoder_in_one_attention(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(
        capsys,
        [*JOINT, "objective=lm", "objective.max_length=16", "name=no"],
        "transfer=joint",
        "causal",
        "bidirectional",
        "transfer.attention=causal",
    )
    assert lmtransfer(*JOINT, "objective=lm", "objective.max_length=16", "transfer.attention=causal", "name=yes") == 0
    assert {"classification", "lm"} <= result("runs/finetune/yes")["losses"].keys()


def test_the_arms_weigh_the_words_of_rows_alike(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run and control use the weights from the text that is read, whatever the inherited heads contain."""
    seen = []
    observe = BagOfWords.observe

    def noted(self: BagOfWords, store: TokenStore) -> None:
        observe(self, store)
        seen.append(self.get_buffer("information").clone())

    monkeypatch.setattr(BagOfWords, "observe", noted)
    words = ["objective=mlm_bow", "objective.max_length=16", "control=true", "name=bow"]
    assert lmtransfer(*JOINT, *words) == 0
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert len(seen[0].unique()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("of_init", [False, True])
def test_a_mixture_is_read_as_in_pretraining(of_init: bool, world: Path) -> None:
    text = Path("text.txt").read_text()
    for name, part in (("one.txt", text[: len(text) // 2]), ("two.txt", text[len(text) // 2 :])):
        Path(name).write_text(part)
    mixture = ["corpus=mixture", "corpus.parts=[one.txt,two.txt]"]
    words = [*JOINT, *mixture]
    if of_init:
        pretrain = [word for word in PRETRAIN if not word.startswith("corpus")]
        assert lmtransfer(*pretrain, *mixture, *TOKENIZER, "name=mixed") == 0
        words = [word.replace("pretrain/text", "pretrain/mixed") for word in JOINT]
    assert lmtransfer(*words, "name=m") == 0
    assert result("runs/finetune/m")["losses"]["mlm"] > 0
    assert lmtransfer(*words, "name=m", "resume=true") == 0

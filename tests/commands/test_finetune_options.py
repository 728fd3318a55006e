"""The settings of head inputs and learning rates, through every command that takes the run."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import QUICK, lmtransfer, make_world, result
from safetensors.torch import load_file
from support.saved_encoder import load_encoder
from torch import Tensor

from lmtransfer.data.batch import pack
from lmtransfer.training.checkpoints import Checkpoints

BOTH_LAYERS = ["transfer.layers=[0,last]", "transfer.pooling=mean", "transfer.standardise=true"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


def _weights(run: str, checkpoint: str = "last") -> dict[str, Tensor]:
    return load_file(Path(run) / "checkpoints" / checkpoint / "model.safetensors")


def _losses(run: str) -> list[float]:
    return [json.loads(line)["loss"] for line in (Path(run) / "metrics.jsonl").open()]


def _vectors_of_train() -> Tensor:
    """Return, for each training sentence, the mean over its tokens of the embedding layer and of the last layer."""
    encoder, tokenizer, _ = load_encoder("runs/pretrain/base")
    vectors = []
    for line in Path("data/train.tsv").read_text().splitlines()[1:]:
        ids = [tokenizer.cls_id, *map(int, tokenizer.encode(line.partition("\t")[0]).ids), tokenizer.sep_id]
        rows = torch.tensor([ids, [0] * len(ids)], dtype=torch.int32).numpy()
        packed = pack([rows[0]], [rows[1]], capacity=len(ids), max_length=24)
        with torch.no_grad():
            layers = encoder.eval()(packed).layers
        vectors.append(torch.cat([layers[0].mean(0), layers[-1].mean(0)]))
    return torch.stack(vectors).double()


def test_finetuning_begins_on_the_scale_of_the_training_part_and_each_arm_on_its_own(world: Path) -> None:
    words = [*BOTH_LAYERS, "checkpoint=last", "name=ft", "control=true"]
    assert lmtransfer("finetune", *QUICK, *words) == 0
    saved, control = _weights("runs/finetune/ft"), _weights("runs/finetune/ft/control")
    values = _vectors_of_train()
    mean, deviation = saved["standardising.mean"].double(), saved["standardising.deviation"].double()
    torch.testing.assert_close(mean, values.mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(deviation, values.std(0, correction=0), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(control["standardising.deviation"].double(), deviation, rtol=1e-2)
    assert saved["head.output.weight"].shape == (2, 32)
    assert lmtransfer("evaluate", "run=runs/finetune/ft", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == result("runs/finetune/ft")["metrics"]


@pytest.mark.slow
def test_a_torn_run_goes_on_to_the_same_weights_and_statistics(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["finetune", *QUICK, *BOTH_LAYERS, "transfer.embedding_rate=0", "transfer.head_rate=3", "seeds=2"]
    words += ["train.save_every=1", "train.min_steps=9", "train.log_every=1"]
    assert lmtransfer(*words, "name=whole") == 0
    saves, save = 0, Checkpoints.save

    def save_and_die(self: Checkpoints, name: str, **content: Any) -> Path:
        nonlocal saves
        saves += 1
        path = save(self, name, **content)
        if saves == 4:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_die)
        assert lmtransfer(*words, "name=torn") != 0
    assert lmtransfer(*words, "name=torn", "resume=true") == 0
    for seed in range(2):
        whole, torn = (_weights(f"runs/finetune/{name}/seed-{seed}") for name in ("whole", "torn"))
        assert whole.keys() == torn.keys()
        assert all(torch.equal(tensor, torn[name]) for name, tensor in whole.items())
    assert _losses("runs/finetune/torn/seed-0") == _losses("runs/finetune/whole/seed-0")


def test_frozen_embeddings_are_those_of_the_run_that_was_started_from(world: Path) -> None:
    words = ["transfer.embedding_rate=0", "checkpoint=last", "name=ft", "control=true", "learning_rates=[0.01,0.02]"]
    assert lmtransfer("finetune", *QUICK, *words) == 0
    base, found = _weights("runs/pretrain/base"), _weights("runs/finetune/ft")
    same = {name for name, tensor in base.items() if name in found and torch.equal(tensor, found[name])}
    assert same == {name for name in base if name.startswith("encoder.embeddings.")}
    control = _weights("runs/finetune/ft/control")["encoder.embeddings.token.weight"]
    assert not torch.allclose(control, base["encoder.embeddings.token.weight"])


def test_an_export_folds_the_scale_into_the_head(world: Path) -> None:
    assert lmtransfer("finetune", *QUICK, *BOTH_LAYERS, "name=both", "train.epochs=1") == 0
    assert lmtransfer("export", "run=runs/finetune/both", "format=tensors", "to=tensors") == 0  # read back, compared
    written, saved = load_file("tensors/model.safetensors"), _weights("runs/finetune/both", "best")
    assert {name for name in saved if name not in written} == {"standardising.mean", "standardising.deviation"}
    by_hand = saved["head.output.weight"] / saved["standardising.deviation"]
    torch.testing.assert_close(written["head.output.weight"], by_hand, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_transformers_has_the_folded_head_and_no_two_layers(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert lmtransfer("finetune", *QUICK, "transfer.standardise=true", "name=family", "train.epochs=1") == 0
    assert lmtransfer("export", "run=runs/finetune/family", "to=published") == 0  # verified against transformers
    assert lmtransfer("finetune", *QUICK, *BOTH_LAYERS, "name=both", "train.epochs=1") == 0
    capsys.readouterr()
    assert lmtransfer("export", "run=runs/finetune/both", "format=transformers", "to=other") == 2
    said = capsys.readouterr().err
    for name in ("runs/finetune/both", "transfer.layers=[0,last]", "transfer.layers=last"):
        assert name in said
    assert not Path("other").exists()


@pytest.mark.slow
def test_few_labels_are_read_more_often_in_both_arms(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 20 examples, 16 are trained on in batches of 8: two steps per epoch."""
    words = ["task.num_train=20", "task.dev_from_train=0.2", "train.batch_examples=8", "train.epochs=3"]
    assert lmtransfer("finetune", *QUICK, *words, "train.min_steps=24", "name=more", "control=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert len(re.findall(r"\b24 steps\D+12\.0 epochs\D+train\.min_steps", said)) == 2
    for run in ("runs/finetune/more", "runs/finetune/more/control"):
        assert (result(run)["steps"], result(run)["epochs"]) == (24, 12)
        evaluated = [json.loads(line) for line in (Path(run) / "metrics.jsonl").open() if "validation/" in line]
        assert [line["step"] for line in evaluated] == [8, 16, 24]  # the same number as without text
    assert lmtransfer("finetune", *QUICK, *words, "train.min_steps=6", "name=enough") == 0
    assert result("runs/finetune/enough")["steps"] == 6
    assert "train.min_steps" not in capsys.readouterr().out.partition("what stands out")[0]
    assert lmtransfer("finetune", *QUICK, *words, "name=plain") == 0
    assert _losses("runs/finetune/plain") == _losses("runs/finetune/enough")
    assert lmtransfer("probe", *QUICK, *words, "train.min_steps=30", "transfer.fit=trainer", "name=p") == 0
    assert result("runs/probe/p")["steps"] == 30


def test_steps_at_least_need_a_budget_in_epochs(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK[:-2], "train.steps=3", "train.min_steps=9", "name=x") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("train.min_steps=9", "train.steps=3")), said
    assert lmtransfer("finetune", *QUICK, "train.min_steps=0", "name=x") == 2
    assert "train.min_steps: 0 " in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_probe_on_few_labels_trains_its_head_long_enough(world: Path) -> None:
    """This is the default; a budget that the user sets is kept, also with more seeds."""
    words = ["probe", *(word for word in QUICK if not word.startswith("train.epochs")), "task.num_train=20"]
    words.append("transfer.fit=trainer")
    assert lmtransfer(*words, "name=default") == 0
    assert result("runs/probe/default")["steps"] == 600
    assert "layer_weights" not in result("runs/probe/default")  # of a single layer
    assert lmtransfer(*words, "train.epochs=10", "name=given") == 0
    assert result("runs/probe/given")["steps"] == 10
    assert lmtransfer(*words, "train.min_steps=null", "seeds=2", "name=old") == 0
    assert lmtransfer(*words, "train.min_steps=null", "seeds=3", "name=old", "resume=true") == 0
    assert result("runs/probe/old/seed-2")["steps"] == 10


@pytest.mark.slow
def test_weights_and_smoothing_shape_training_and_not_the_measured_loss(world: Path) -> None:
    for name, words in {"plain": [], "shaped": ["task.class_weights=balanced", "task.label_smoothing=0.2"]}.items():
        assert lmtransfer("finetune", *QUICK, *words, "train.micro_batch_tokens=64", f"name={name}") == 0
    found = result("runs/finetune/shaped")
    assert lmtransfer("evaluate", "run=runs/finetune/shaped", "split=dev", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["metrics"] == pytest.approx(found["metrics"], abs=1e-6)
    assert _losses("runs/finetune/plain") != _losses("runs/finetune/shaped")


def test_the_weight_of_a_label_is_given_by_its_name(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK, "task.class_weights={positive: 50}", "train.epochs=4", "name=ft") == 0
    assert result("runs/finetune/ft")["metrics"]["accuracy"] < 0.5  # most predictions are positive
    capsys.readouterr()
    assert lmtransfer("finetune", *QUICK, "task.class_weights={spam: 5}", "name=x") == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("task.class_weights", "'spam'", "negative, positive")), said
    assert lmtransfer("finetune", *QUICK, "task.class_weights=heavy", "task.label_smoothing=1", "name=x") == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("task.class_weights", "balanced", "task.label_smoothing")), said


def _learned(run: str) -> tuple[float, list[float]]:
    """Return gamma and softmax(s) from the scored weights."""
    saved = load_file(Path(run) / "checkpoints" / "best" / "model.safetensors")
    powers = [math.exp(value) for value in saved["reading.scalars"].tolist()]
    return float(saved["reading.gamma"]), [power / sum(powers) for power in powers]


@pytest.mark.slow
def test_layer_weights_are_those_of_the_checkpoint_with_mean_and_deviation(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["transfer.layers=mix", "optimizer.learning_rate=0.1", "name=p"]
    assert lmtransfer("probe", *QUICK, *words, "seeds=2", "control=true") == 0
    assert "layer weights: embeddings 0." in capsys.readouterr().out
    found = result("runs/probe/p")
    for part, folder in ((found, "runs/probe/p"), (found["control"], "runs/probe/p/control")):
        learned = [_learned(f"{folder}/seed-{seed}") for seed in range(2)]
        for seed, (gamma, weights) in enumerate(learned):
            of_seed = result(f"{folder}/seed-{seed}")["layer_weights"]
            assert of_seed == {"gamma": pytest.approx(gamma), "weights": pytest.approx(weights)}
            assert sum(of_seed["weights"]) == pytest.approx(1)
            assert len(of_seed["weights"]) == 3
        assert len({gamma for gamma, _ in learned}) == 2
        joint = part["layer_weights"]
        assert joint["gamma"] == pytest.approx(statistics.fmean(gamma for gamma, _ in learned))
        assert joint["deviation"]["gamma"] == pytest.approx(statistics.stdev(gamma for gamma, _ in learned))
        for place in range(3):
            column = [weights[place] for _, weights in learned]
            assert joint["weights"][place] == pytest.approx(statistics.fmean(column))
            assert joint["deviation"]["weights"][place] == pytest.approx(statistics.stdev(column))
    assert lmtransfer("evaluate", "run=runs/probe/p", "hardware=exact", "name=again") == 0
    assert result("runs/evaluate/again")["layer_weights"] == found["layer_weights"]
    capsys.readouterr()
    assert lmtransfer("report", "runs") == 0
    weights = found["layer_weights"]["weights"]
    assert f"layer weights: embeddings {weights[0]:.2f} \u00b1 " in (world / "runs/report/report.html").read_text()


def test_one_run_has_weights_without_deviation(world: Path) -> None:
    assert lmtransfer("probe", *QUICK, "transfer.layers=mix", "train.epochs=1", "name=one") == 0
    assert result("runs/probe/one")["layer_weights"]["deviation"] is None


def test_gradual_unfreezing_leaves_the_embeddings_until_their_time(world: Path) -> None:
    """The run ends when half of the layers are unfrozen, so the lowest layers have not changed."""
    words = ["transfer=gradual", "transfer.layer_decay=1", "transfer.unfreeze_share=0.99", "train.epochs=2"]
    assert lmtransfer("finetune", *QUICK, *words, "name=g", "checkpoint=last", "train.batch_examples=60") == 0
    base = load_file("runs/pretrain/base/checkpoints/last/model.safetensors")
    found = load_file("runs/finetune/g/checkpoints/last/model.safetensors")
    same = {name for name, tensor in base.items() if name in found and torch.equal(tensor, found[name])}
    # 4 steps, 3 depths: layers are unfrozen after 0.33, 0.66 and 0.99 of the budget: before steps 2 and 3, and never
    assert same == {name for name in base if name.startswith("encoder.embeddings.")}


def test_layer_decay_of_a_frozen_encoder_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("probe", *QUICK, "+transfer.layer_decay=0.8", "name=p") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("transfer.layer_decay=0.8", "transfer.freeze=frozen")), said

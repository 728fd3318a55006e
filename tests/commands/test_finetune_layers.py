"""Layer weights, layer-wise rates and gradual unfreezing as users run them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from fakes.transfer_files import QUICK, lmtransfer, make_world, result
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


def _learned(run: str) -> tuple[float, list[float]]:
    """Gamma and softmax(s) from the weights that were scored."""
    saved = load_file(Path(run) / "checkpoints" / "best" / "model.safetensors")
    powers = [math.exp(value) for value in saved["reading.scalars"].tolist()]
    return float(saved["reading.gamma"]), [power / sum(powers) for power in powers]


def test_layer_weights_are_those_of_the_checkpoint_with_mean_and_deviation(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["transfer.layers=mix", "optimizer.learning_rate=0.1", "name=p"]
    assert lmtransfer("probe", *QUICK, *words, "seeds=3", "control=true") == 0
    assert "layer weights: embeddings 0." in capsys.readouterr().out
    found = result("runs/probe/p")
    for part, folder in ((found, "runs/probe/p"), (found["control"], "runs/probe/p/control")):
        learned = [_learned(f"{folder}/seed-{seed}") for seed in range(3)]
        for seed, (gamma, weights) in enumerate(learned):
            of_seed = result(f"{folder}/seed-{seed}")["layer_weights"]
            assert of_seed == {"gamma": pytest.approx(gamma), "weights": pytest.approx(weights)}
            assert sum(of_seed["weights"]) == pytest.approx(1)
            assert len(of_seed["weights"]) == 3
        assert len({gamma for gamma, _ in learned}) == 3
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


def test_one_run_has_weights_without_deviation_and_no_mixture_none(world: Path) -> None:
    assert lmtransfer("probe", *QUICK, "transfer.layers=mix", "name=one") == 0
    assert result("runs/probe/one")["layer_weights"]["deviation"] is None
    assert lmtransfer("probe", *QUICK, "name=none") == 0
    assert "layer_weights" not in result("runs/probe/none")


def test_gradual_unfreezing_leaves_the_embeddings_until_their_time(world: Path) -> None:
    """The run ends when half of the layers have joined, so the lowest are those of the start."""
    words = ["transfer=gradual", "transfer.layer_decay=1", "transfer.unfreeze_share=0.99", "train.epochs=2"]
    assert lmtransfer("finetune", *QUICK, *words, "name=g", "checkpoint=last", "train.batch_examples=60") == 0
    base = load_file("runs/pretrain/base/checkpoints/last/model.safetensors")
    found = load_file("runs/finetune/g/checkpoints/last/model.safetensors")
    same = {name for name, tensor in base.items() if name in found and torch.equal(tensor, found[name])}
    # 4 steps, 3 depths: the layers join from 0.33, 0.66 and 0.99 of the budget on, so before steps 2, 3 and never
    assert same == {name for name in base if name.startswith("encoder.embeddings.")}


def test_layer_wise_rates_leave_the_logged_rate_alone(world: Path) -> None:
    words = ["schedule=constant", "optimizer.learning_rate=0.01"]
    for name, more in (("even", []), ("decay", ["transfer.layer_decay=0.5"])):
        assert lmtransfer("finetune", *QUICK, *words, *more, f"name={name}") == 0
    logged = [
        [json.loads(line)["learning_rate"] for line in (Path("runs/finetune") / name / "metrics.jsonl").open()]
        for name in ("even", "decay")
    ]
    assert logged[0] == logged[1]
    weights = [load_file(f"runs/finetune/{name}/checkpoints/best/model.safetensors") for name in ("even", "decay")]
    name = "encoder.embeddings.token.weight"
    assert not torch.equal(weights[0][name], weights[1][name])


def test_layer_decay_of_a_frozen_encoder_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("probe", *QUICK, "+transfer.layer_decay=0.8", "name=p") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("transfer.layer_decay=0.8", "transfer.freeze=frozen")), said

"""Calibration: errors compared with a loop over bins, and temperatures with a general-purpose optimizer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fakes.tasks import WordTokenizer
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from lmtransfer.reporting.runs.details import calibration_text, joint_calibration
from lmtransfer.tasks.metrics.calibration import NUM_BINS, calibration, fit_temperature, reliability
from lmtransfer.tasks.text.classification import CALIBRATION_PARTS, TextClassification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.transfer.scoring import Outputs, score_outputs


def answers(num: int, *, sharp: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels from logits, and return the logits multiplied by ``sharp``, which is their right temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (num, 3))
    gold = np.array([rng.choice(3, p=row) for row in softmax(logits, axis=1)])
    return sharp * logits, gold


def loop_error(logits: np.ndarray, gold: np.ndarray) -> float:
    """Guo et al. 2017, equation 3, bin by bin."""
    chances = softmax(logits, axis=1)
    confidence, right = chances.max(1), chances.argmax(1) == gold
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_error_is_that_of_a_loop_over_bins(seed: int) -> None:
    logits, gold = answers(400, sharp=2.0, seed=seed)
    found = calibration(logits, gold, None)
    assert found["plain"]["ece"] == pytest.approx(loop_error(logits, gold))
    assert found["plain"]["loss"] == pytest.approx(-log_softmax(logits, axis=1)[np.arange(400), gold].mean())
    assert found["scaled"] is None
    assert sum(found["plain"]["counts"]) == 400


def test_edges_of_bins() -> None:
    found = reliability(np.array([0.0, 1 / 15, 1 / 15 + 1e-9, 1.0]), np.array([False, True, True, True]))
    assert found["counts"] == [2, 1, *[0] * (NUM_BINS - 3), 1]
    assert reliability(np.ones(5), np.ones(5, dtype=bool))["ece"] == 0.0
    assert reliability(np.ones(5), np.zeros(5, dtype=bool))["ece"] == 1.0


@pytest.mark.parametrize("sharp", [0.3, 1.0, 4.0])
def test_the_temperature_is_that_of_a_general_optimiser(sharp: float) -> None:
    logits, gold = answers(2000, sharp=sharp)

    def loss(log_temperature: float) -> float:
        return -log_softmax(logits / np.exp(log_temperature), axis=1)[np.arange(len(gold)), gold].mean()

    expected = np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8}).x)
    assert fit_temperature(logits, gold) == pytest.approx(expected, rel=1e-4)
    assert fit_temperature(logits, gold) == pytest.approx(sharp, rel=0.15)


def test_temperatures_have_bounds() -> None:
    gold = np.array([0, 1])
    assert 0.01 <= fit_temperature(np.eye(2), gold) < 0.03  # always right: sharper is better
    assert fit_temperature(-np.eye(2), gold) == pytest.approx(100)  # always wrong


def test_no_part_is_measured_with_a_temperature_that_has_seen_it() -> None:
    logits, gold = answers(300, sharp=3.0)
    parts = np.arange(300) % 4
    found = calibration(logits, gold, parts)
    temperatures = [fit_temperature(logits[parts != part], gold[parts != part]) for part in range(4)]
    scaled = logits / np.array(temperatures)[parts][:, None]
    assert found["scaled"]["ece"] == pytest.approx(loop_error(scaled, gold))
    assert found["scaled"]["loss"] == pytest.approx(-log_softmax(scaled, axis=1)[np.arange(300), gold].mean())
    assert found["temperature"] == pytest.approx(np.exp(np.mean(np.log(temperatures))))
    assert found["scaled"]["loss"] < found["plain"]["loss"]
    assert found["scaled"]["ece"] < found["plain"]["ece"]


def judged(num: int, groups: int) -> dict[str, object] | None:
    task = TextClassification(
        name="t", text_column="t", labels=["a", "b", "c"], label_column="l", train="none.tsv", metrics=["macro_f1"]
    )
    logits, gold = answers(num, sharp=2.0)
    examples = [TextExample(f"dev:{i}", f"text {i % groups}", label=int(label)) for i, label in enumerate(gold)]
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=1)
    outputs = Outputs(logits.astype(np.float32), 1.0)
    assert score_outputs(task, encoded, outputs).calibration is None  # not measured during training
    return score_outputs(task, encoded, outputs, keep=True).calibration


def test_an_evaluation_has_both_errors_and_says_how_the_temperature_was_fitted() -> None:
    found = judged(200, 200)
    assert found is not None
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert str(CALIBRATION_PARTS) in found["fitted_on"]
    assert found["scaled"]["ece"] < found["plain"]["ece"]
    few = judged(8, 4)  # texts that share a group are not divided
    assert few is not None
    assert few["scaled"] is few["temperature"] is few["fitted_on"] is None


def test_seeds_together(tmp_path) -> None:
    runs = [calibration(*answers(100, sharp=2.0, seed=seed), np.arange(100) % 5) for seed in range(3)]
    found = joint_calibration(runs)
    assert found["plain"]["ece"] == pytest.approx(np.mean([run["plain"]["ece"] for run in runs]))
    assert found["temperature"] == pytest.approx(np.mean([run["temperature"] for run in runs]))
    assert sum(found["plain"]["counts"]) == 300
    drawn = [answers(100, sharp=2.0, seed=seed) for seed in range(3)]
    logits, gold = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    pooled = calibration(logits, gold, None)["plain"]
    for name in ("counts", "confidences", "accuracies"):
        assert found["plain"][name] == pytest.approx(pooled[name])
    assert f"{100 * found['plain']['ece']:.1f} %" in calibration_text({"calibration": found})
    without = joint_calibration([*runs, {**runs[0], "scaled": None, "temperature": None}])
    assert without["scaled"] is without["temperature"] is None
    assert calibration_text({"calibration": without})
    assert calibration_text({}) == ""

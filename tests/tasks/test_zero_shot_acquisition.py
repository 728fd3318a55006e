"""Age of acquisition: logistic curves with known crossings, and the correlation over words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.zero_shot.acquisition import AgeOfAcquisition, age_of_half, point_of_learning
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, ModelFacts

AGES = np.arange(16.0, 31.0)


def test_the_age_of_half_is_the_middle_of_a_logistic_curve() -> None:
    for middle in (18.0, 22.5, 27.0):
        shares = 1 / (1 + np.exp(-0.6 * (AGES - middle)))
        assert age_of_half(AGES, shares) == pytest.approx(middle, abs=0.01)
    assert age_of_half(AGES, np.full(15, 0.1)) is None
    assert age_of_half(AGES, np.where(AGES < 18, 0.2, np.nan)) is None  # two points


def test_a_word_is_learned_halfway_between_uniform_and_its_best() -> None:
    words = np.array([10**power for power in np.linspace(4, 8, 20)])
    uniform = float(np.log(1000))
    for middle in (5.2, 6.0, 6.8):
        surprisals = uniform - (uniform - 2.0) / (1 + np.exp(-4 * (np.log10(words) - middle)))
        level = (uniform + surprisals.min()) / 2
        exact = middle - np.log((uniform - 2.0) / (uniform - level) - 1) / 4
        assert point_of_learning(words, surprisals, uniform) == pytest.approx(exact, abs=0.01)
    assert point_of_learning(words, np.full(20, 3.0), uniform) is None
    assert point_of_learning(words[:2], np.array([5.0, 2.0]), uniform) is None


def _task(folder: Path, ages: dict[str, float]) -> AgeOfAcquisition:
    contexts = {word: [{"context": " the "}, {"context": "a red"}] for word in ages}
    (folder / "cdi_childes.json").write_text(json.dumps({**contexts, "I": [{"context": "x"}]}))
    rows = [
        f"{word},{','.join(f'{1 / (1 + np.exp(-0.6 * (age - middle))):.4f}' for age in AGES)}"
        for word, middle in ages.items()
    ]
    (folder / "cdi_human.csv").write_text("\n".join([f"word,{','.join(f'{age:.0f}' for age in AGES)}", *rows]) + "\n")
    return AgeOfAcquisition(name="age_of_acquisition", folder=str(folder))


def test_a_model_that_learns_in_the_childrens_order_correlates(tmp_path: Path) -> None:
    ages = {"ball": 18.0, "dog": 20.0, "milk": 22.0, "truth": 26.0, "walk": 24.0}
    task = _task(tmp_path, ages)
    items = task.examples("test")
    assert [item.word for item in items] == [word for word in ages for _ in range(2)]  # single letters are left out
    assert task.completions(items[1]) == [Completion("a red ball", 6)]
    words = [round(10**power) for power in np.linspace(4, 8, 20)]
    uniform = float(np.log(1000))

    def scores(sign: float) -> list[CompletionScores]:
        return [
            CompletionScores(
                [np.array([-uniform + (uniform - 2) / (1 + np.exp(-4 * (np.log10(read) - middle)))])], [np.zeros(1)], []
            )
            for read in words
            for item in items
            for middle in [6 + sign * (ages[item.word] - 22) / 4]
        ]

    assert task.evaluate(items, scores(1), ModelFacts(1000, words=words)).metrics["correlation"] > 0.99
    opposite = task.evaluate(items, scores(-1), ModelFacts(1000, words=words))
    assert opposite.metrics["correlation"] < -0.99
    assert opposite.more["num_words"] == 5
    lines = opposite.files["acquisition.jsonl"].splitlines()
    assert len(lines) == len(words) * len(items)
    assert json.loads(lines[-1])["words_read"] == words[-1]


def test_too_few_words_have_no_correlation(tmp_path: Path) -> None:
    task = _task(tmp_path, {"ball": 18.0, "dog": 20.0})
    items = task.examples("test")
    scores = [CompletionScores([np.array([-1.0])], [np.zeros(1)], []) for _ in range(3 * len(items))]
    found = task.evaluate(items, scores, ModelFacts(1000, words=(1, 2, 3)))
    assert found.metrics == {"correlation": 0.0, "challenge_score": 0.0}


def test_other_files_are_refused(tmp_path: Path) -> None:
    task = _task(tmp_path, {"ball": 18.0})
    (tmp_path / "cdi_childes.json").write_text('{"ball": [{"text": "x"}]}')
    with refuses(DataError, "cdi_childes.json", "context"):
        task.examples("test")
    with refuses(DataError, "cdi_childes.json"):
        AgeOfAcquisition(name="age_of_acquisition", folder=str(tmp_path / "none")).examples("test")

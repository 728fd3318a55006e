"""Reading times: explained variance compared with scikit-learn, and the format of the published table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import PolynomialFeatures
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.zero_shot.reading import Reading, variance_explained
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, ModelFacts

COLUMNS = (
    "item,word,prev_item,prev_word,Subtlex_log10,length,context_length,prev_length,RTfirstfix,RTfirstpass,RTgopast,"
    "RTrightbound,self_paced_reading_time"
)


def _r_squared(times: np.ndarray, covariates: np.ndarray, surprisal: np.ndarray | None) -> float:
    design = PolynomialFeatures(2, interaction_only=True, include_bias=False).fit_transform(covariates)
    if surprisal is not None:
        design = np.column_stack([design, surprisal])
    return LinearRegression().fit(design, times).score(design, times)


def test_variance_explained_is_that_of_two_linear_regressions() -> None:
    rng = np.random.default_rng(0)
    covariates, surprisal = rng.normal(size=(300, 3)) * [2, 30, 5] + 10, rng.gamma(2, 3, 300)
    times = 200 + covariates @ [3, 0.5, -2] + 0.02 * covariates[:, 0] * covariates[:, 1] + 2 * surprisal
    times += rng.normal(0, 20, 300)
    baseline, full = _r_squared(times, covariates, None), _r_squared(times, covariates, surprisal)
    found = variance_explained(times, list(covariates.T), surprisal)
    assert found == pytest.approx((full - baseline) / (1 - baseline), rel=1e-6)
    holes = times.copy()
    holes[::7] = np.nan
    rows = np.isfinite(holes)
    assert variance_explained(holes, list(covariates.T), surprisal) == pytest.approx(
        variance_explained(times[rows], list(covariates[rows].T), surprisal[rows])
    )


def _table(path: Path, rows: list[str]) -> Reading:
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return Reading(name="reading", file=str(path))


def test_a_word_is_scored_after_its_context_and_so_is_the_word_before_it(tmp_path: Path) -> None:
    rows = ["Her,dog,,,3.1,3,1,,200,210,220,230,", "Her dog, barked,Her,dog,2.0,6,2,3,250,,260,270,300"]
    task = _table(tmp_path / "reading.csv", rows)
    first, second = task.examples("test")
    assert task.completions(first) == [Completion("Her dog", 3)]
    assert task.completions(second) == [Completion("Her dog barked", 7), Completion("Her dog", 3)]
    assert task.hidden == "following"


def test_surprisals_that_drive_the_times_explain_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    surprisals = rng.gamma(2, 3, 200)
    numbers = [
        (*rng.normal(3, 1, 1).round(3), *rng.integers(2, 9, 3), *(200 + 10 * bits + rng.normal(0, 1, 5)).round(2))
        for bits in surprisals
    ]
    task = _table(tmp_path / "reading.csv", [f"a b,c,a,b,{','.join(map(str, row))}" for row in numbers])
    items = task.examples("test")
    scores = [CompletionScores([np.array([-bits / 2, -bits / 2]), np.array([-1.0])], [], []) for bits in surprisals]
    found = task.evaluate(items, scores, ModelFacts(8))
    assert found.metrics["eye_tracking"] > 0.99
    assert found.metrics["self_paced"] > 0.99
    noise = [CompletionScores([np.array([-bits]), np.array([-1.0])], [], []) for bits in rng.permutation(surprisals)]
    assert task.evaluate(items, noise, ModelFacts(8)).metrics["eye_tracking"] < 0.1


def test_other_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,length\nx,1\n")
    with refuses(DataError, "a.csv", "RTgopast", "word, length"):
        Reading(name="reading", file=str(tmp_path / "a.csv")).examples("test")
    with refuses(DataError, "task.file", "missing.csv"):
        Reading(name="reading", file="missing.csv").examples("test")

"""Forms of invented words: Spearman's correlation compared with scipy's on the same preferences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, ModelFacts
from lmtransfer.tasks.zero_shot.word_forms import WordFormPreference


def test_the_metric_is_the_mean_of_the_files_correlations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ratios = {name: rng.random(30) for name in ("adjectives", "verbs")}
    for name, values in ratios.items():
        lines = [
            json.dumps({"sentences": f"a {name}{n}ity\ta {name}{n}ness", "ratio": r}) for n, r in enumerate(values)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    task = WordFormPreference(name="wug", folder=str(tmp_path))
    items = task.examples("test")
    assert task.completions(items[31]) == [Completion("a verbs1ity"), Completion("a verbs1ness")]
    logs = rng.normal(-40, 3, (60, 2))
    scores = [CompletionScores([np.array([first]), np.array([second])], [], []) for first, second in logs]
    preferences = softmax(logs, axis=1)[:, 0]
    wanted = [
        float(stats.spearmanr(preferences[part], values).statistic)
        for part, values in zip((slice(0, 30), slice(30, 60)), ratios.values(), strict=True)
    ]
    found = task.evaluate(items, scores, ModelFacts(8)).metrics
    assert found["spearman"] == pytest.approx(np.mean(wanted))
    assert found["file/verbs/spearman"] == pytest.approx(wanted[1])


def test_other_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for line, said in (('{"sentences": "one", "ratio": 1}', "tab"), ('{"sentences": "a\\tb"}', "ratio")):
        path.write_text(line + "\n")
        with refuses(DataError, "a.jsonl:1", said):
            WordFormPreference(name="wug", folder=str(path)).examples("test")
    with refuses(DataError, "no .jsonl files"):
        WordFormPreference(name="wug", folder=str(tmp_path / "none")).examples("test")

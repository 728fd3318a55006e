"""Is this loss normal? Runs are compared with the curves of earlier runs of the same recipe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import write_run

from lmtransfer.launch.run_once import command_settings
from lmtransfer.reporting.figures.logged import loss_charts
from lmtransfer.reporting.runs import reference
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.reference import ReferenceCurve, normality_text, reference_curves, settings_of

ENTROPY = 6.0
SETTINGS: dict[str, Any] = dict.fromkeys(reference.SETTINGS) | {"model.dim": 256, "objective.losses": ["mlm"]}


def falling(tokens: float, by: float) -> float:
    """A loss that falls below the unigram entropy by ``by`` nats for each factor of e after 100,000 tokens."""
    return ENTROPY - by * max(0.0, math.log(tokens / 1e5))


def curve(by: float, *, entropy: float = ENTROPY) -> ReferenceCurve:
    tokens = tuple(1e5 * 1.1**step for step in range(45))
    losses = tuple(falling(place, by) + entropy - ENTROPY for place in tokens)
    return ReferenceCurve("laptop", "novels", 0, SETTINGS, "mlm", entropy, tokens, losses)


@pytest.mark.parametrize(
    ("by", "verdict"), [(0.5, "normal"), (0.75, "normal"), (0.2, "higher than normal"), (1.2, "lower than normal")]
)
def test_a_loss_is_judged_by_how_far_it_is_below_the_unigram_entropy(by: float, verdict: str) -> None:
    references = [curve(0.5), curve(0.7, entropy=7.5)]  # of other text, whose losses are 1.5 nats higher
    said = normality_text(references, tokens=1e6, loss=falling(1e6, by), entropy=ENTROPY)
    assert said is not None
    fall = math.log(10)
    for fact in (f"{by * fall:.2f} nats", f"is {verdict}:", f"{0.5 * fall:.2f} to {0.7 * fall:.2f}", "1.0M", "novels"):
        assert fact in said, fact


def test_nothing_is_said_without_a_comparison() -> None:
    assert normality_text([], tokens=1e6, loss=5.0, entropy=ENTROPY) is None
    assert normality_text([curve(0.5)], tokens=1e6, loss=5.0, entropy=None) is None
    assert normality_text([curve(0.5)], tokens=2e5, loss=5.9, entropy=ENTROPY) is None  # too early
    assert normality_text([curve(0.5)], tokens=1e9, loss=3.0, entropy=ENTROPY) is None  # beyond the curve


def run_of(folder: Path, by: float, **config: Any) -> Path:
    lines = [
        {"step": step, "tokens": 20000 * step, "seconds": step, "loss/mlm": falling(20000 * step, by)}
        for step in range(1, 60)
    ]
    settings = {"model": {"dim": 256}, "objective": {"losses": {"mlm": {}}}, "init": None} | config
    result = {"command": "pretrain", "metrics": {}, "unigram_entropy": ENTROPY}
    return write_run(folder, config=settings, result=result, metrics=lines)


def test_a_chart_has_the_references_and_says_whether_the_loss_is_normal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "reference_curves", lambda: (curve(0.5), curve(0.6)))
    run_of(tmp_path / "pretrain/mine", 0.1)
    run_of(tmp_path / "pretrain/other", 0.1, model={"dim": 128})
    run_of(tmp_path / "pretrain/continued", 0.1, init="runs/pretrain/x")
    entries = make_entries(collect(tmp_path))
    (chart,) = loss_charts(entries, {entry.run.key: entry.name for entry in entries})
    (remark,) = chart.remarks
    assert remark.startswith("mine: after 1.2M tokens")
    assert "higher than normal" in remark
    curves = {one.label: len(one.references) for one in chart.panels[0].losses}
    assert curves == {"mine": 2, "other": 0, "continued": 0}


def test_the_shipped_curves_belong_to_shipped_recipes() -> None:
    curves = reference_curves()
    for recipe in {one.recipe for one in curves}:
        settings = settings_of(command_settings("pretrain", [f"experiment={recipe}"]).plain())
        for one in curves:
            if one.recipe == recipe:
                assert dict(one.settings) == settings, recipe
    for one in curves:
        assert list(one.tokens) == sorted(one.tokens)
        assert all(math.isfinite(loss) and 0 < loss < 20 for loss in one.loss)
        assert one.loss[-1] < one.entropy  # it has learned more than frequencies
    laptop = [one for one in curves if one.recipe == "laptop"]
    assert len({one.corpus for one in laptop}) >= 2
    assert len(laptop) >= 2

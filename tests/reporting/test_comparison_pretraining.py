"""Two pretraining runs compared by their losses, as far as they were measured on the same tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.runs import transfer, write_run

from lmtransfer.cli import main
from lmtransfer.reporting.comparison.comparison import Comparison
from lmtransfer.reporting.comparison.page import headline, html_comparison, tables, to_json
from lmtransfer.reporting.comparison.pretraining import compare_pretrainings
from lmtransfer.reporting.comparison.sides import read_sides
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.verdicts.intervals import critical_value

MASKED = "lmtransfer.objectives.masked_lm.MaskedLanguageModel"
NEXT = "lmtransfer.objectives.pair_label.NextSentencePrediction"
DATA = {"corpus": "c0", "tokenizer": "t0"}
A, B = (4.5, 4.52, 4.47, 4.55, 4.49), (4.9, 4.95, 4.88, 4.93, 4.97)


def objective(
    losses: dict[str, Any] | None = None, *, rate: float = 0.15, rows: str = "FullSentences"
) -> dict[str, Any]:
    """An objective node as a run keeps it."""
    found = {"mlm": {"_target_": MASKED, "weight": 1.0}} if losses is None else losses
    return {"rows": {"_target_": rows}, "corruption": {"mask_prob": rate}, "losses": found}


def run(
    folder: Path,
    values: Sequence[float],
    *,
    data: dict[str, Any] | None = None,
    more: Sequence[dict[str, float]] = (),
    first: int = 0,
    **config: Any,
) -> Path:
    """A finished pretraining run with one loss a seed, and what else was measured of each."""
    settings = {
        "seed": first, "model": {"dim": 16}, "objective": objective(), "corpus": {"name": "texts"},
        "train": {"eval_tokens": 1000}, "seeds": len(values), **config,
    }  # fmt: skip
    result: dict[str, Any] = {"command": "pretrain", "task": None, "split": "validation", "main_metric": "loss"}
    metrics = [{"loss": value, **(more[place] if more else {})} for place, value in enumerate(values)]
    versions = {"data": DATA if data is None else data}
    if len(values) > 1:
        seeds = [{"seed": first + place, "metrics": one} for place, one in enumerate(metrics)]
        result |= {"seeds": seeds, "metrics": {name: np.mean([m[name] for m in metrics]) for name in metrics[0]}}
    else:
        result |= {"metrics": metrics[0]}
    return write_run(folder, config=settings, result=result, versions=versions)


def compared(one: Path, other: Path) -> Comparison:
    found = compare_pretrainings(*read_sides([str(one), str(other)]))
    json.loads(to_json(found))
    html_comparison(found, most=3)
    return found


def named(line: str, *names: str) -> bool:
    """Whether a line names all of these."""
    return all(name in line for name in names)


def test_paired_seeds_are_judged_as_a_paired_t_test(tmp_path: Path) -> None:
    found = compared(run(tmp_path / "a", A), run(tmp_path / "b", B, model={"dim": 32}))
    steps = np.subtract(A, B)
    error = steps.std(ddof=1) / np.sqrt(5)
    assert found.difference is not None
    assert found.difference.delta == pytest.approx(steps.mean())
    assert found.difference.standard_error == pytest.approx(error)
    half = critical_value(0.05, 4) * error
    assert found.difference.interval == pytest.approx((steps.mean() - half, steps.mean() + half))
    assert (found.difference.verdict, found.difference.scope) == ("better", "this recipe")  # a smaller loss
    assert found.difference.paired
    assert [(s.key, s.one, s.other) for s in found.settings] == [("pretraining: model.dim", 16, 32)]
    said = headline(found)
    assert named(said, "texts", "-0.420 loss", "better", "this recipe", "95 %", "5 pairs")
    assert sum(named(line, "text", "documents") for line in found.missing) == 1
    turned = compared(tmp_path / "b", tmp_path / "a").difference
    assert turned is not None
    assert turned.verdict == "worse"


def test_seeds_of_their_own_are_judged_as_welch(tmp_path: Path) -> None:
    found = compared(run(tmp_path / "a", A[:3]), run(tmp_path / "b", B, first=10)).difference
    variances = np.var(A[:3], ddof=1) / 3, np.var(B, ddof=1) / 5
    assert found is not None
    assert not found.paired
    assert found.standard_error == pytest.approx(np.sqrt(sum(variances)))
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 4)
    assert found.degrees_of_freedom == pytest.approx(freedom)


def test_a_folder_of_single_runs_is_a_group(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for folder, values in ((left, A), (right, B)):
        for seed, value in enumerate(values):
            run(folder / f"run{seed}", [value], first=seed)
    found = compared(left, right).difference
    assert found is not None
    assert (found.verdict, found.paired, found.num_seeds) == ("better", True, (5, 5))
    run(left / "other", [4.4], first=9, model={"dim": 32})
    mixed = compared(left, right)
    assert any(named(line, "no verdict", "left") and "right" not in line for line in mixed.missing)
    assert mixed.difference is not None
    assert mixed.difference.verdict == "settings differ"


@pytest.mark.parametrize(("one", "other", "who"), [((4.5,), (4.9,), ["left", "right"]), (A, (4.9,), ["right"])])
def test_one_seed_is_never_a_verdict(
    one: tuple[float, ...], other: tuple[float, ...], who: list[str], tmp_path: Path
) -> None:
    found = compared(run(tmp_path / "left", one), run(tmp_path / "right", other))
    assert found.difference is not None
    assert found.difference.verdict == "one seed, no spread"
    assert "no verdict" in headline(found)
    said = [line for line in found.missing if named(line, "no verdict", "seeds=5")]
    assert [[name for name in ("left", "right") if name in line] for line in said] == [who]


def test_each_part_of_the_loss_is_compared_by_its_own_direction(tmp_path: Path) -> None:
    def parts(values: Sequence[float], share: float) -> list[dict[str, float]]:
        return [{"mlm": v - 0.5, "mlm/fra": v - 1, "mlm_accuracy": share + v / 100, "nsp": 0.5 + v / 7} for v in values]

    both = objective({"mlm": {"_target_": MASKED, "weight": 1.0}, "nsp": {"_target_": NEXT, "weight": 1.0}})
    a = run(tmp_path / "a", A, more=parts(A, 0.9), objective=both)
    b = run(tmp_path / "b", B, more=parts(B, 0.1), objective=both)
    found = compared(a, b)
    verdicts = {row.name: row.difference.verdict for row in found.losses if row.difference is not None}
    assert verdicts == dict.fromkeys(("loss", "mlm", "mlm/fra", "mlm_accuracy", "nsp"), "better")
    for row in found.losses:
        assert row.difference is not None
        assert row.difference.num_comparisons == 5
        assert row.one == pytest.approx(np.mean([{"loss": v, **m}[row.name] for v, m in zip(A, parts(A, 0.9))]))  # noqa: B905
    table = next(table for table in tables(found, most=3) if table.name == "By part of the loss")
    assert table.headings[:3] == ["", "a", "b"]
    assert table.rows[0][:4] == ["loss", "4.506", "4.926", "-0.420"]


def test_a_loss_of_other_parts_is_left_out_and_the_shared_part_is_told(tmp_path: Path) -> None:
    more = [{"mlm": value, "mlm_accuracy": 0.2} for value in A]
    both = objective({"mlm": {"_target_": MASKED, "weight": 1.0}, "nsp": {"_target_": NEXT, "weight": 1.0}})
    found = compared(run(tmp_path / "a", A, more=more), run(tmp_path / "b", B, more=more, objective=both))
    assert found.difference is None
    assert any(named(line, "no difference", "loss", "(mlm, mlm + nsp)") for line in found.missing)
    assert [row.name for row in found.losses] == ["mlm", "mlm_accuracy"]
    heavier = objective({"mlm": {"_target_": MASKED, "weight": 2.0}})
    found = compared(tmp_path / "a", run(tmp_path / "c", B, more=more, objective=heavier))
    assert any(named(line, "no difference", "loss", "weights") for line in found.missing)


def test_replaced_tokens_of_two_generators_are_two_tasks(tmp_path: Path) -> None:
    node = objective({"rtd": {"_target_": "lmtransfer.objectives.replaced_token.ReplacedTokenDetection"}})
    more = [{"rtd": 0.3, "rtd_accuracy": 0.9, "generator_mlm": 5.0, "rtd_recall": 0.1}] * 5
    paths = (run(tmp_path / name, A, more=more, objective=node) for name in "ab")
    found = compared(*paths)
    assert (found.difference, found.losses) == (None, ())
    assert any(named(line, "no difference", "loss", "generator") for line in found.missing)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"data": {"corpus": "c1", "tokenizer": "t0"}}, ("text", "lmtransfer evaluate", "corpus=")),
        ({"data": {"corpus": "c0", "tokenizer": "t1"}}, ("tokenizers", "bits")),
        ({"data": {"tokenizer": "t0"}}, ("text", " b ", "lmtransfer evaluate")),
        ({"data": {"corpus": "c0"}}, ("tokenizer", " b ", "lmtransfer evaluate")),
        ({"objective": objective(rate=0.4)}, ("objective.corruption.mask_prob", "0.15", "0.4")),
        ({"objective": objective(rows="Pairs")}, ("objective.rows._target_", "FullSentences", "Pairs")),
        ({"train": {"eval_tokens": 500}}, ("eval_tokens", "1000", "500")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_was_measured_otherwise_has_no_difference(
    change: dict[str, Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    found = compared(run(tmp_path / "a", A), run(tmp_path / "b", B, **change))
    assert (found.difference, found.losses) == (None, ())
    (line,) = [line for line in found.missing if line.startswith("no difference")]
    assert named(line, *names), line
    assert found.sides[0].members[0].value == A[0]


def test_a_side_that_was_measured_in_two_ways_has_none(tmp_path: Path) -> None:
    run(tmp_path / "left" / "x", [4.5])
    run(tmp_path / "left" / "y", [4.6], first=1, train={"eval_tokens": 7})
    (line,) = compared(tmp_path / "left", run(tmp_path / "right", B)).missing
    assert named(line, "no difference", "left", "eval_tokens", "1000", "7")
    assert "right" not in line


def test_an_evaluation_is_of_the_run_that_it_measured(tmp_path: Path) -> None:
    for name, value in (("a", 4.5), ("b", 4.9)):
        source = run(tmp_path / "pretrain" / name, [value], corpus={"name": name}, data={"corpus": name})
        config = {"run": str(source), "corpus": {"name": "wikis"}, "eval_tokens": 700, "memory_lengths": None}
        result = {"command": "evaluate", "task": None, "split": "validation", "main_metric": "loss",
                  "metrics": {"loss": value}, "higher_is_better": False}  # fmt: skip
        write_run(tmp_path / "evaluate" / name, config=config, result=result, versions={"data": DATA})
        mark_as_own(tmp_path / "evaluate" / name)
    one, other = (tmp_path / "evaluate" / name for name in "ab")
    found = compared(one, other)
    assert found.difference is not None
    assert found.difference.delta == pytest.approx(-0.4)
    assert "wikis" in headline(found)
    assert [s.key for s in found.settings] == ["pretraining: corpus.name"]
    (one / "versions.json").write_text("{}")  # as earlier versions left it
    assert any(named(line, "no difference", "text", " a ") for line in compared(one, other).missing)


def test_a_pretraining_is_not_compared_with_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "pretrain" / "mine", A)
    transfer(tmp_path / "finetune" / "tuned", [0.7, 0.72])
    assert main(["compare", str(tmp_path / "pretrain" / "mine"), str(tmp_path / "finetune" / "tuned")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert named(said, "runs", "mine", "losses", "tuned", "scores", "sst2, dev")


def test_phases_that_one_side_alone_has_are_one_line(tmp_path: Path) -> None:
    phases = {"words": {"share": 0.3, "optimizer": {"learning_rate": 0.008}}, "rest": {"share": 0.7}}
    found = compared(run(tmp_path / "a", A, phases=phases), run(tmp_path / "b", B, phases=None))
    assert [(s.key, sorted(s.one), s.other) for s in found.settings] == [
        ("pretraining: phases", ["rest", "words"], None)
    ]
    other = {**phases, "words": {**phases["words"], "share": 0.2}}
    found = compared(run(tmp_path / "c", A, phases=phases), run(tmp_path / "d", B, phases=other))
    assert [(s.key, s.one, s.other) for s in found.settings] == [("pretraining: phases.words.share", 0.3, 0.2)]

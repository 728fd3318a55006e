"""Every objective of conf/objective, with each kind of rows, builds and fits a model it is meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from objective_fakes import NumberTokenizer, fitting, random_documents, store_of

from lmtransfer.config.build import build
from lmtransfer.objectives.fit import check_fit
from lmtransfer.objectives.learner import PretrainingLearner, needed_reads
from lmtransfer.objectives.source import PretrainingSource

CONF = Path(__file__).parents[2] / "conf"
NAMES = sorted(path.stem for path in (CONF / "objective").glob("*.yaml"))
ROWS = sorted(path.stem for path in (CONF / "objective" / "rows").glob("*.yaml"))


def objective_node(name: str, *overrides: str) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(overrides=[f"+objective={name}", *overrides]).objective


def built(node: Any, tmp_path: Path) -> tuple[PretrainingLearner, PretrainingSource]:
    tokenizer = NumberTokenizer()
    rows, corruption = build(node.rows, tokenizer=tokenizer), build(node.corruption, tokenizer=tokenizer)
    objectives = [build(loss) for loss in node.losses.values()]
    encoder: Any = fitting(objectives[0].directions)
    check_fit(encoder=encoder, objectives=objectives, rows=rows, corruption=corruption)
    store = store_of(tmp_path / "s", random_documents(30))
    source = PretrainingSource(store=store, rows=rows, corruption=corruption, seed=0, reads=needed_reads(objectives))
    return PretrainingLearner(encoder, objectives), source


def test_there_are_the_four_objectives() -> None:
    assert {"mlm", "nsp", "mlm_nsp", "lm"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_builds_and_gives_the_losses_it_lists(name: str, tmp_path: Path) -> None:
    node = objective_node(name, "objective.max_length=24")
    learner, source = built(node, tmp_path)
    plan = source.plan(0)
    assert plan.lengths.max() <= 24
    losses, _ = learner.losses(source.build(0, plan, range(6)))
    assert {kind for kind, loss in losses.items() if loss.weight} == set(node.losses)
    assert all(loss.sum.isfinite() for loss in losses.values())


@pytest.mark.parametrize("rows", ROWS)
def test_rows_can_be_exchanged(rows: str, tmp_path: Path) -> None:
    learner, source = built(objective_node("mlm", f"objective/rows={rows}", "objective.max_length=24"), tmp_path)
    losses, _ = learner.losses(source.build(0, source.plan(0), range(6)))
    assert set(losses) == {"mlm", "mlm_accuracy"}


@pytest.mark.parametrize("mask_prob", [0.05, 0.8])
def test_the_masking_rate_is_one_key(mask_prob: float, tmp_path: Path) -> None:
    node = objective_node("mlm_nsp", f"objective.mask_prob={mask_prob}", "objective.max_length=64")
    _, source = built(node, tmp_path)
    batch = source.build(0, source.plan(0), range(10))
    assert batch.num_targets / batch.num_tokens == pytest.approx(mask_prob, abs=0.02)

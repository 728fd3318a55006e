"""Every objective of conf/objective builds, fits the model it is meant for, trains as it did, and learns rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from fakes.objectives import NumberTokenizer, random_documents, store_of
from support.golden_losses import STEPS, golden_losses, written
from support.objective_table import CONF, MEANT_FOR, NAMES, built, line_of

from lmtransfer.config.paths import group_options
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.objectives.base import Objective

ROWS = sorted(name for name in group_options("objective/rows", [CONF]) if name != "ordered_pairs")

NUM_IDS = NumberTokenizer.vocab_size


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("stores") / "s", random_documents(30))


def test_the_table_has_no_line_too_many() -> None:
    assert set(MEANT_FOR) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_gives_the_losses_it_lists_and_trains_all_and_is_what_it_says(
    name: str, store: TokenStore
) -> None:
    learner, source, node = built(name, store, "objective.max_length=24")
    plan = source.plan(0)
    assert plan.lengths.max() <= 24
    batch = source.build(0, plan, range(6))
    losses, _ = learner.losses(batch)
    assert set(node.losses) <= {kind for kind, loss in losses.items() if loss.weight}
    assert all(loss.sum.isfinite() for loss in losses.values())
    known = {kind: loss.count for kind, loss in losses.items() if isinstance(loss.count, int)}
    assert known == learner.counts(batch)
    assert all(loss.weight == 0 for kind, loss in losses.items() if kind not in known)

    sum(loss.weight * loss.sum for loss in losses.values()).backward()  # type: ignore[union-attr]
    assert [name for name, p in learner.named_parameters() if p.requires_grad and p.grad is None] == []
    # what it says of itself is so
    state = torch.zeros(1, learner.encoder.dim)
    for objective in learner.objective_list():
        own = {n: p for n, p in objective.named_parameters() if not n.startswith("generator.")}
        assert sorted(n for n, p in own.items() if len(p) == NUM_IDS) == sorted(objective.vocabulary_tensors)
        assert {objective.name, objective.masked_loss or objective.name} <= set(losses)
        assert objective.selection_loss in {"loss", *losses}
        assert objective.title
        assert (objective.predicts is not None) == (type(objective).predict is not Objective.predict)
        assert (objective.label is None) == (objective.label_rows == "")
        assert (objective.needs == ()) == (objective.needs_from == "")
        for group, file in (("rows", objective.label_rows), ("corruption", objective.needs_from)):
            assert not file or (CONF / "objective" / group / f"{file}.yaml").is_file()
        assert objective.token_logits(state) is None or objective.text_logits(state) is None


@pytest.mark.parametrize("rows", ROWS)
def test_rows_can_be_exchanged(rows: str, store: TokenStore) -> None:
    learner, source, _ = built("mlm", store, f"objective/rows={rows}", "objective.max_length=24")
    losses, _ = learner.losses(source.build(0, source.plan(0), range(6)))
    assert set(losses) == {"mlm", "mlm_accuracy"}


@pytest.mark.parametrize("name", ["mlm_nsp", "mlm_whole_words", "mlm_ngrams", "mlm_spans", "mlm_entities", "rtd"])
@pytest.mark.parametrize("mask_prob", [0.05, 0.8])
def test_the_masking_rate_is_one_key(name: str, mask_prob: float, store: TokenStore) -> None:
    _, source, _ = built(name, store, f"objective.mask_prob={mask_prob}", "objective.max_length=64")
    batch = source.build(0, source.plan(0), range(10))
    assert batch.num_targets / batch.num_tokens == pytest.approx(mask_prob, abs=0.02)


def test_every_objective_is_written_down() -> None:
    assert sorted(written()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_written_down(tmp_path: Path, name: str) -> None:
    expected, found = written()[name], golden_losses(name, tmp_path)
    assert found.keys() == expected.keys()
    for kind, losses in found.items():
        assert len(losses) == STEPS
        if kind.endswith("_accuracy"):  # a count: one draw otherwise on another CPU is a step of it
            assert losses == pytest.approx(expected[kind], abs=0.05), kind
        else:
            assert losses == pytest.approx(expected[kind], rel=2e-3, abs=1e-3), kind


#: One of each kind of loss. The golden losses show of all objectives that training is what it was.
FAST = ("lm", "mlm_nsp", "mlm_spans", "plm", "rtd", "skipgram")
#: Slow ones, and those that differ from others only in what is hidden.
SLOW = ("backward_lm", "bilm", "mlm_entities", "mlm_ngrams", "mlm_whole_words")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_thirty_two_rows_are_learnt_by_heart(tmp_path: Path, name: str) -> None:
    line = line_of(name)
    store = store_of(tmp_path / "s", random_documents(60))
    learner, source, node = built(name, store, "objective.max_length=24", changes=line.changes)
    batch = source.build(0, source.plan(0), range(32))
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2, weight_decay=0.0)
    means: dict[str, float] = {}
    for step in range(400):
        torch.manual_seed(step)
        losses, _ = learner.losses(batch)
        optimizer.zero_grad()
        torch.stack([loss.weight * loss.sum / loss.count for loss in losses.values()]).sum().backward()
        optimizer.step()
        means = {kind: loss.sum.item() / loss.count for kind, loss in losses.items()}
        if step == 0 and "mlm" in means:
            assert means["mlm"] == pytest.approx(math.log(96), abs=0.3)  # nothing is known yet
        if all(means[loss] < line.learned.get(loss, 0.1) for loss in node.losses):
            break
    assert step < 399, means
    assert all(means.get(f"{loss}_accuracy", 1) > 0.9 for loss in node.losses if loss not in line.learned), means

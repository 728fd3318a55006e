"""Several ranks (gloo, on the CPU) train like one: replicated or sharded, with AdamW or Muon, in every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import families
from support.start_ranks import start_ranks

STEPS = 12
FEW = ["bert_tiny:mlm_nsp", "transformer_xl_laptop:lm_contiguous"]
SETTINGS: list[dict[str, Any]] = [
    {"kind": "replicated", "optimizer": "adamw", "ahead": True},
    {"kind": "replicated", "optimizer": "muon", "ahead": False},
    {"kind": "sharded", "optimizer": "adamw", "ahead": False},
    {"kind": "sharded", "optimizer": "muon", "ahead": True},
]
FAMILIES = [
    *("roberta_laptop:mlm", "distilbert_base:mlm", "albert_laptop:mlm_sop", "electra_laptop:rtd", "modern_laptop:mlm"),
    *("modern_base:mlm_lm", "gpt2_base:lm", "bi_gpt_laptop:bilm", "elmo_laptop:bilm", "xlnet_laptop:plm"),
    "word_embeddings_laptop:cbow",
]


def _run(folder: Path, pairs: list[str], every: list[dict[str, Any]], *, ranks: int) -> list[list[dict[str, Any]]]:
    """Train on this many ranks with one setting after the other; return the results by rank, then by setting."""
    start_ranks(families.train, pairs, every, ranks=ranks, folder=folder)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def _assert_same_losses(records: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    assert [record["step"] for record in records] == [record["step"] for record in alone[-len(records) :]]
    for record, expected in zip(records, alone[-len(records) :], strict=True):
        for key in ("loss", "validation/loss"):
            assert record.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), rel=1e-6), (key, record["step"])
        assert record["tokens"] == expected["tokens"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of one rank, by optimizer."""
    every = [{"kind": "replicated", "optimizer": optimizer} for optimizer in ("adamw", "muon")]
    (results,) = _run(tmp_path_factory.mktemp("alone"), FEW, every, ranks=1)
    return {settings["optimizer"]: result for settings, result in zip(every, results, strict=True)}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The results on three ranks, by rank, then by setting."""
    return _run(tmp_path_factory.mktemp("together"), FEW, SETTINGS, ranks=3)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(SETTINGS)), ids=lambda place: "-".join(map(str, SETTINGS[place].values())))
def test_twelve_uneven_steps_have_the_losses_of_one_rank(
    place: int, alone: dict[str, dict[str, Any]], together: list[list[dict[str, Any]]]
) -> None:
    results = [of_rank[place] for of_rank in together]
    ranks, kind, optimizer = len(results), SETTINGS[place]["kind"], SETTINGS[place]["optimizer"]
    for pair in FEW:
        one, first = alone[optimizer][pair], results[0][pair]
        _assert_same_losses(first["records"], one["records"])
        whole_weights = sum(of_rank[pair]["weights"] for of_rank in results)
        assert whole_weights == one["weights"] * (1 if kind == "sharded" else ranks)
        if kind == "sharded" or optimizer == "muon":  # each rank keeps its shard of the moments
            assert max(of_rank[pair]["state"] for of_rank in results) < one["state"] * 0.6


@pytest.mark.slow
def test_a_sharded_run_goes_on_with_another_number_of_ranks(alone: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    pair, optimizers = FEW[0], ("adamw", "muon")
    thirds = [(2, "sharded", 1 / 3), (3, "sharded", 2 / 3), (1, "replicated", 1.0)]
    for ranks, kind, until in thirds:
        every = [{"kind": kind, "optimizer": optimizer, "until": until} for optimizer in optimizers]
        first = _run(tmp_path, [pair], every, ranks=ranks)[0]
        for optimizer, result in zip(optimizers, first, strict=True):
            _assert_same_losses(result[pair]["records"], alone[optimizer][pair]["records"][: round(until * STEPS)])


@pytest.mark.slow
def test_every_family_can_be_sharded(tmp_path: Path) -> None:
    settings = {"optimizer": "muon", "until": 1 / 3}
    alone = _run(tmp_path / "one", FAMILIES, [{"kind": "replicated", **settings}], ranks=1)[0][0]
    several = _run(tmp_path / "two", FAMILIES, [{"kind": "sharded", **settings}], ranks=2)[0][0]
    for pair in FAMILIES:
        assert len(several[pair]["records"]) == STEPS / 3
        _assert_same_losses(several[pair]["records"], alone[pair]["records"])

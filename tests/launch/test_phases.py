"""Phases as they are written: what each takes from the run, and what the run takes from the last."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import Node
from lmtransfer.config.phases import Phase, phases_of
from lmtransfer.config.settings import (
    ObjectiveSettings,
    PhaseSettings,
    PhaseTrainSettings,
    PretrainSettings,
    VectorSettings,
)
from lmtransfer.errors import ConfigError
from lmtransfer.launch.phases import complete_phases

MASKED = {
    "max_length": 64,
    "mask_prob": 0.2,
    "rows": {"_target_": "lmtransfer.Rows", "max_length": "${..max_length}"},
    "corruption": {"_target_": "lmtransfer.Masks", "mask_prob": "${..mask_prob}"},
    "losses": {"mlm": {"_target_": "lmtransfer.Mlm", "weight": 1.0}},
}
VECTORS = {
    "max_length": "${objective.max_length}",
    "rows": {"_target_": "lmtransfer.Rows", "max_length": "${..max_length}"},
    "losses": {"skipgram": {"_target_": "lmtransfer.SkipGram"}},
}


def config(phases: Any, **train: Any) -> DictConfig:
    return OmegaConf.create(
        {
            "objective": MASKED,
            "optimizer": {"_target_": "lmtransfer.Muon", "learning_rate": 0.02},
            "train": {"steps": 100, "tokens": None, "epochs": None, "seconds": None, "batch_tokens": 512}
            | {"micro_batch_tokens": None}
            | train,
            "phases": phases,
        }
    )


def phases_in(cfg: DictConfig) -> list[Phase]:
    """Return the phases of a completed config, whose components do not exist."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    parts = {"objective": ObjectiveSettings, "train": PhaseTrainSettings, "embedding_after": VectorSettings}

    def read(name: str, value: Any) -> Any:
        if name == "optimizer":
            return Node(value)
        return parts[name].model_construct(**value) if name in parts and value is not None else value

    phases = {
        name: PhaseSettings.model_construct(**{key: read(key, value) for key, value in phase.items()})
        for name, phase in (plain["phases"] or {}).items()
    }
    own = {key: read(key, plain[key]) for key in ("objective", "optimizer")}
    return phases_of(PretrainSettings.model_construct(phases=phases, **own))


def test_a_run_without_phases_is_one_phase_and_stays_as_it_is() -> None:
    cfg = config(None)
    before = OmegaConf.to_container(cfg)
    complete_phases(cfg)
    assert OmegaConf.to_container(cfg) == before
    (phase,) = phases_in(cfg)
    assert (phase.name, phase.begins, phase.ends, phase.objective_key, phase.train) == ("", 0.0, 1.0, "objective", None)
    assert phase.objective.mask_prob == 0.2


def test_single_settings_are_laid_over_the_runs_own_and_the_last_phase_is_the_run() -> None:
    cfg = config(
        {
            "first": {"share": 0.5, "objective": {"mask_prob": 0.4}, "train": {"batch_tokens": 256.0}},
            "second": {"share": 0.3, "objective": {"max_length": 128}, "optimizer": {"learning_rate": 0.01}},
            "third": {"share": 0.2, "objective": {"mask_prob": 0.15}, "train": {"batch_tokens": 1024}},
        }
    )
    complete_phases(cfg)
    first, second, third = phases_in(cfg)
    parts: list[Any] = [phase.objective.plain() for phase in (first, second, third)]
    assert [part["corruption"]["mask_prob"] for part in parts] == [0.4, 0.2, 0.15]  # the second is the run's own
    assert parts[1]["rows"]["max_length"] == 128
    assert [phase.objective_key for phase in (second, third)] == ["phases.second.objective", "objective"]
    assert [phase.optimizer.get("learning_rate") for phase in (first, second, third)] == [0.02, 0.01, 0.02]
    assert first.train == PhaseTrainSettings(batch_tokens=256)
    assert second.train == PhaseTrainSettings(batch_tokens=512)
    assert cfg.train.batch_tokens == 1024
    assert [(phase.begins, phase.ends) for phase in (first, second, third)] == [(0.0, 0.5), (0.5, 0.8), (0.8, 1.0)]
    once = OmegaConf.to_container(cfg)
    complete_phases(cfg)
    assert OmegaConf.to_container(cfg) == once


def test_an_objective_with_losses_stands_for_itself() -> None:
    optimizer = {"_target_": "lmtransfer.AdamW"}
    words = {"share": 0.3, "objective": VECTORS, "optimizer": optimizer, "embedding_after": {"deviation": 0.02}}
    cfg = config({"words": words, "rest": {"share": 0.7}})
    complete_phases(cfg)
    first, last = phases_in(cfg)
    assert first.objective.plain() == {
        **VECTORS,
        "max_length": 64,
        "rows": {"_target_": "lmtransfer.Rows", "max_length": 64},
    }
    assert first.optimizer.values == optimizer
    assert first.after is not None
    assert (first.after.centre, first.after.deviation) == (True, 0.02)
    assert last.after is None
    assert last.objective.losses == MASKED["losses"]


def test_shares_end_where_they_say_and_the_last_at_the_end() -> None:
    cfg = config({name: {"share": 0.1} for name in "abcdefghij"})
    complete_phases(cfg)
    assert [phase.ends for phase in phases_in(cfg)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    cfg = config({name: {"share": 0.3333} for name in "abc"})  # thirds
    complete_phases(cfg)
    assert phases_in(cfg)[-1].ends == 1.0
    cfg = config({"a": {"share": 0.1}, "b": {}, "c": {"share": 0.2}})  # the rest
    complete_phases(cfg)
    assert [phase.ends for phase in phases_in(cfg)] == [0.1, 0.8, 1.0]
    assert cfg.phases.b.share == 0.7


@pytest.mark.parametrize(
    ("phases", "key"),
    [
        ([{"share": 1.0}], "phases: "),
        ({}, "phases: "),
        ({"a.b": {"share": 1.0}}, "phases.a.b: "),
        ({"a": {"share": "half"}, "b": {"share": 0.5}}, "phases.a.share: "),
        ({"a": {"share": 0.5, "train": {"steps": 3}}, "b": {"share": 0.5}}, "phases.a.train.steps: "),
        ({"a": {"share": 0.5, "train": {"batch_tokens": 0}}, "b": {"share": 0.5}}, "phases.a.train.batch_tokens: "),
        ({"a": {"share": 0.5, "train": 512}, "b": {"share": 0.5}}, "phases.a.train: "),
        ({"a": {"share": 0.5, "embedding_after": {"deviation": 0}}, "b": {"share": 0.5}}, "after.deviation: "),
        ({"a": {"share": "${nowhere}"}, "b": {"share": 0.5}}, "phases.a.share: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line_by_its_key(phases: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        complete_phases(config(phases))
    assert len(caught.value.problems) == 1
    assert key in caught.value.problems[0]


def test_shares_that_do_not_add_up_are_shown_with_their_sum() -> None:
    with refuses(ConfigError, "phases: ", "1.2", "0.6 + 0.6"):
        complete_phases(config({"a": {"share": 0.6}, "b": {"share": 0.6}}))
    with refuses(ConfigError, "phases.c.share: ", "1.2", "0.7 + 0.5"):
        complete_phases(config({"a": {"share": 0.7}, "b": {"share": 0.5}, "c": {}}))


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        complete_phases(config({"a": {"share": -1, "restrat": True}, "b": {"objective": {"mask_prop": 0.1}}}))
    said = "\n".join(caught.value.problems)
    for name in ("phases.a.share", "phases.a.restrat", "'restart'", "phases.b.objective.mask_prop"):
        assert name in said
    with pytest.raises(ConfigError) as caught:
        complete_phases(config({"a": {}, "b": {}, "c": {"share": 0.2}}))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["phases.a.share", "phases.b.share"]

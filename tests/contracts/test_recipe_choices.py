"""Every recipe of pretrain accepts every model with an objective for it, and leaves the model as it is."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict
from support import composed

from lmtransfer.config import paths
from lmtransfer.launch.composing import compose_files
from lmtransfer.launch.config_files import read_plain

CONF = paths.conf_dir()
MODELS = paths.group_options("model", [CONF])
#: The objective for a class of encoders, if it is not masked language modeling.
OBJECTIVES = {
    "BiGptEncoder": "bilm",
    "ElmoEncoder": "bilm",
    "ElmoSubwordEncoder": "bilm",
    "GptEncoder": "lm",
    "TransformerXlEncoder": "lm_contiguous",
    "WordEmbeddings": "skipgram",
    "XlnetEncoder": "plm",
}


def for_pretraining(recipe: str) -> bool:
    text = (CONF / "experiment" / f"{recipe}.yaml").read_text(encoding="utf-8")
    return "override /transfer:" not in text


RECIPES = [recipe for recipe in paths.group_options("experiment", [CONF]) if for_pretraining(recipe)]


@cache
def alone(group: str, choice: str) -> Any:
    return OmegaConf.to_container(compose_files(None, [f"+{group}={choice}"])[group], resolve=False)


def objective_for(model: str) -> str:
    return OBJECTIVES.get(alone("model", model)["_target_"].rpartition(".")[2], "mlm")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_leaves_another_model_and_its_objective_as_they_are(recipe: str) -> None:
    bases = [recipe]
    for name in bases:
        entries = read_plain(CONF / "experiment" / f"{name}.yaml").get("defaults", [])
        bases += [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    own = [compose_files("pretrain", [f"experiment={name}"]).hydra.runtime.choices for name in bases]
    checked: set[str] = set()
    try:
        for model in MODELS:
            typed = {"model": model, "objective": objective_for(model)}
            words = [f"{group}={choice}" for group, choice in typed.items()]
            cfg = compose_files("pretrain", [f"experiment={recipe}", *words])
            HydraConfig.instance().set_config(cfg)
            with open_dict(cfg):
                del cfg["hydra"]
            for group, choice in typed.items():
                if choice not in [choices[group] for choices in own]:
                    assert OmegaConf.to_container(cfg[group], resolve=False) == alone(group, choice), words
            if cfg.model["_target_"] not in checked:  # one of each class: the check takes as long as composing
                checked.add(cfg.model["_target_"])
                problems = [said for said in composed.problems("pretrain", cfg) if ": missing: " not in said]
                assert problems == [], words
    finally:
        HydraConfig.instance().cfg = None

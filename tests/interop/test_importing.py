from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lmtransfer.config import paths
from lmtransfer.interop.importing import build_objective_node


@pytest.mark.parametrize(
    ("losses", "choice"),
    [
        (("mlm", "nsp"), "mlm_nsp"),
        (("rtd",), "rtd"),
        (("plm",), "plm"),
    ],
)
def test_the_node_is_what_hydra_composes(losses: tuple[str, ...], choice: str) -> None:
    with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
        words = ["~experiment", "model=bert_base", f"objective={choice}", "objective.max_length=24"]
        cfg = compose("pretrain", overrides=words)
    wanted = OmegaConf.to_container(cfg.objective, resolve=True)
    assert build_objective_node({name: {} for name in losses}, max_length=24) == wanted


def test_the_heads_arguments_win_and_the_weights_stay() -> None:
    given = {"mlm": {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel", "norm_eps": 1e-5}}
    node = build_objective_node(given, max_length=512)
    assert node is not None
    assert node["losses"]["mlm"]["norm_eps"] == 1e-5
    assert node["losses"]["mlm"]["weight"] == 1.0
    assert node["max_length"] == node["rows"]["max_length"] == 128


def test_losses_that_nothing_trains_together_are_none() -> None:
    assert build_objective_node({"mlm": {}, "plm": {}}, max_length=24) is None
    assert build_objective_node({}, max_length=24) is None

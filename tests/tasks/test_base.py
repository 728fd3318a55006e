from __future__ import annotations

from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError


def test_a_group_is_no_task() -> None:
    with refuses(ConfigError, "task=glue", "cola, sst2"):
        build(OmegaConf.load(conf_dir() / "task" / "glue.yaml"), data_root=None)

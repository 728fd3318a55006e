from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.config.short_forms import expand_task_groups
from lmtransfer.errors import ConfigError


def test_a_group_is_a_sweep_over_its_tasks() -> None:
    words = ["init=runs/pretrain/x", "task=glue", "seeds=3"]
    (word,) = [word for word in expand_task_groups(words, [conf_dir()]) if word.startswith("task=")]
    tasks = word.removeprefix("task=").split(",")
    assert len(tasks) == 9
    assert all((conf_dir() / "task" / f"{task}.yaml").is_file() for task in tasks)
    assert expand_task_groups(["task=sst2", "name=glue"], [conf_dir()]) == ["task=sst2", "name=glue"]


def test_a_group_of_the_user_comes_first(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    node = {"_target_": "lmtransfer.tasks.base.TaskGroup", "name": "glue", "tasks": ["sst2", "rte"]}
    OmegaConf.save(OmegaConf.create(node), tmp_path / "task" / "glue.yaml")
    assert expand_task_groups(["task=glue"], [conf_dir(), tmp_path]) == ["task=sst2,rte"]


def test_a_group_is_no_task() -> None:
    with refuses(ConfigError, "task=glue", "cola, sst2"):
        build(OmegaConf.load(conf_dir() / "task" / "glue.yaml"), data_root=None)

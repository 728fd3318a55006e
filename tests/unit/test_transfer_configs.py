"""Every file of conf/transfer and conf/task: binds, builds, learns, and survives saving."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from task_fakes import bert, gpt, labels_head, random_examples

from lmtransfer.config.build import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.metrics.base import Metric
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.weights import load_weights, weights

TRANSFERS = sorted((conf_dir() / "transfer").glob("*.yaml"))
TASKS = sorted((conf_dir() / "task").glob("*.yaml"))
#: What a user must give to a task that is theirs.
GIVEN = {"text": {"labels": ["no", "yes"], "files": {"train": "train.tsv"}}}


@pytest.mark.parametrize("path", TRANSFERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("encoder", [bert, gpt])
def test_transfer_config_learns_and_survives_saving(path: Path, encoder) -> None:
    method = build(OmegaConf.load(path))
    learner = method.learner(encoder(), head=labels_head(2), seed=0)
    source = TaskSource(random_examples(20))
    batch = source.build(0, source.plan(0), range(20))
    losses, _ = learner.losses(batch)
    (losses["classification"].sum / losses["classification"].count).backward()
    trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)
    torch.optim.SGD(trained, lr=0.1).step()
    again = method.learner(encoder(seed=9), head=labels_head(2), seed=9)
    load_weights(again, weights(learner))
    torch.testing.assert_close(again.eval().predict(batch), learner.eval().predict(batch), rtol=0, atol=0)


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_task_config_builds_a_task(path: Path, tmp_path: Path) -> None:
    node = OmegaConf.merge(OmegaConf.load(path), GIVEN.get(path.stem, {}))
    task = build(node, data_root=str(tmp_path), cache_dir=str(tmp_path))
    assert isinstance(task, Task)
    assert task.name == path.stem
    assert "train" in task.splits
    assert len(set(task.labels)) == len(task.labels) >= 2
    assert all(isinstance(metric, Metric) for metric in task.metrics())
    assert task.metrics()[0].name == task.main_metric
    assert path.read_text().startswith("# ")

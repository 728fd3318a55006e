from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError
from lmtransfer.launch.short_forms import expand_overlap, expand_parts, expand_task_groups


def config(parts: Any) -> Any:
    return OmegaConf.create({"corpus": {"_target_": "lmtransfer.data.corpora.mixture.MixtureCorpus", "parts": parts}})


def test_parts_are_named_by_corpus_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").touch()
    listed = config(["fra", "own.txt"])
    expand_parts(listed, [conf_dir()])
    assert {name: part.name for name, part in listed.corpus.parts.items()} == {"fra": "fra", "own": "own"}
    named = config({"french": "fra", "mine": "own.txt", "far": "s3://bucket/texts", "given": {"_target_": "x.Y"}})
    expand_parts(named, [conf_dir()])
    assert (named.corpus.parts.far.name, named.corpus.parts.far.path) == ("far", "s3://bucket/texts")
    assert named.corpus.parts.french.files == ["multilingual/fra/train.txt"]
    assert named.corpus.parts.mine.path == "own.txt"
    assert named.corpus.parts.given == {"_target_": "x.Y"}
    own = config({"a": {"path": "own.txt", "text_field": ["body", "text"]}, "b": {"path": "gone", "name": "other"}})
    expand_parts(own, [conf_dir()])
    assert (own.corpus.parts.a.name, own.corpus.parts.a.text_field) == ("a", ["body", "text"])
    assert own.corpus.parts.a._target_ == "lmtransfer.data.corpora.corpus.FileCorpus"
    assert (own.corpus.parts.b.name, own.corpus.parts.b.text_field) == ("other", None)
    with refuses(ConfigError, "corpus.parts.fraa=fraa", "'fra'", "corpus.parts.nothing=nothing.txt") as caught:
        expand_parts(config(["fraa", "own.txt", "nothing.txt"]), [conf_dir()])
    assert len(caught.value.problems) == 2
    with refuses(ConfigError, "corpus.parts=['own.txt'"):
        expand_parts(config(["own.txt", str(tmp_path / "own.txt")]), [conf_dir()])


def test_tasks_groups_and_files_are_named_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held_out.txt").touch()
    cfg = OmegaConf.create({"screening": {"overlap_with": ["sst2", "held_out.txt", "glue"]}})
    expand_overlap(cfg, [conf_dir()])
    settled = cfg.screening.overlap_with
    assert settled.sst2.labels == ["negative", "positive"]
    assert settled["held_out.txt"].boundary == "line"
    assert {"cola", "mnli", "wnli"} <= set(settled)
    with refuses(ConfigError, "screening.overlap_with", "sst22", "'sst2'", "gone.txt") as caught:
        expand_overlap(OmegaConf.create({"screening": {"overlap_with": ["sst22", "gone.txt"]}}), [conf_dir()])
    assert len(caught.value.problems) == 2
    with refuses(ConfigError, "screening.overlap_with", "held_out.txt"):
        expand_overlap(
            OmegaConf.create({"screening": {"overlap_with": ["held_out.txt", str(tmp_path / "held_out.txt")]}}),
            [conf_dir()],
        )


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

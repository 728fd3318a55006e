"""The walk over a configuration that finds what its components name outside the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.config.sources import named_by_user, named_sources, with_absolute_paths, without_hub
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.languages import in_language

DATA = "lmtransfer.data.corpora"
FILE = {"_target_": f"{DATA}.corpus.FileCorpus", "path": "a.txt"}
HUB = {"_target_": f"{DATA}.hub.HubCorpus", "dataset": "owner/name", "split": "train", "name": "h"}
FOLDER = {
    "_target_": f"{DATA}.data_folder.DataFolderCorpus",
    "files": ["x/a.txt", "x/b.txt"],
    "hub_dataset": "o/d",
    "name": "d",
}
TASK = {
    "_target_": "lmtransfer.tasks.text.classification.TextClassification",
    "name": "t",
    "files": {"train": "t/train.tsv", "dev": ["t/dev.tsv", "t/valid.tsv"], "test": None},
    "test": "other.tsv",
    "hub": "o/t",
    "hub_config": "sst2",
    "text_column": "text",
    "label_column": "label",
}


def mixture(**parts: Any) -> dict[str, Any]:
    return {"_target_": f"{DATA}.mixture.MixtureCorpus", "name": "m", "parts": parts}


def screened(source: Any, **overlap: Any) -> dict[str, Any]:
    screening = {"_target_": "lmtransfer.data.screening.Screening", "action": "report", "overlap_with": overlap}
    return {"_target_": "lmtransfer.data.screening.ScreenedCorpus", "source": source, "screening": screening}


def found(value: Any) -> dict[str, str]:
    return {named.key: named.value for named in named_sources(value)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"corpus": FILE}, {"corpus.path": "a.txt"}),
        ({"corpus": HUB}, {"corpus.dataset": "owner/name"}),
        ({"corpus": mixture(a=mixture(b=FILE, c=HUB))},
         {"corpus.parts.a.parts.b.path": "a.txt", "corpus.parts.a.parts.c.dataset": "owner/name"}),
        ({"corpus": screened(mixture(a=screened(FILE)), x=FOLDER)},
         {"corpus.source.parts.a.source.path": "a.txt", "corpus.screening.overlap_with.x.files[0]": "x/a.txt",
          "corpus.screening.overlap_with.x.files[1]": "x/b.txt",
          "corpus.screening.overlap_with.x.hub_dataset": "o/d"}),
        ({"phases": {"first": {"corpus": {**FILE, "path": ["a", "b/*.txt"]}}}},
         {"phases.first.corpus.path[0]": "a", "phases.first.corpus.path[1]": "b/*.txt"}),
        ({"anything": [{"else": [TASK]}]},
         {"anything[0].else[0].files.train": "t/train.tsv", "anything[0].else[0].files.dev[0]": "t/dev.tsv",
          "anything[0].else[0].files.dev[1]": "t/valid.tsv", "anything[0].else[0].test": "other.tsv",
          "anything[0].else[0].hub": "o/t"}),
        ({"corpus": {**FILE, "cache_dir": "/c"}}, {"corpus.path": "a.txt", "corpus.cache_dir": "/c"}),
        ({"tracker": {"m": {"_target_": "lmtransfer.training.trackers.services.MLflow", "uri": "http://x"}}},
         {"tracker.m.uri": "http://x"}),
        ({"corpus": {"_target_": "os.system", "path": "a"}, "name": "a.txt", "path": "no component"}, {}),
    ],
)  # fmt: skip
def test_everything_that_is_named_is_found(config: Any, expected: dict[str, str]) -> None:
    assert found(config) == expected


def test_paths_become_absolute_at_any_depth_and_data_files_do_not(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    node = with_absolute_paths(mixture(a=mixture(b=FILE, c=HUB), d=screened(FOLDER), e={**FILE, "path": ["s3://b/x"]}))
    assert sorted(found(node).values()) == sorted(
        [f"{tmp_path}/a.txt", "owner/name", "x/a.txt", "x/b.txt", "o/d", "s3://b/x"]
    )


def test_the_hub_is_left_out_at_any_depth() -> None:
    assert without_hub({"task": TASK, "more": [mixture(a=FOLDER)]}) == {
        "task": {**TASK, "hub": None},
        "more": [mixture(a={**FOLDER, "hub_dataset": None})],
    }


def test_what_the_user_names_is_listed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gz").touch()
    settings = {
        "run": "hf:me/model@main",
        "input": "in.tsv",
        "output_root": "runs",
        "name": "n",
        "split": "test",
        "data_root": "data",
        "tokenizer": {"_target_": "lmtransfer.tokenizers.trainers.WordPieceTrainer", "add": "words.txt"},
        "task": TASK,
        "corpus": mixture(a={**FILE, "path": "texts/*.txt"}, b={**FILE, "path": "s3://b/x/*.txt"}, c=HUB),
    }
    paths, names = named_by_user(settings, "evaluate")()
    relative = {str(path.relative_to(tmp_path)) for path in paths if path.is_relative_to(tmp_path)}
    assert {"in.tsv", "in.tsv.gz", "data", "data/t/dev.tsv", "t/dev.tsv", "other.tsv", "texts", "words.txt"} <= relative
    assert Path("runs/evaluate/n") in paths
    assert not {"runs", "test", "n", "."} & relative
    assert {"me/model", "s3://b/x", "owner/name", "o/t"} <= set(names)


@pytest.mark.parametrize("code", ["../../secret", "/etc/passwd", "..", "", ".", "a\\b", "a\nb", "de/../en"])
def test_a_language_is_the_name_of_a_file(code: str) -> None:
    with refuses(ConfigError, "task.languages", "language code"):
        in_language("xquad/{language}.json", code, key="task.languages")


def test_languages_are_put_into_file_names() -> None:
    assert in_language("x/{language}.json", "zh-Hant", key="k") == "x/zh-Hant.json"
    assert in_language("x/all.json", "anything/at all", key="k") == "x/all.json"

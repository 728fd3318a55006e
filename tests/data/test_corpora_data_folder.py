from __future__ import annotations

import lzma
import os
from pathlib import Path
from typing import Any

import datasets
import pytest
from fakes.texts import by_noun
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.data.corpora.data_folder import DataFolderCorpus
from lmtransfer.data.documents import Corpus, Document
from lmtransfer.errors import DataError

needs_data = pytest.mark.skipif("LMTRANSFER_DATA" not in os.environ, reason="LMTRANSFER_DATA names no data folder")
FROM_THE_FOLDER = ["enwiki", "imdb_unsup", "novels", "fra", "deu", "spa", "wikitext2", "wikitext103"]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def shipped(name: str, data_root: Path | str | None, **changes: Any) -> Corpus:
    node = OmegaConf.merge(OmegaConf.load(conf_dir() / "corpus" / f"{name}.yaml"), changes)
    corpus = build(node, data_root=None if data_root is None else str(data_root), cache_dir=None)
    assert isinstance(corpus, Corpus)
    return corpus


def test_files_are_found_compressed(tmp_path: Path) -> None:
    (tmp_path / "imdb_unsup").mkdir()
    (tmp_path / "imdb_unsup" / "train.txt.xz").write_bytes(lzma.compress(b"One.\n\nTwo\x00.\n"))
    corpus = shipped("imdb_unsup", tmp_path)
    assert isinstance(corpus, DataFolderCorpus)
    assert [document.text for document in corpus.documents()] == ["One.", "Two."]
    assert by_noun(corpus.notes.counts, "NUL") == {"NUL": 1}
    assert corpus.fraction_read() == 1.0
    assert sorted(map(corpus.is_validation, corpus.documents())) == [False, True]
    assert corpus.fingerprint() != shipped("imdb_unsup", tmp_path, max_documents=1).fingerprint()


def test_the_hub_is_the_other_way(tmp_path: Path) -> None:
    splits = {"train": ["no"], "unsupervised": ["One.<br /><br />Two."]}
    made = {name: datasets.Dataset.from_dict({"text": rows}) for name, rows in splits.items()}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "hub")
    corpus = shipped("imdb_unsup", None, hub_dataset=str(tmp_path / "hub"))
    assert [document.text for document in corpus.documents()] == ["One.\nTwo."]


@pytest.mark.parametrize(("name", "with_root"), [*((name, True) for name in FROM_THE_FOLDER), ("enwiki", False)])
def test_a_missing_source_names_both_ways(tmp_path: Path, name: str, with_root: bool) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    with refuses(DataError, f"corpus={name}", "data_root", "LMTRANSFER_DATA", "train", "hub") as raised:
        list(shipped(name, root if with_root else None).documents())
    assert (str(root) in str(raised.value)) == with_root


def test_a_data_root_that_is_not_there_is_never_passed_over(tmp_path: Path) -> None:
    with refuses(DataError, f"data_root={tmp_path / 'typo'}", "LMTRANSFER_DATA"):
        shipped("imdb_unsup", tmp_path / "typo")


@pytest.mark.data
@needs_data
@pytest.mark.parametrize(
    ("name", "documents", "words"),
    [("imdb_unsup", 17_058, 3_999_202), ("novels", 5, 917_901), ("fra", 5, 631_735)],
)
def test_published_counts(name: str, documents: int, words: int) -> None:
    corpus = shipped(name, os.environ["LMTRANSFER_DATA"], split_unit="document")
    found = list(corpus.documents())
    assert len(found) == documents
    assert sum(len(document.text.split()) for document in found) == pytest.approx(words, rel=1e-3)


@pytest.mark.data
@needs_data
def test_a_cap_takes_the_first_part_of_wikipedia() -> None:
    corpus = shipped("enwiki", os.environ["LMTRANSFER_DATA"], max_words=200_000)
    words = [len(document.text.split()) for document in corpus.documents()]
    assert 200_000 <= sum(words) < 200_000 + max(words)


@pytest.mark.data
@needs_data
@pytest.mark.parametrize("name", ["valid", "test"])
def test_wikitext_articles_are_told_apart(name: str) -> None:
    # 60 articles each: Merity et al. 2016, table 1.
    corpus = DataFolderCorpus(
        name="eval",
        files=[f"wikitext2_eval/{name}.txt"],
        boundary="heading",
        data_root=os.environ["LMTRANSFER_DATA"],
    )
    assert len(list(corpus.documents())) == 60


@pytest.mark.data
@needs_data
def test_novels_hold_out_their_endings() -> None:
    corpus = shipped("novels", os.environ["LMTRANSFER_DATA"])
    sides: tuple[list[Document], list[Document]] = ([], [])
    for document in corpus.documents():
        sides[corpus.is_validation(document)].append(document)
    assert len(sides[0]) == len(sides[1]) == 5
    ratio = sum(len(document.text) for document in sides[1]) / sum(len(document.text) for document in sides[0])
    assert 0.03 < ratio < 0.06

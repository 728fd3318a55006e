"""Near-duplicates match brute force, evaluation texts match a plain loop, and the right documents are dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.texts import WordTokenizer, made_up_documents, write_text
from support.refusals import refuses

from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.documents import Document
from lmtransfer.data.screening import (
    EvaluationTexts,
    Findings,
    NearDuplicates,
    ScreenedCorpus,
    Screening,
    banding,
    jaccard,
    list_path,
    shingles,
    word_hashes,
)
from lmtransfer.data.token_cache import prepare
from lmtransfer.errors import ConfigError

WORDS = [f"word{number}" for number in range(400)]


@cache
def shingle_set(text: str, num_words: int) -> set[tuple[str, ...]]:
    """The definition, with tuples of words instead of hashes."""
    words = re.findall(r"\w+", text.casefold())
    if not words:
        return set()
    length = min(num_words, len(words))
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def similarity(one: str, other: str, num_words: int) -> float:
    first, second = shingle_set(one, num_words), shingle_set(other, num_words)
    return len(first & second) / len(first | second) if first | second else 0.0


def corpus_with_copies(count: int, *, seed: int) -> list[str]:
    """Random documents, a third of which are earlier documents with some words changed."""
    draw = np.random.default_rng(seed)
    documents: list[str] = []
    for _ in range(count):
        if documents and draw.random() < 0.35:
            words = documents[draw.integers(len(documents))].split()
            for place in draw.choice(len(words), int(draw.integers(0, 1 + len(words) // 12)), replace=False):
                words[place] = WORDS[draw.integers(len(WORDS))]
        else:
            words = draw.choice(WORDS, int(draw.integers(1, 90))).tolist()
        documents.append(" ".join(words))
    return documents


@pytest.mark.parametrize("num_words", [1, 3, 5])
def test_shingles_are_the_sets_of_the_definition(num_words: int) -> None:
    texts = [*corpus_with_copies(60, seed=1), "", "...", "One", "one!", "Two, two two\ntwo two two two"]
    hashed = [shingles(word_hashes(text), num_words) for text in texts]
    for one, text in zip(hashed, texts, strict=True):
        assert len(one) == len(shingle_set(text, num_words))
        assert (np.diff(one.astype(object)) > 0).all()
    for place, one in enumerate(hashed):
        for other in range(place):
            assert jaccard(one, hashed[other]) == similarity(texts[place], texts[other], num_words)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_bands_propose_a_pair_at_the_threshold_almost_surely(threshold: float) -> None:
    bands, length = banding(threshold)
    assert bands * length <= 128
    draw = np.random.default_rng(0)
    agrees = (draw.random((4000, bands, length)) < threshold).all(axis=2).any(axis=1)
    assert agrees.mean() > 0.98


class TestAgainstEvaluationTexts:
    TEXTS = {"a": ["the quick brown fox jumps over the lazy dog today", "too short"], "b": ["x " * 9, "too short too"]}  # noqa: RUF012

    def test_a_text_is_found_by_its_share_of_ngrams(self) -> None:
        index = EvaluationTexts(self.TEXTS, ngram_words=3, min_overlap=0.5)
        assert index.num_texts == {"a": 2, "b": 2}
        assert index.num_searched == {"a": 1, "b": 2}

        def found(text: str) -> list[str]:
            return [name for name, _ in index.find_in(shingles(word_hashes(text), 3))]

        assert found("He said: THE QUICK brown fox, jumps over a lazy dog.") == ["a"]  # 4 of 8 trigrams
        assert found("He said: the quick brown fox jumps across a lazy dog.") == []  # 3 of 8
        assert found("x x x y") == ["b"]
        assert found("too short too, and the quick brown fox jumps over") == ["a", "b"]
        assert found("") == []
        assert EvaluationTexts({}, ngram_words=3, min_overlap=0.5).find_in(shingles(word_hashes("a b c"), 3)) == []

    @pytest.mark.parametrize("min_overlap", [0.01, 0.4, 0.7, 1.0])
    def test_all_texts_are_found_that_a_loop_finds(self, min_overlap: float) -> None:
        documents = corpus_with_copies(80, seed=2)
        texts = {"one": documents[:20], "two": [" ".join(text.split()[5:40]) for text in documents[20:50]]}
        index = EvaluationTexts(texts, ngram_words=4, min_overlap=min_overlap)
        for document in documents:
            own = shingle_set(document, 4)
            expected = {
                (name, text)
                for name, of_set in texts.items()
                for text in of_set
                if len(text.split()) >= 4
                and len(shingle_set(text, 4) & own) >= min_overlap * len(shingle_set(text, 4)) - 1e-9
            }
            assert set(index.find_in(shingles(word_hashes(document), 4))) == expected


def text_corpus(path: Path, documents: list[str], **settings: Any) -> FileCorpus:
    return FileCorpus(path=str(write_text(path, documents)), **{"split_unit": "document", **settings})


def overlap_only(tmp_path: Path, **settings: Any) -> Screening:
    given = {"action": "drop", "min_jaccard": None, "cache_dir": tmp_path / "cache", **settings}
    return Screening(**given)


def test_documents_that_hold_evaluation_texts_are_dropped_or_only_told(tmp_path: Path) -> None:
    documents = made_up_documents(60)
    secret = "nobody has ever seen a green horse that sings so well at night"
    documents[7] += f" {secret.upper()}."
    documents[31] = f"{secret}!"
    corpus = text_corpus(tmp_path / "a.txt", documents, validation_fraction=0.2)
    texts = {"task dev": [secret, secret, "short one"], "task test": ["an entirely different text of as many words"]}
    dropped = ScreenedCorpus(corpus, overlap_only(tmp_path, overlap_with=texts))
    left = [document.text for document in dropped.documents()]
    assert left == [text for place, text in enumerate(documents) if place not in (7, 31)]
    assert sum(dropped.notes.counts.values()) == 2
    found = dropped.findings
    assert (found.documents, found.overlapping, found.near_duplicates, found.num_matches) == (60, 2, 0, 2)
    dev, test = found.overlaps["task dev"], found.overlaps["task test"]
    assert (dev.texts, dev.searched, dev.found, dev.documents) == (2, 1, 1, 2)
    assert (test.texts, test.searched, test.found, test.documents) == (1, 1, 0, 0)
    lines = [json.loads(line) for line in list_path(dropped.findings_folder).read_text().splitlines()]
    assert [line["holds"][0]["set"] for line in lines] == ["task dev"] * 2
    held_out = [corpus.is_validation(document) for document in corpus.documents()]
    assert [dropped.is_validation(document) for document in dropped.documents()] == [
        side for place, side in enumerate(held_out) if place not in (7, 31)
    ]

    told = ScreenedCorpus(corpus, overlap_only(tmp_path, overlap_with=texts, action="report"))
    assert [document.text for document in told.documents()] == documents
    assert told.findings == found
    assert told.fingerprint() == corpus.fingerprint() != dropped.fingerprint()


def test_findings_are_kept_and_follow_text_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = made_up_documents(30)
    corpus = text_corpus(tmp_path / "a.txt", documents)
    settings = {"overlap_with": {"x": [documents[3]]}}

    def fingerprints(source: FileCorpus) -> set[str]:
        changes: list[dict[str, Any]] = [
            *({}, {"ngram_words": 5}, {"min_overlap": 0.9}, {"overlap_with": {"x": [documents[4]]}}),
            *({"overlap_with": {"x": [documents[3]], "y": [documents[4]]}},),
        ]
        return {ScreenedCorpus(source, overlap_only(tmp_path, **settings | one)).fingerprint() for one in changes}

    first = ScreenedCorpus(corpus, overlap_only(tmp_path, **settings))
    assert first.findings.num_matches == 1
    assert len(fingerprints(corpus) | fingerprints(text_corpus(tmp_path / "b.txt", documents[1:]))) == 10
    stores = [prepare(first, WordTokenizer(), cache_dir=tmp_path / name, num_workers=0) for name in ("one", "two")]
    assert stores[0].train.num_tokens == stores[1].train.num_tokens
    monkeypatch.setattr(Screening, "scan", lambda *_: pytest.fail("screened again"))
    again = ScreenedCorpus(corpus, overlap_only(tmp_path, **settings))
    assert again.findings == first.findings
    assert prepare(again, WordTokenizer(), cache_dir=tmp_path / "one", num_workers=0).from_cache


def test_a_screening_that_stops_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = text_corpus(tmp_path / "a.txt", made_up_documents(30))
    screened = ScreenedCorpus(corpus, overlap_only(tmp_path, overlap_with={"x": ["a b c d e f g h i"]}))
    read = FileCorpus.documents

    def cut(self: FileCorpus) -> Iterator[Document]:
        yield next(read(self))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileCorpus, "documents", cut)
        with pytest.raises(KeyboardInterrupt):
            _ = screened.findings
    assert [path for path in (tmp_path / "cache/screening").iterdir() if path.suffix != ".lock"] == []
    assert screened.findings.documents == 30


def test_a_screening_for_nothing_is_refused(tmp_path: Path) -> None:
    with refuses(ConfigError, "screening.min_jaccard=null", "screening.overlap_with"):
        overlap_only(tmp_path)


def test_a_package_that_is_not_there_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtransfer.system.optional.find_spec", lambda _: None)
    with refuses(ConfigError, "datasketch", "lmtransfer[duplicates]"):
        NearDuplicates(tmp_path, threshold=0.8)


@pytest.mark.extras
class TestNearDuplicates:
    """Tests that need the signatures of datasketch."""

    def found(
        self, texts: list[str], folder: Path, *, threshold: float, num_words: int
    ) -> dict[int, tuple[int, float]]:
        near = NearDuplicates(folder, threshold=threshold)
        for text in texts:
            near.add(shingles(word_hashes(text), num_words))
        return {one.document: (one.original, one.similarity) for one in near.find()}

    def expected(self, texts: list[str], *, threshold: float, num_words: int) -> dict[int, tuple[int, float]]:
        """Brute force over all pairs: the first earlier document that remains and is similar enough."""
        found: dict[int, tuple[int, float]] = {}
        for place, text in enumerate(texts):
            for other in range(place):
                alike = similarity(text, texts[other], num_words)
                if other not in found and alike >= threshold:
                    found[place] = (other, alike)
                    break
        return found

    @pytest.mark.parametrize(("threshold", "num_words"), [(0.3, 1), (0.5, 3), (0.8, 3), (1.0, 1)])
    def test_they_are_those_of_all_pairs(self, threshold: float, num_words: int, tmp_path: Path) -> None:
        texts = [*corpus_with_copies(300, seed=3), "", "!!", "", "alone"]
        found = self.found(texts, tmp_path, threshold=threshold, num_words=num_words)
        expected = self.expected(texts, threshold=threshold, num_words=num_words)
        assert len(expected) > 30
        for place, (other, alike) in found.items():  # no false positives, and exact similarities
            assert alike == similarity(texts[place], texts[other], num_words) >= threshold
            assert other < place
            assert other not in found
        missed = expected.keys() - found.keys()
        assert len(missed) <= 0.01 * len(expected)  # the recall that the bands guarantee
        assert len(found.keys() - expected.keys()) <= len(missed)

    def test_a_pair_of_known_similarity_is_found_up_to_it(self, tmp_path: Path) -> None:
        words = [f"w{number}" for number in range(100)]
        one, other = " ".join(words), " ".join([*words[:99], "changed"])
        assert similarity(one, other, 5) == 95 / 97
        assert similarity(one, other, 1) == 99 / 101
        for threshold, is_found in ((95 / 97, True), (0.98, False)):
            (tmp_path / str(threshold)).mkdir()
            found = self.found([one, other], tmp_path / str(threshold), threshold=threshold, num_words=5)
            assert found == ({1: (0, 95 / 97)} if is_found else {})

    def test_the_first_of_a_group_remains_and_a_chain_is_not_followed(self, tmp_path: Path) -> None:
        words = [f"w{number}" for number in range(100)]
        chain = [" ".join(words[start : start + 60]) for start in (0, 8, 16)]  # neighbors: 52 of 68 words in common
        found = self.found([*chain, chain[0], chain[2].upper()], tmp_path, threshold=0.7, num_words=1)
        assert found == {1: (0, 52 / 68), 3: (0, 1.0), 4: (2, 1.0)}

    def test_what_holds_an_evaluation_text_takes_no_other_document_with_it(self, tmp_path: Path) -> None:
        words = [f"w{number}" for number in range(100)]
        secret = " ".join(words[90:])
        documents = [" ".join(words), " ".join(words[:92]), " ".join([*words[:91], "x"])]
        corpus = text_corpus(tmp_path / "a.txt", [*documents, *made_up_documents(30)], validation_fraction=0)
        settings = {"action": "drop", "overlap_with": {"x": [secret]}, "cache_dir": tmp_path / "cache"}
        screened = ScreenedCorpus(corpus, Screening(**settings))
        left = [document.text for document in screened.documents()]
        assert documents[0] not in left
        assert documents[1] in left  # similar only to the first
        assert documents[2] not in left  # similar to the second, which remains
        assert (screened.findings.overlapping, screened.findings.near_duplicates) == (1, 1)

    def test_two_screenings_of_one_corpus_leave_the_same_store(self, tmp_path: Path) -> None:
        documents = [text for text in corpus_with_copies(300, seed=4) if len(text.split()) > 5]
        corpus = text_corpus(tmp_path / "a.txt", documents, validation_fraction=0.1)
        results = []
        for name, workers in (("one", 0), ("two", 2)):
            cache = tmp_path / name
            screened = ScreenedCorpus(corpus, Screening(action="drop", shingle_words=3, cache_dir=cache))
            prepared = prepare(screened, WordTokenizer(), cache_dir=cache, num_workers=workers)
            findings = Findings.read(screened.findings_folder)
            assert 30 < findings.near_duplicates == len(documents) - prepared.statistics.documents
            assert 0 < findings.across_split < findings.near_duplicates
            assert not (screened.findings_folder / "spool").exists()
            results.append((prepared.train.tokens(0, prepared.train.num_tokens).tolist(), findings))
        assert results[0] == results[1]

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from fakes.texts import write_store
from support.refusals import refuses

from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import DataError


def documents(count: int, seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, 60_000, int(rng.integers(1, 9))) for _ in range(int(rng.integers(1, 5)))] for _ in range(count)
    ]


@pytest.mark.parametrize("shard_documents", [1, 7, 1000])
def test_any_range_across_shards(tmp_path: Path, shard_documents: int) -> None:
    source = documents(40)
    flat = np.concatenate([sentence for document in source for sentence in document])
    store = write_store(tmp_path / "s", source, vocab_size=60_000, shard_documents=shard_documents)
    assert store.num_tokens == len(flat)
    rng = np.random.default_rng(1)
    ranges = [(0, len(flat)), (3, 3), (len(flat), len(flat)), *np.sort(rng.integers(0, len(flat) + 1, (300, 2)))]
    for start, stop in ranges:
        tokens = store.tokens(int(start), int(stop))
        assert tokens.dtype == np.int32
        np.testing.assert_array_equal(tokens, flat[start:stop])
    for start, stop in [(-1, 3), (0, len(flat) + 1), (5, 4)]:
        with pytest.raises(IndexError):
            store.tokens(start, stop)


def test_sentences_and_documents_are_where_they_were(tmp_path: Path) -> None:
    source = documents(23)
    store = write_store(tmp_path / "s", source, vocab_size=60_000, shard_documents=5)
    assert store.num_documents == 23
    assert store.sentence_starts.dtype == store.document_starts.dtype == np.int64
    assert len(store.sentence_starts) == store.num_sentences + 1
    assert len(store.document_starts) == store.num_documents + 1
    for number, document in enumerate(source):
        first, last = store.document_starts[number : number + 2]
        assert last - first == len(document)
        for index, sentence in zip(range(first, last), document, strict=True):
            start, stop = store.sentence_starts[index : index + 2]
            np.testing.assert_array_equal(store.tokens(start, stop), sentence)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_two_bytes_a_token_where_the_vocabulary_fits(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    store = write_store(tmp_path / "s", [[[0, vocab_size - 1]]], vocab_size=vocab_size)
    assert np.load(tmp_path / "s" / "shard-00000" / "tokens.npy").dtype == dtype
    assert store.tokens(0, 2).tolist() == [0, vocab_size - 1]


def test_a_store_may_be_empty(tmp_path: Path) -> None:
    empty = write_store(tmp_path / "e", [], vocab_size=10)
    assert (empty.num_documents, empty.num_sentences, empty.num_tokens) == (0, 0, 0)
    assert empty.sentence_starts.tolist() == empty.document_starts.tolist() == [0]
    assert empty.tokens(0, 0).tolist() == []


def test_it_travels_to_another_process_as_its_folder(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", documents(200), vocab_size=60_000)
    sent = pickle.dumps(store)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).tokens(0, 50), store.tokens(0, 50))


def test_what_is_torn_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_store(folder, documents(9), vocab_size=60_000, shard_documents=3)
    tokens = folder / "shard-00001" / "tokens.npy"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with refuses(DataError, f"{tokens}: ", f"{len(whole)} bytes", f"{len(whole) - 2} bytes"):
        TokenStore.open(folder)
    tokens.unlink()
    with refuses(DataError, f"{tokens}: ", f"{len(whole)} bytes", "file"):
        TokenStore.open(folder)
    tokens.write_bytes(whole)
    TokenStore.open(folder)
    (folder / "manifest.json").unlink()
    with refuses(DataError, f"{folder}: ", "manifest.json", "prepare"):
        TokenStore.open(folder)

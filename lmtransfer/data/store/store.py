"""A tokenised corpus on disk: memory-mapped shards with sentence and document boundaries.

A store is a folder::

    manifest.json           sizes and hashes of everything below; written last
    sentence_starts.npy     int64 (num_sentences + 1,): global index of each sentence's first token
    document_starts.npy     int64 (num_documents + 1,): global index of each document's first sentence
    shard-00000/tokens.npy  uint16 where the vocabulary fits, else uint32
    shard-00000/sentence_lengths.npy, document_lengths.npy    uint32: tokens a sentence, sentences a document

Nothing of it is read into memory before it is asked for, so opening a store of any size takes the same memory. There
are no special tokens inside: rows add them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

import numpy as np

from lmtransfer.data.store.shards import Shard, describe, load_array, write_shard, write_starts
from lmtransfer.errors import DataError
from lmtransfer.system.durable import file_hash, write_json

STORE_FORMAT = 1
_INDEX_FILES = ("sentence_starts.npy", "document_starts.npy")


class TokenStore:
    """A tokenised corpus, opened from its folder with ``TokenStore.open``.

    It can be sent to another process, which opens the folder again.

    Attributes:
        folder: where it lies.
        num_documents, num_sentences, num_tokens: what it holds.
        sentence_starts: int64, shape (num_sentences + 1,): global index of each sentence's first token; the last
            entry is ``num_tokens``. Memory-mapped.
        document_starts: int64, shape (num_documents + 1,): global index of each document's first sentence; the last
            entry is ``num_sentences``. Memory-mapped.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.folder = folder
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_sentences = sum(shard.num_sentences for shard in shards)
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.sentence_starts = load_array(folder / "sentence_starts.npy")
        self.document_starts = load_array(folder / "document_starts.npy")
        self._shards = list(shards)
        self._starts = list(accumulate((shard.num_tokens for shard in shards), initial=0))
        self._tokens: dict[int, np.ndarray] = {}

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a complete store.

        Raises:
            DataError: the folder holds no complete store, or one that has been changed since it was written.
        """
        folder = Path(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise DataError(f"{folder}: no complete token store here (manifest.json is missing); run `prepare` again")
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest.get("format") != STORE_FORMAT:
            raise DataError(
                f"{folder}: a token store of format {manifest.get('format')}, this version reads format "
                f"{STORE_FORMAT}; delete the folder and run `prepare` again"
            )
        shards = [Shard(**{**entry, "files": _pairs(entry["files"])}) for entry in manifest["shards"]]
        for name, (size, _) in _all_files(shards, _pairs(manifest["index"])):
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                found = f"{file.stat().st_size} bytes" if file.is_file() else "no file"
                raise DataError(f"{file}: expected {size} bytes, found {found}; delete {folder} and prepare it again")
        return cls(folder, shards)

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenStore.open, (self.folder,)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Token ids of the global range [start, stop), int32, shape (stop - start,), across shards.

        Raises:
            IndexError: the range lies outside the store.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) of a store of {self.num_tokens} tokens")
        index = bisect_right(self._starts, start, hi=len(self._shards)) - 1
        pieces = []
        while start < stop:
            first = self._starts[index]
            end = min(stop, self._starts[index + 1])
            pieces.append(self._shard_tokens(index)[start - first : end - first])
            start, index = end, index + 1
        if len(pieces) == 1:
            return pieces[0].astype(np.int32)
        return np.concatenate([np.zeros(0, np.int32), *pieces]).astype(np.int32, copy=False)

    def _shard_tokens(self, index: int) -> np.ndarray:
        if index not in self._tokens:
            self._tokens[index] = load_array(self.folder / self._shards[index].name / "tokens.npy")
        return self._tokens[index]

    def verify(self) -> None:
        """Read every byte and compare it with the manifest's digests.

        Raises:
            DataError: a file differs from what was written.
        """
        manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        for name, (_, digest) in _all_files(self._shards, _pairs(manifest["index"])):
            if file_hash(self.folder / name) != digest:
                raise DataError(f"{self.folder / name}: damaged (its digest differs from manifest.json); prepare again")


def _pairs(files: dict[str, list[object]]) -> dict[str, tuple[int, str]]:
    return {name: (int(str(size)), str(digest)) for name, (size, digest) in files.items()}


def _all_files(shards: Sequence[Shard], index: dict[str, tuple[int, str]]) -> Iterable[tuple[str, tuple[int, str]]]:
    yield from index.items()
    for shard in shards:
        for name, entry in shard.files.items():
            yield f"{shard.name}/{name}", entry


def finish_store(folder: Path, shards: Sequence[Shard]) -> TokenStore:
    """Write the global index and the manifest over shards that lie in ``folder``, and open the store."""
    folder.mkdir(parents=True, exist_ok=True)
    write_starts(
        folder / "sentence_starts.npy", folder, shards, "sentence_lengths.npy", sum(s.num_sentences for s in shards)
    )
    write_starts(
        folder / "document_starts.npy", folder, shards, "document_lengths.npy", sum(s.num_documents for s in shards)
    )
    write_json(
        folder / "manifest.json",
        {
            "format": STORE_FORMAT,
            "index": describe(folder, _INDEX_FILES),
            "shards": [asdict(shard) for shard in shards],
        },
    )
    return TokenStore.open(folder)


def write_store(
    folder: Path,
    documents: Iterable[Sequence[Sequence[int] | np.ndarray]],
    *,
    vocab_size: int,
    shard_documents: int = 1000,
) -> TokenStore:
    """Write documents that are tokenised already, each a sequence of sentences, each a sequence of token ids.

    Empty sentences and documents without any token are left out.

    Args:
        folder: where the store goes.
        documents: the documents, in order.
        vocab_size: decides between 16 and 32 bits a token.
        shard_documents: documents a shard.
    """
    shards: list[Shard] = []
    block: list[list[np.ndarray]] = []

    def flush() -> None:
        sentences = [sentence for document in block for sentence in document]
        shards.append(
            write_shard(
                folder / f"shard-{len(shards):05d}",
                tokens=np.concatenate(sentences),
                sentence_lengths=np.array([len(sentence) for sentence in sentences]),
                document_lengths=np.array([len(document) for document in block]),
                vocab_size=vocab_size,
            )
        )
        block.clear()

    for document in documents:
        sentences = [np.asarray(sentence, dtype=np.int64) for sentence in document if len(sentence)]
        if sentences:
            block.append(sentences)
        if len(block) == shard_documents:
            flush()
    if block:
        flush()
    return finish_store(folder, shards)

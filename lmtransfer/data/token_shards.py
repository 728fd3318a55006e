"""The token store: a tokenized corpus in memory-mapped shards, mixtures of stores, and the statistics of a corpus."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from lmtransfer.data.corpora.mixture import Sampling
from lmtransfer.errors import DataError
from lmtransfer.system.durable import file_hash, reserve, staged_folder, write_json

STORE_FORMAT = 1
_SHARD_FILES = ("tokens.npy", "sentence_lengths.npy", "document_lengths.npy")
_INDEX_FILES = ("sentence_starts.npy", "document_starts.npy")


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's entry in the manifest; ``files`` has the size in bytes and the digest of each file."""

    name: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    files: dict[str, tuple[int, str]]


def _load_array(path: Path) -> np.ndarray:
    """Return a memory-mapped array, as a plain ndarray (indexing the memmap subclass is several times slower)."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _describe(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    return {name: ((folder / name).stat().st_size, file_hash(folder / name)) for name in names}


def write_shard(
    folder: Path,
    *,
    tokens: np.ndarray,
    sentence_lengths: np.ndarray,
    document_lengths: np.ndarray,
    vocab_size: int,
) -> Shard:
    """Write one shard; if the process is killed, ``folder`` is either complete or absent.

    Args:
        sentence_lengths: number of tokens in each sentence, at least 1, shape (num_sentences,).
        document_lengths: number of sentences in each document, at least 1, shape (num_documents,).
        vocab_size: size of the vocabulary; decides between 16 and 32 bits per token.
    """
    with staged_folder(folder) as staged:
        np.save(staged / "tokens.npy", tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32))
        np.save(staged / "sentence_lengths.npy", sentence_lengths.astype(np.uint32))
        np.save(staged / "document_lengths.npy", document_lengths.astype(np.uint32))
        files = _describe(staged, _SHARD_FILES)
    return Shard(folder.name, len(document_lengths), len(sentence_lengths), len(tokens), files)


def _write_starts(path: Path, folder: Path, shards: Sequence[Shard], lengths_name: str, total: int) -> None:
    """Write the cumulative sums of the shards' lengths as one int64 array, one shard at a time."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(total + 1,))
    reserve(path)
    out[0] = 0
    position = 0
    for shard in shards:
        lengths = _load_array(folder / shard.name / lengths_name)
        out[position + 1 : position + 1 + len(lengths)] = out[position] + np.cumsum(lengths, dtype=np.int64)
        position += len(lengths)
    out.flush()


class TokenStore:
    """A tokenized corpus, opened from its folder with ``TokenStore.open``.

    It can be pickled; the other process reopens the folder.

    Attributes:
        sentence_starts: int64, shape (num_sentences + 1,): global index of each sentence's first token; the last entry
            is ``num_tokens``. Memory-mapped.
        document_starts: int64, shape (num_documents + 1,): global index of each document's first sentence; the last
            entry is ``num_sentences``. Memory-mapped.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.folder = folder
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_sentences = sum(shard.num_sentences for shard in shards)
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.sentence_starts = _load_array(folder / "sentence_starts.npy")
        self.document_starts = _load_array(folder / "document_starts.npy")
        self._shards = list(shards)
        self._starts = list(accumulate((shard.num_tokens for shard in shards), initial=0))
        self._tokens: dict[int, np.ndarray] = {}

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a complete store; raises DataError if files are missing or have changed."""
        folder = Path(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise DataError(
                f"{folder}: there is no complete token store (manifest.json is missing); run `prepare` again"
            )
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest.get("format") != STORE_FORMAT:
            raise DataError(
                f"{folder}: the token store has format {manifest.get('format')}, but this version reads format "
                f"{STORE_FORMAT}; delete the folder and run `prepare` again"
            )
        shards = TypeAdapter(list[Shard]).validate_python(manifest["shards"])
        files = dict(manifest["index"])
        for shard in shards:
            files |= {f"{shard.name}/{name}": entry for name, entry in shard.files.items()}
        for name, (size, _) in files.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                actual = f"{file.stat().st_size} bytes" if file.is_file() else "no file"
                raise DataError(
                    f"{file}: expected {size} bytes, found {actual}; delete {folder} and run `prepare` again"
                )
        return cls(folder, shards)

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenStore.open, (self.folder,)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the token ids of the global range [start, stop), int32, shape (stop - start,), across shards."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are outside a store of {self.num_tokens} tokens")
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
            self._tokens[index] = _load_array(self.folder / self._shards[index].name / "tokens.npy")
        return self._tokens[index]


def finish_store(folder: Path, shards: Sequence[Shard]) -> TokenStore:
    """Write the global index and the manifest for the shards in ``folder``, and open the store."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_starts(
        folder / "sentence_starts.npy", folder, shards, "sentence_lengths.npy", sum(s.num_sentences for s in shards)
    )
    _write_starts(
        folder / "document_starts.npy", folder, shards, "document_lengths.npy", sum(s.num_documents for s in shards)
    )
    write_json(
        folder / "manifest.json",
        {
            "format": STORE_FORMAT,
            "index": _describe(folder, _INDEX_FILES),
            "shards": [asdict(shard) for shard in shards],
        },
    )
    return TokenStore.open(folder)


@dataclass(frozen=True, slots=True)
class MixedStore:
    """The tokens of several corpora, each in its own store; can be pickled."""

    parts: Mapping[str, TokenStore]
    sampling: Sampling

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all parts together."""
        return sum(store.num_tokens for store in self.parts.values())

    @property
    def num_documents(self) -> int:
        """Number of documents in all parts together."""
        return sum(store.num_documents for store in self.parts.values())

    def amounts(self) -> dict[str, float]:
        """Return the number of tokens that each part contributes to an epoch, before rounding to rows."""
        return self.sampling.amounts(self._sizes)

    def proportions(self) -> dict[str, float]:
        """Return the sampling proportion of each part: its share of the tokens of an epoch."""
        if not self.sampling.has_caps:
            return self.sampling.shares(self._sizes)
        amounts = self.amounts()
        total = sum(amounts.values())
        return {name: amount / total for name, amount in amounts.items()}

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: store.num_tokens for name, store in self.parts.items()}


@dataclass(slots=True)
class CorpusStatistics:
    """Counts over a whole prepared corpus, training and validation together unless the name says otherwise.

    Attributes:
        documents: documents with text, duplicates included; with ``split_unit=paragraphs`` the beginning and the ending
            of a document count as two documents.
        sentences: sentences (see ``lmtransfer.data.corpora.sentences``) with at least one token.
        words: sequences of characters between white space.
        tokens: tokens of the tokenizer, without special tokens.
        seconds: wall-clock time of the preparation, excluding interrupted attempts.
    """

    documents: int = 0
    validation_documents: int = 0
    duplicate_documents: int = 0
    sentences: int = 0
    words: int = 0
    tokens: int = 0
    validation_words: int = 0
    validation_tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    longest_sentence_tokens: int = 0
    seconds: float = 0.0
    notes: dict[str, dict[str, int | str]] = field(default_factory=dict)

    @property
    def unknown_rate(self) -> float:
        """Share of the tokens that are the unknown token, 0 to 1."""
        return self.unknown_tokens / self.tokens if self.tokens else 0.0

    def add(self, other: CorpusStatistics) -> None:
        """Add the counts of another part of the same corpus."""
        for name in (item.name for item in fields(self) if item.name != "notes"):
            combine = max if name == "longest_sentence_tokens" else int.__add__ if name != "seconds" else float.__add__
            setattr(self, name, combine(getattr(self, name), getattr(other, name)))

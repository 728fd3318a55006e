"""The files of a token store: arrays of one shard, the index over all of them, sizes and digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmtransfer.system.durable import file_hash, reserve, staged_folder

SHARD_FILES = ("tokens.npy", "sentence_lengths.npy", "document_lengths.npy")


@dataclass(frozen=True, slots=True)
class Shard:
    """What the manifest says of one shard.

    Attributes:
        name: its folder's name.
        num_documents, num_sentences, num_tokens: what it holds.
        files: size in bytes and digest of each file, by name.
    """

    name: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    files: dict[str, tuple[int, str]]


def load_array(path: Path) -> np.ndarray:
    """A memory-mapped array, as a plain ndarray (indexing the memmap subclass is several times slower)."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def describe(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Size in bytes and digest of files in ``folder``, by name."""
    return {name: ((folder / name).stat().st_size, file_hash(folder / name)) for name in names}


def write_shard(
    folder: Path,
    *,
    tokens: np.ndarray,
    sentence_lengths: np.ndarray,
    document_lengths: np.ndarray,
    vocab_size: int,
) -> Shard:
    """Write one shard; ``folder`` is complete or absent, whenever the process is killed.

    Args:
        folder: the shard's own folder.
        tokens: token ids, shape (num_tokens,).
        sentence_lengths: tokens of each sentence, shape (num_sentences,); none may be 0.
        document_lengths: sentences of each document, shape (num_documents,); none may be 0.
        vocab_size: decides between 16 and 32 bits a token.
    """
    with staged_folder(folder) as staged:
        np.save(staged / "tokens.npy", tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32))
        np.save(staged / "sentence_lengths.npy", sentence_lengths.astype(np.uint32))
        np.save(staged / "document_lengths.npy", document_lengths.astype(np.uint32))
        files = describe(staged, SHARD_FILES)
    return Shard(folder.name, len(document_lengths), len(sentence_lengths), len(tokens), files)


def write_starts(path: Path, folder: Path, shards: Sequence[Shard], lengths_name: str, total: int) -> None:
    """Write running sums of the shards' lengths as one int64 array, a shard at a time."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(total + 1,))
    reserve(path)
    out[0] = 0
    position = 0
    for shard in shards:
        lengths = load_array(folder / shard.name / lengths_name)
        out[position + 1 : position + 1 + len(lengths)] = out[position] + np.cumsum(lengths, dtype=np.int64)
        position += len(lengths)
    out.flush()

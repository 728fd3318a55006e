"""A tokenizer of hashed words, made-up text, stores of given tokens, and notes by their noun, for tests of corpora."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from lmtransfer.data.token_shards import Shard, TokenStore, finish_store, write_shard
from lmtransfer.tokenizers.base import Encoding, Tokenizer

_WORDS = [
    a + b + c for a in ("ba", "ke", "mo", "tri") for b in ("l", "st", "nd", "r") for c in ("a", "en", "ow", "ish")
]

_T = TypeVar("_T")


def by_noun(notes: Mapping[str, _T], *nouns: str) -> dict[str, _T]:
    """Notes by the one of ``nouns`` that their kind has, whatever words stand around it; others by their kind."""
    found = {next((noun for noun in nouns if noun in kind), kind): value for kind, value in notes.items()}
    assert len(found) == len(notes), f"two kinds have one noun: {list(notes)}"
    return found


class WordTokenizer:
    """Each word is the hash of its characters; the word ``zzz`` is unknown."""

    num_pieces = 500
    cls_id, sep_id, mask_id, unk_id = 1, 2, 3, 0

    def __init__(self, vocab_size: int = 512) -> None:
        self.vocab_size = vocab_size
        self.fingerprint = f"words-{vocab_size}"
        self.is_special = np.arange(vocab_size) < 4
        self.starts_word = np.ones(vocab_size, dtype=bool)

    def encode(self, text: str) -> Encoding:
        raise NotImplementedError

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([self.word_id(word) for word in text.split()], dtype=np.int32) for text in texts]

    encode_flat = Tokenizer.encode_flat

    def word_id(self, word: str) -> int:
        return self.unk_id if word == "zzz" else 4 + zlib.crc32(word.encode()) % (self.vocab_size - 4)

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def piece(self, token_id: int) -> str:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def made_up_documents(count: int, *, seed: int = 0, words: int = 60) -> list[str]:
    """Different documents of a few paragraphs of a few sentences each."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        paragraphs = []
        for _ in range(int(rng.integers(1, 4))):
            sentences = []
            for _ in range(int(rng.integers(1, 4))):
                drawn = [_WORDS[i] for i in rng.integers(0, len(_WORDS), int(rng.integers(3, max(4, words // 4))))]
                sentences.append(" ".join(drawn).capitalize() + ".")
            paragraphs.append(" ".join(sentences))
        documents.append("\n".join(paragraphs))
    return documents


def write_text(path: Path, documents: Sequence[str]) -> Path:
    """Documents into a text file, a blank line between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def write_store(
    folder: Path,
    documents: Iterable[Sequence[Sequence[int] | np.ndarray]],
    *,
    vocab_size: int,
    shard_documents: int = 1000,
) -> TokenStore:
    """Write documents that are tokenised already, each a sequence of sentences, each a sequence of token ids.

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
        block.append([np.asarray(sentence, dtype=np.int64) for sentence in document])
        if len(block) == shard_documents:
            flush()
    if block:
        flush()
    return finish_store(folder, shards)

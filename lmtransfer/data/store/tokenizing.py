"""The work of a worker process: it tokenizes a block of documents into a training and a validation shard."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.corpora.split import text_hash
from lmtransfer.data.documents import Corpus
from lmtransfer.data.store.statistics import CorpusStatistics
from lmtransfer.data.store.store import Shard, write_shard
from lmtransfer.system.durable import staged_folder, write_json
from lmtransfer.tokenizers.base import Tokenizer

SIDES = ("train", "validation")
BLOCK_CHARACTERS = 1 << 21
_DOCUMENT_COST = 64
_BATCH_SENTENCES = 2048


@dataclass(slots=True)
class DocumentBlock:
    """Consecutive documents, cut by size only, so that blocks do not depend on the number of workers.

    Attributes:
        index: the block's number, from 0.
        texts: the documents' texts.
        held_out: whether each document belongs to validation.
    """

    index: int
    texts: list[str] = field(default_factory=list)
    held_out: list[bool] = field(default_factory=list)

    def digest(self) -> str:
        """Return a hex digest of the block's texts and their split."""
        digest = blake2b(digest_size=16)
        for text, held_out in zip(self.texts, self.held_out, strict=True):
            data = text.encode()
            digest.update(b"%d %d " % (len(data), held_out) + data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The record of a complete block.

    Attributes:
        digest: digest of the block's texts.
        statistics: counts over the block.
        shards: the block's shards, by ``train`` and ``validation``; a part without text has no shard.
    """

    digest: str
    statistics: CorpusStatistics
    shards: dict[str, Shard]

    def write(self, path: Path) -> None:
        """Write the record; its existence means that the block is complete."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> BlockRecord | None:
        """Read a record; None if the file is missing."""
        if not path.is_file():
            return None
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shards = {
            side: Shard(**{**shard, "files": {name: (size, digest) for name, (size, digest) in shard["files"].items()}})
            for side, shard in value["shards"].items()
        }
        return cls(value["digest"], CorpusStatistics(**value["statistics"]), shards)


def record_path(folder: Path, index: int) -> Path:
    """Return the path of the record of block ``index`` of the corpus in ``folder``."""
    return folder / "blocks" / f"{index:05d}.json"


def hashes_path(folder: Path, index: int) -> Path:
    """Return the path of the hashes of block ``index``'s texts, uint64."""
    return folder / "blocks" / f"{index:05d}.hashes" / "hashes.npy"


def blocks(corpus: Corpus) -> Iterator[DocumentBlock]:
    """Yield the documents of a corpus in blocks of about ``BLOCK_CHARACTERS`` characters."""
    block, size = DocumentBlock(0), 0
    for document in corpus.documents():
        block.texts.append(document.text)
        block.held_out.append(corpus.is_validation(document))
        size += len(document.text) + _DOCUMENT_COST
        if size >= BLOCK_CHARACTERS:
            yield block
            block, size = DocumentBlock(block.index + 1), 0
    if block.texts:
        yield block


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the non-empty sentences of ``texts`` as token ids, and the number of sentences in each text."""
    sentences: list[str] = []
    counts = np.zeros(len(texts), dtype=np.int64)
    encoded: list[np.ndarray] = []
    owners: list[int] = []

    def flush() -> None:
        for owner, ids in zip(owners, tokenizer.encode_ids(sentences), strict=True):
            if len(ids):
                encoded.append(ids)
                counts[owner] += 1
        sentences.clear()
        owners.clear()

    for owner, text in enumerate(texts):
        in_document = False
        for start, stop in sentence_spans(text):
            sentence = text[start:stop].strip()
            # A leading space marks the continuation of a text (see ``Tokenizer``), but not after full-width marks.
            continues = in_document and sentence != "" and (text[start].isspace() or text[start - 1].isspace())
            sentences.append(" " + sentence if continues else sentence)
            owners.append(owner)
            in_document = in_document or sentence != ""
        if len(sentences) >= _BATCH_SENTENCES:
            flush()
    flush()
    return encoded, counts


def tokenize_block(block: DocumentBlock, folder: Path, tokenizer: Tokenizer) -> BlockRecord:
    """Tokenize a block and write its shards and its record to the corpus's folder.

    Args:
        folder: the corpus's folder.
        tokenizer: turns each sentence into ids.
    """
    statistics = CorpusStatistics()
    shards: dict[str, Shard] = {}
    for side in SIDES:
        texts = [
            text for text, held_out in zip(block.texts, block.held_out, strict=True) if held_out == (side == SIDES[1])
        ]
        encoded, counts = _encode(texts, tokenizer)
        part = CorpusStatistics(
            documents=int(np.count_nonzero(counts)),
            words=sum(len(text.split()) for text in texts),
            text_bytes=sum(len(text.encode()) for text in texts),
        )
        if encoded:
            tokens = np.concatenate(encoded)
            lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
            part.sentences, part.tokens = len(encoded), len(tokens)
            part.unknown_tokens = int(np.count_nonzero(tokens == tokenizer.unk_id))
            part.longest_sentence_tokens = int(lengths.max())
            shards[side] = write_shard(
                folder / side / f"shard-{block.index:05d}",
                tokens=tokens,
                sentence_lengths=lengths,
                document_lengths=counts[counts > 0],
                vocab_size=tokenizer.vocab_size,
            )
        if side == SIDES[1]:
            part.validation_documents, part.validation_tokens = part.documents, part.tokens
            part.validation_words = part.words
        statistics.add(part)
    hashes = np.array([text_hash(text) for text in block.texts], dtype=np.uint64)
    with staged_folder(hashes_path(folder, block.index).parent) as staged:
        np.save(staged / "hashes.npy", hashes)
    record = BlockRecord(block.digest(), statistics, shards)
    record.write(record_path(folder, block.index))
    return record


_worker_tokenizer: Tokenizer | None = None


def set_up_worker(pickled_tokenizer: bytes) -> None:
    """Give a worker process its tokenizer."""
    global _worker_tokenizer
    _worker_tokenizer = pickle.loads(pickled_tokenizer)


def work(block: DocumentBlock, folder: Path) -> BlockRecord:
    """Call ``tokenize_block`` inside a worker process."""
    assert _worker_tokenizer is not None
    return tokenize_block(block, folder, _worker_tokenizer)

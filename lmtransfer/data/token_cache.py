"""The cache of tokenized corpora and trained tokenizers, whose keys depend on the content.

The key of a prepared corpus is a hash of four things: the content of its sources, the settings that select documents,
the tokenizer, and the format version. Names and dates alone never decide whether an entry is up to date. The work is
cut into blocks of documents. Each block is either complete or absent, so that an interrupted preparation resumes with
the missing blocks. The result does not depend on the number of processes.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import pickle
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import TypeAdapter

from lmtransfer.data.corpora.corpus import text_hash
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.documents import Corpus, with_file_names, without_file_names
from lmtransfer.data.token_shards import (
    STORE_FORMAT,
    CorpusStatistics,
    MixedStore,
    Shard,
    TokenStore,
    finish_store,
    write_shard,
)
from lmtransfer.errors import DataError
from lmtransfer.system.durable import remove, staged_folder, write_json
from lmtransfer.system.machine import default_cache_dir, naming
from lmtransfer.system.workers import default_num_workers, workers
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.tokenizers.trainers import TokenizerTrainer

CACHE_FORMAT = 3  # increase when the same text and tokenizer would produce different sentences, blocks or statistics
SIDES = ("train", "validation")
BLOCK_CHARACTERS = 1 << 21
_DOCUMENT_COST = 64
_BATCH_SENTENCES = 2048
_HASHES_AT_ONCE = 1 << 22
#: Seconds that a process waits for another before it prints a message, and between its attempts.
_PATIENCE, _PAUSE = 3.0, 0.05
_OTHER_FOLDER = "set cache_dir= or LMTRANSFER_CACHE to a folder"


@dataclass(slots=True)
class DocumentBlock:
    """Consecutive documents, cut by size only, so that blocks do not depend on the number of workers."""

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
    """The record of a complete block; ``shards`` has the shard of each split (none for a split without text)."""

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
        return TypeAdapter(BlockRecord).validate_json(path.read_bytes())


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


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of ``texts``, the lengths of their sentences with tokens, and the sentences of each text."""
    sentences: list[str] = []
    owners: list[int] = []
    counts = np.zeros(len(texts), dtype=np.int64)
    tokens: list[np.ndarray] = []
    lengths: list[np.ndarray] = []

    def flush() -> None:
        batch_tokens, batch_lengths = tokenizer.encode_flat(sentences)
        has_tokens = batch_lengths > 0
        np.add.at(counts, np.array(owners, dtype=np.int64)[has_tokens], 1)
        tokens.append(batch_tokens)
        lengths.append(batch_lengths[has_tokens])
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
    return np.concatenate(tokens), np.concatenate(lengths), counts


def tokenize_block(block: DocumentBlock, folder: Path, tokenizer: Tokenizer) -> BlockRecord:
    """Tokenize a block and write its shards and its record to the corpus's folder."""
    statistics = CorpusStatistics()
    shards: dict[str, Shard] = {}
    for side in SIDES:
        texts = [
            text for text, held_out in zip(block.texts, block.held_out, strict=True) if held_out == (side == SIDES[1])
        ]
        tokens, lengths, counts = _encode(texts, tokenizer)
        part = CorpusStatistics(
            documents=int(np.count_nonzero(counts)),
            words=sum(len(text.split()) for text in texts),
            text_bytes=sum(len(text.encode()) for text in texts),
        )
        if len(tokens):
            part.sentences, part.tokens = len(lengths), len(tokens)
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


@dataclass(frozen=True, slots=True)
class PreparationProgress:
    """Progress of the preparation; ``fraction`` is the share of the source read so far, None if unknown."""

    documents: int
    tokens: int
    fraction: float | None
    num_reused_blocks: int


def fill(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    num_workers: int,
    on_progress: Callable[[PreparationProgress], None] | None,
) -> CorpusStatistics:
    """Complete the preparation of a corpus: missing blocks, then both token stores; return the statistics."""
    start = time.monotonic()
    for staged in chain.from_iterable((folder / part).glob(".*.tmp") for part in (*SIDES, "blocks", "")):
        remove(staged)
    (folder / "blocks").mkdir(parents=True, exist_ok=True)
    total = CorpusStatistics()
    records: list[BlockRecord] = []
    num_reused = 0
    with closing(_records(folder, blocks(corpus), corpus, tokenizer, num_workers)) as block_records:
        for record, was_reused in block_records:
            records.append(record)
            total.add(record.statistics)
            num_reused += was_reused
            if on_progress:
                on_progress(PreparationProgress(total.documents, total.tokens, corpus.fraction_read(), num_reused))
    if total.tokens == 0:
        raise no_text_error(corpus)
    for side in SIDES:
        finish_store(folder / side, [record.shards[side] for record in records if side in record.shards])
    total.duplicate_documents = _count_duplicates([hashes_path(folder, index) for index in range(len(records))])
    total.seconds = round(time.monotonic() - start, 2)
    total.notes = corpus.notes.as_dict()
    return total


@dataclass(frozen=True, slots=True)
class ShareOfBlocks:
    """Which blocks of a corpus a job prepares: those whose index, modulo ``num_jobs``, is ``job``."""

    job: int
    num_jobs: int

    @classmethod
    def of(cls, text: str) -> ShareOfBlocks:
        """Read a share such as ``3/16``: the third of sixteen jobs."""
        job, num_jobs = (int(number) for number in text.split("/"))
        return cls(job - 1, num_jobs)

    def __contains__(self, block: DocumentBlock) -> bool:
        return block.index % self.num_jobs == self.job


@dataclass(frozen=True, slots=True)
class PreparedShare:
    """The numbers of blocks that a job prepared, of those already complete before, and of all blocks in the corpus."""

    num_own: int
    num_reused: int
    num_blocks: int


def prepare_share(
    corpus: Corpus,
    tokenizer: Tokenizer,
    share: ShareOfBlocks,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int | None = None,
    on_progress: Callable[[PreparationProgress], None] | None = None,
) -> PreparedShare:
    """Tokenize one job's blocks of a corpus; ``prepare`` joins the blocks of all jobs, and tokenizes missing ones.

    Jobs with different shares can run at the same time, on one machine or on several with a shared ``cache_dir``.
    """
    if isinstance(corpus, MixtureCorpus):
        parts = [
            prepare_share(part, tokenizer, share, cache_dir=cache_dir, num_workers=num_workers, on_progress=on_progress)
            for part in corpus.parts.values()
        ]
        return PreparedShare(
            sum(part.num_own for part in parts),
            sum(part.num_reused for part in parts),
            sum(part.num_blocks for part in parts),
        )
    folder = _corpus_folder(corpus, corpus.fingerprint(), tokenizer, _cache_root(cache_dir))
    num_blocks, num_own, num_reused, total = 0, 0, 0, CorpusStatistics()

    def own_blocks() -> Iterator[DocumentBlock]:
        nonlocal num_blocks
        for block in blocks(corpus):
            num_blocks += 1
            if block in share:
                yield block

    workers = default_num_workers() if num_workers is None else num_workers
    with lock_folder(folder, share=f"{share.job + 1}-of-{share.num_jobs}"):
        (folder / "blocks").mkdir(parents=True, exist_ok=True)
        with closing(_records(folder, own_blocks(), corpus, tokenizer, workers)) as block_records:
            for record, was_reused in block_records:
                num_own, num_reused = num_own + 1, num_reused + was_reused
                total.add(record.statistics)
                if on_progress:
                    on_progress(PreparationProgress(total.documents, total.tokens, corpus.fraction_read(), num_reused))
    return PreparedShare(num_own, num_reused, num_blocks)


def no_text_error(corpus: Corpus) -> DataError:
    """Return the error for a corpus without text, naming its files, if any."""
    files = list(corpus.files)
    among = f"{', '.join(files[:3])}{f' and {len(files) - 3} more' if len(files) > 3 else ''}"
    where = f" ({among} {'is' if len(files) == 1 else 'are'} empty or blank)" if files else ""
    return DataError(f"corpus={corpus.name}: there is no text in it{where}; use a corpus with text")


def _records(
    folder: Path, source: Iterator[DocumentBlock], corpus: Corpus, tokenizer: Tokenizer, num_workers: int
) -> Generator[tuple[BlockRecord, bool]]:
    """Yield the record of each block in order, and whether it already existed; at most a few blocks are in memory.

    Closing the generator ends the worker processes.
    """
    head = list(islice(source, 2))
    source = chain(head, source)
    if num_workers <= 1 or len(head) < 2:  # starting processes takes longer than tokenizing one block
        for block in source:
            record = _earlier_record(folder, block)
            yield record or tokenize_block(block, folder, tokenizer), record is not None
        return
    pending: deque[tuple[Future[BlockRecord] | BlockRecord, bool]] = deque()
    try:
        with workers(num_workers, set_up_worker, pickle.dumps(tokenizer)) as pool:
            for block in source:
                record = _earlier_record(folder, block)
                pending.append((record or pool.submit(work, block, folder), record is not None))
                if len(pending) > num_workers + 1:
                    yield _wait(*pending.popleft())
            while pending:
                yield _wait(*pending.popleft())
    except BrokenProcessPool:
        raise DataError(
            f"corpus={corpus.name}: a worker process was killed, probably because memory ran out; run again with fewer "
            f"workers (num_workers is now {num_workers}). Completed work is kept"
        ) from None


def _wait(result: Future[BlockRecord] | BlockRecord, was_reused: bool) -> tuple[BlockRecord, bool]:
    return (result.result() if isinstance(result, Future) else result), was_reused


def _earlier_record(folder: Path, block: DocumentBlock) -> BlockRecord | None:
    """Return the record of a block from an earlier preparation, if its files are complete and its texts unchanged."""
    record = BlockRecord.read(record_path(folder, block.index))
    if record is None or record.digest != block.digest() or not hashes_path(folder, block.index).is_file():
        return None
    for side, shard in record.shards.items():
        for name, (size, _) in shard.files.items():
            file = folder / side / shard.name / name
            if not file.is_file() or file.stat().st_size != size:
                return None
    return record


def _count_duplicates(paths: list[Path]) -> int:
    """Return the number of repeated hashes, with about ``_HASHES_AT_ONCE`` hashes in memory at a time."""
    arrays = [np.load(path, mmap_mode="r") for path in paths]
    passes = max(1, -(-sum(map(len, arrays)) // _HASHES_AT_ONCE))
    duplicates = 0
    for number in range(passes):
        hashes = np.concatenate([array[array % np.uint64(passes) == number] for array in arrays])
        duplicates += len(hashes) - len(np.unique(hashes))
    return duplicates


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A tokenized corpus.

    Attributes:
        validation: the held-out part; may be empty.
        folder: the corpus's folder; for a mixture, the parent of the parts' folders.
        parts: the prepared corpora of a mixture, keyed by name; empty for a single corpus.
    """

    train: TokenStore | MixedStore
    validation: TokenStore | MixedStore
    statistics: CorpusStatistics
    folder: Path
    from_cache: bool
    parts: Mapping[str, PreparedCorpus] = field(default_factory=dict)


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int | None = None,
    on_progress: Callable[[PreparationProgress], None] | None = None,
    min_tokens: int = 1,
) -> PreparedCorpus:
    """Tokenize a corpus, or read it from the cache; each part of a mixture is cached separately.

    ``num_workers`` counts processes (0 and 1: this one only; None: one per core); the result does not depend on it. A
    training part with fewer than ``min_tokens`` (one row of the model that will read it) raises a DataError.
    """
    cache_dir = _cache_root(cache_dir)
    if isinstance(corpus, MixtureCorpus):
        parts = {
            name: prepare(
                part,
                tokenizer,
                cache_dir=cache_dir,
                num_workers=num_workers,
                on_progress=on_progress,
                min_tokens=min_tokens,
            )
            for name, part in corpus.parts.items()
        }
        return _mix(corpus, parts, cache_dir / "corpora")
    fingerprint = corpus.fingerprint()
    folder = _corpus_folder(corpus, fingerprint, tokenizer, cache_dir)

    def make() -> None:
        workers = default_num_workers() if num_workers is None else num_workers
        statistics = fill(folder, corpus, tokenizer, workers, on_progress)
        write_json(
            folder / "manifest.json",
            {
                "format": CACHE_FORMAT,
                "corpus": corpus.name,
                "corpus_fingerprint": fingerprint,
                "tokenizer_fingerprint": tokenizer.fingerprint,
                "vocab_size": tokenizer.vocab_size,
                "statistics": {**asdict(statistics), "notes": without_file_names(statistics.notes, corpus.files)},
            },
        )

    is_new = make_once(folder, make, last_file="manifest.json")
    prepared = _open(folder, corpus, from_cache=not is_new)
    if prepared.train.num_tokens < min_tokens:
        raise DataError(
            f"corpus={corpus.name}: its training part has {prepared.train.num_tokens} tokens, but one row needs "
            f"{min_tokens}; use more text or shorter rows"
        )
    return prepared


def _cache_root(cache_dir: str | Path | None) -> Path:
    return default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().resolve()


def _corpus_folder(corpus: Corpus, fingerprint: str, tokenizer: Tokenizer, cache_dir: Path) -> Path:
    """Return the folder of a tokenized corpus in the cache."""
    return cache_dir / "corpora" / f"{_slug(corpus.name)}-{_key(fingerprint, tokenizer.fingerprint)}"


def _mix(corpus: MixtureCorpus, parts: Mapping[str, PreparedCorpus], folder: Path) -> PreparedCorpus:
    train = {name: cast(TokenStore, part.train) for name, part in parts.items()}
    held_out = {name: cast(TokenStore, part.validation) for name, part in parts.items() if part.validation.num_tokens}
    statistics = CorpusStatistics()
    for name, part in parts.items():
        statistics.add(part.statistics)
        notes = part.statistics.notes.items()
        statistics.notes |= {f"{name}: {kind}": note for kind, note in notes}
    return PreparedCorpus(
        train=MixedStore(train, corpus.sampling),
        validation=MixedStore(held_out, corpus.sampling),
        statistics=statistics,
        folder=folder,
        from_cache=all(part.from_cache for part in parts.values()),
        parts=dict(parts),
    )


def tokenizer_for(corpus: Corpus, trainer: TokenizerTrainer, *, cache_dir: str | Path | None = None) -> Tokenizer:
    """Return the tokenizer that ``trainer`` trains on a corpus's training documents, new or from the cache."""
    folder = (
        _cache_root(cache_dir)
        / "tokenizers"
        / f"{_slug(corpus.name)}-{_key(corpus.fingerprint(), trainer.fingerprint)}"
    )

    def make() -> None:
        with staged_folder(folder) as staged:
            trainer.train(_require_text(corpus.training_lines(), corpus), staged)

    make_once(folder, make)
    return load_tokenizer(folder)


def _require_text(lines: Iterator[str], corpus: Corpus) -> Iterator[str]:
    """Yield the lines, after checking that at least one of them has text."""
    blank: list[str] = []
    for line in lines:
        if line and not line.isspace():
            return chain(blank, [line], lines)
        blank = [line]
    raise no_text_error(corpus)


def _key(*parts: str) -> str:
    settings = [CACHE_FORMAT, STORE_FORMAT, BLOCK_CHARACTERS, *parts]
    return blake2b(json.dumps(settings).encode(), digest_size=10).hexdigest()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:40] or "corpus"


def make_once(folder: Path, make: Callable[[], None], *, last_file: str = "") -> bool:
    """Make a folder of the cache unless it is complete, and return whether this process has made it.

    A complete folder is neither locked nor changed, so it may belong to another user or be on a read-only file system.

    Args:
        last_file: the file that ``make`` writes last; "" if the folder appears only once it is complete.
    """
    if (folder / last_file).exists():
        return False
    with lock_folder(folder):
        if (folder / last_file).exists():  # another process was faster
            return False
        make()
        return True


@contextmanager
def lock_folder(folder: Path, *, share: str = "") -> Iterator[None]:
    """Lock the folder; a second process prints a message, waits, and then finds the finished work.

    Args:
        share: name of the part of the work that is locked; "" for the whole folder.
    """
    try:
        with naming(folder), _wait_for_lock(folder, share):
            if not share:
                for staged in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):  # left by a killed process
                    remove(staged)
            yield
    except OSError as error:
        place = Path(str(error.filename))
        if not (place.is_relative_to(folder.parent) or place in folder.parents):
            raise  # the error concerns a source or the output, not the cache
        way = f"{_OTHER_FOLDER} that you may write to"
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            way = f"free some disk space, or {_OTHER_FOLDER} on another disk"
        raise DataError(
            f"cache_dir: cannot write {folder} ({error.strerror}): {way}. Completed work is kept"
        ) from error


@contextmanager
def _wait_for_lock(folder: Path, share: str) -> Iterator[None]:
    """Hold the lock of a share of the folder's work; or, for the whole, the folder's lock and those of all shares."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole = _lock(folder.with_name(f".{folder.name}.lock"), folder)
    with ExitStack() as held:
        if share:
            with whole:  # afterwards other shares may begin
                held.enter_context(_lock(folder.with_name(f".{folder.name}-{share}.lock"), folder))
        else:
            held.enter_context(whole)
            for path in sorted(folder.parent.glob(f".{glob.escape(folder.name)}-*.lock")):
                held.enter_context(_lock(path, folder))
        yield


@contextmanager
def _lock(path: Path, folder: Path) -> Iterator[None]:
    """Hold a lock file inside the block; the system releases the lock of a process that was killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    start, waits = time.monotonic(), False
    try:
        while not _is_locked(descriptor, folder):
            if not waits and time.monotonic() - start >= _PATIENCE:
                print(f"another process is preparing {folder}: waiting for it to finish", file=sys.stderr, flush=True)
                waits = True
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, folder: Path) -> bool:
    """Try to lock a file; return False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DataError(
            f"cache_dir: the file system of {folder.parent} has no file locks ({error.strerror}), without which two "
            f"processes could write the same files: {_OTHER_FOLDER} on a local disk"
        ) from error
    return True


def _open(folder: Path, corpus: Corpus, *, from_cache: bool) -> PreparedCorpus:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    statistics = CorpusStatistics(**manifest["statistics"])
    statistics.notes = corpus.left_out.as_dict() | with_file_names(statistics.notes, corpus.files)
    return PreparedCorpus(
        train=TokenStore.open(folder / "train"),
        validation=TokenStore.open(folder / "validation"),
        statistics=statistics,
        folder=folder,
        from_cache=from_cache,
    )

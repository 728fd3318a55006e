"""Corpora tokenised once and kept by content, and tokenizers trained once and kept the same way.

The key of a prepared corpus is a hash of the content of its sources, the settings that decide which documents come
out, the tokenizer, and the version of the format; nothing is ever taken for fresh by its name or its date alone. The
work is cut into blocks of documents, each of which becomes complete or stays absent, so that a prepare that was
killed goes on with the missing ones, and the result does not depend on how many processes worked on it.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from filelock import FileLock

from lmtransfer.data.documents import Corpus, Observed
from lmtransfer.data.durable import write_json
from lmtransfer.data.statistics import CorpusStatistics
from lmtransfer.data.store import STORE_FORMAT, TokenStore, finish_store
from lmtransfer.data.tokenising import (
    BLOCK_CHARACTERS,
    SIDES,
    Block,
    BlockRecord,
    blocks,
    hashes_path,
    record_path,
    start_worker,
    tokenise_block,
    work,
)
from lmtransfer.errors import DataError
from lmtransfer.tokenizers.base import Tokenizer

CACHE_FORMAT = 1  # to be raised whenever the same text and tokenizer would give other sentences, blocks or statistics
_HASHES_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prepare is.

    Attributes:
        documents, tokens: done so far.
        fraction: how much of the source has been read, 0 to 1; None where that is not known.
        blocks_kept: blocks that an interrupted earlier prepare had done.
    """

    documents: int
    tokens: int
    fraction: float | None
    blocks_kept: int


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A tokenised corpus.

    Attributes:
        train: its training part.
        validation: its held-out part; may be empty.
        statistics: counts over both.
        folder: where it lies.
        from_cache: whether it was there already.
    """

    train: TokenStore
    validation: TokenStore
    statistics: CorpusStatistics
    folder: Path
    from_cache: bool


def default_cache_dir() -> Path:
    """Where prepared corpora and tokenizers are kept: ``LMTRANSFER_CACHE``, or ``~/.cache/lmtransfer``."""
    return Path(os.environ.get("LMTRANSFER_CACHE") or "~/.cache/lmtransfer").expanduser()


def default_num_workers() -> int:
    """As many processes as this one may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    min_tokens: int = 1,
) -> PreparedCorpus:
    """Tokenise a corpus, or find it tokenised.

    Args:
        corpus: the documents.
        tokenizer: turns sentences into ids; must survive pickling, since worker processes get a copy.
        cache_dir: where prepared corpora are kept; None: see ``default_cache_dir``.
        num_workers: processes that tokenise; 0 and 1 work in this process; None: one a core. The result is the same.
        on_progress: called after each block.
        min_tokens: the training part must have at least so many tokens (one row of the model that will read it).

    Raises:
        DataError: the corpus is empty or too small, cannot be read, or the disk is full.
    """
    cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().resolve()
    fingerprint = corpus.fingerprint()
    folder = cache_dir / "corpora" / f"{_slug(corpus.name)}-{_key(fingerprint, tokenizer.fingerprint)}"
    with _writing(folder):
        from_cache = (folder / "manifest.json").is_file()
        if not from_cache:
            workers = default_num_workers() if num_workers is None else num_workers
            _fill(folder, corpus, fingerprint, tokenizer, workers, on_progress)
    prepared = _open(folder, from_cache)
    if prepared.train.num_tokens < min_tokens:
        raise DataError(
            f"corpus={corpus.name}: its training part has {prepared.train.num_tokens} tokens, and one row needs "
            f"{min_tokens}; give more text, or shorter rows"
        )
    return prepared


def _key(*parts: str) -> str:
    settings = [CACHE_FORMAT, STORE_FORMAT, BLOCK_CHARACTERS, *parts]
    return blake2b(json.dumps(settings).encode(), digest_size=10).hexdigest()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:40] or "corpus"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes (a second one waits and then finds the work done)."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise
        raise DataError(
            f"cache_dir: cannot write {folder} ({error.strerror}); make room, or set cache_dir= or LMTRANSFER_CACHE "
            "to another place. What is complete is kept"
        ) from error


def _open(folder: Path, from_cache: bool) -> PreparedCorpus:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return PreparedCorpus(
        train=TokenStore.open(folder / "train"),
        validation=TokenStore.open(folder / "validation"),
        statistics=CorpusStatistics(**manifest["statistics"]),
        folder=folder,
        from_cache=from_cache,
    )


def _fill(
    folder: Path,
    corpus: Corpus,
    fingerprint: str,
    tokenizer: Tokenizer,
    num_workers: int,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    """Do what is missing of a prepare, and end with the manifest."""
    started = time.monotonic()
    for staged in chain.from_iterable((folder / part).glob(".*.tmp") for part in (*SIDES, "blocks")):
        shutil.rmtree(staged) if staged.is_dir() else staged.unlink()
    (folder / "blocks").mkdir(parents=True, exist_ok=True)
    total = CorpusStatistics()
    records: list[BlockRecord] = []
    kept = 0
    for record, was_kept in _records(folder, corpus, tokenizer, num_workers):
        records.append(record)
        total.add(record.statistics)
        kept += was_kept
        if on_progress:
            fraction = corpus.fraction_read() if isinstance(corpus, Observed) else None
            on_progress(Progress(total.documents, total.tokens, fraction, kept))
    if total.tokens == 0:
        raise DataError(f"corpus={corpus.name}: there is no text in it")
    for side in SIDES:
        finish_store(folder / side, [record.shards[side] for record in records if side in record.shards])
    total.duplicate_documents = _count_duplicates([hashes_path(folder, index) for index in range(len(records))])
    total.seconds = round(time.monotonic() - started, 2)
    total.notes = corpus.notes.as_dict() if isinstance(corpus, Observed) else {}
    write_json(
        folder / "manifest.json",
        {
            "format": CACHE_FORMAT,
            "corpus": corpus.name,
            "corpus_fingerprint": fingerprint,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "statistics": total.as_dict(),
        },
    )


def _records(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, num_workers: int
) -> Iterator[tuple[BlockRecord, bool]]:
    """The record of each block in order, and whether it was there already; at most a few blocks are in memory."""
    source = blocks(corpus)
    head = list(islice(source, 2))
    source = chain(head, source)
    if num_workers <= 1 or len(head) < 2:  # starting processes takes longer than tokenising one block
        for block in source:
            found = _kept(folder, block)
            yield found or tokenise_block(block, folder, tokenizer), found is not None
        return
    pool = ProcessPoolExecutor(
        num_workers,
        mp_context=get_context("spawn"),
        initializer=start_worker,
        initargs=(pickle.dumps(tokenizer),),
    )
    pending: deque[tuple[Future[BlockRecord] | BlockRecord, bool]] = deque()
    try:
        for block in source:
            found = _kept(folder, block)
            pending.append((found or pool.submit(work, block, folder), found is not None))
            if len(pending) > num_workers + 1:
                yield _finished(*pending.popleft())
        while pending:
            yield _finished(*pending.popleft())
    except BrokenProcessPool:
        raise DataError(
            f"corpus={corpus.name}: a worker process was killed, probably for want of memory; run again with fewer "
            f"(num_workers, now {num_workers}). What is complete is kept"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(result: Future[BlockRecord] | BlockRecord, kept: bool) -> tuple[BlockRecord, bool]:
    return (result.result() if isinstance(result, Future) else result), kept


def _kept(folder: Path, block: Block) -> BlockRecord | None:
    """The record of a block that an earlier prepare has completed, if it is whole and of the same texts."""
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
    """How many hashes were met before, holding about ``_HASHES_AT_ONCE`` of them in memory."""
    arrays = [np.load(path, mmap_mode="r") for path in paths]
    passes = max(1, -(-sum(map(len, arrays)) // _HASHES_AT_ONCE))
    duplicates = 0
    for number in range(passes):
        hashes = np.concatenate([array[array % np.uint64(passes) == number] for array in arrays])
        duplicates += len(hashes) - len(np.unique(hashes))
    return duplicates

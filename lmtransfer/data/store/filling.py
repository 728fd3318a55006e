"""The parallel, block-by-block preparation of a corpus's folder, which resumes where an earlier attempt stopped."""

from __future__ import annotations

import pickle
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from lmtransfer.data.documents import Corpus
from lmtransfer.data.store.statistics import CorpusStatistics
from lmtransfer.data.store.store import finish_store
from lmtransfer.data.store.tokenizing import (
    SIDES,
    BlockRecord,
    DocumentBlock,
    blocks,
    hashes_path,
    record_path,
    set_up_worker,
    tokenize_block,
    work,
)
from lmtransfer.errors import DataError
from lmtransfer.system.workers import workers
from lmtransfer.tokenizers.base import Tokenizer

_HASHES_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class PreparationProgress:
    """Progress of the preparation.

    Attributes:
        documents, tokens: numbers processed so far.
        fraction: share of the source that has been read, 0 to 1; None if unknown.
        num_reused_blocks: number of blocks reused from an interrupted preparation.
    """

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
    """Complete the preparation of a corpus: missing blocks, then both token stores; return the statistics.

    Args:
        folder: the prepared corpus's folder.
        tokenizer: turns sentences into ids.
        num_workers: number of worker processes; 0 and 1 use this process only.
        on_progress: called after each block.

    Raises:
        DataError: there is no text, text cannot be read, or a worker was killed.
    """
    start = time.monotonic()
    for staged in chain.from_iterable((folder / part).glob(".*.tmp") for part in (*SIDES, "blocks", "")):
        shutil.rmtree(staged) if staged.is_dir() else staged.unlink()
    (folder / "blocks").mkdir(parents=True, exist_ok=True)
    total = CorpusStatistics()
    records: list[BlockRecord] = []
    num_reused = 0
    with closing(_records(folder, corpus, tokenizer, num_workers)) as block_records:  # closing ends the workers
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


def no_text_error(corpus: Corpus) -> DataError:
    """Return the error for a corpus without text, naming its files, if any."""
    files = list(corpus.files)
    among = f"{', '.join(files[:3])}{f' and {len(files) - 3} more' if len(files) > 3 else ''}"
    where = f" ({among} {'is' if len(files) == 1 else 'are'} empty or blank)" if files else ""
    return DataError(f"corpus={corpus.name}: there is no text in it{where}; use a corpus with text")


def _records(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, num_workers: int
) -> Generator[tuple[BlockRecord, bool]]:
    """Yield the record of each block in order, and whether it already existed; at most a few blocks are in memory."""
    source = blocks(corpus)
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

"""The cache of tokenized corpora and trained tokenizers, whose keys depend on the content.

The key of a prepared corpus is a hash of four things: the content of its sources, the settings that select documents,
the tokenizer, and the format version. Names and dates alone never decide whether an entry is up to date. The work is
cut into blocks of documents. Each block is either complete or absent, so that an interrupted preparation resumes with
the missing blocks. The result does not depend on the number of processes.
"""

from __future__ import annotations

import glob
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import cast

from filelock import FileLock, Timeout

from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus
from lmtransfer.data.store.filling import PreparationProgress, fill, no_text_error
from lmtransfer.data.store.statistics import CorpusStatistics
from lmtransfer.data.store.store import STORE_FORMAT, MixedStore, TokenStore
from lmtransfer.data.store.tokenizing import BLOCK_CHARACTERS
from lmtransfer.errors import DataError
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.durable import remove, staged_folder, write_json
from lmtransfer.system.machine import naming
from lmtransfer.system.workers import default_num_workers
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.tokenizers.trainer import TokenizerTrainer

#: Seconds that a process waits for another before it prints a message.
_PATIENCE = 3.0
CACHE_FORMAT = 2  # increase when the same text and tokenizer would produce different sentences, blocks or statistics


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A tokenized corpus.

    Attributes:
        train: the training part; a ``MixedStore`` for a mixture.
        validation: the held-out part; may be empty.
        statistics: counts over both parts.
        folder: the corpus's folder; for a mixture, the parent of the parts' folders.
        from_cache: whether it was already in the cache.
        parts: the prepared corpora of a mixture, by name; empty for a single corpus.
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

    Args:
        tokenizer: turns sentences into ids; must be picklable, because worker processes get a copy.
        cache_dir: folder of the cache; None for ``default_cache_dir``.
        num_workers: number of worker processes; 0 and 1 use this process only; None for one per core. The result does
            not depend on it.
        on_progress: called after each block.
        min_tokens: minimum number of tokens in the training part (one row of the model that will read it).

    Raises:
        DataError: the corpus is empty or too small or cannot be read, or the disk is full.
    """
    cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().resolve()
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
    folder = cache_dir / "corpora" / f"{_slug(corpus.name)}-{_key(fingerprint, tokenizer.fingerprint)}"
    with lock_folder(folder):
        from_cache = (folder / "manifest.json").is_file()
        if not from_cache:
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
                    "statistics": statistics.as_dict(),
                },
            )
    prepared = _open(folder, from_cache)
    if prepared.train.num_tokens < min_tokens:
        raise DataError(
            f"corpus={corpus.name}: its training part has {prepared.train.num_tokens} tokens, but one row needs "
            f"{min_tokens}; use more text or shorter rows"
        )
    return prepared


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
    """Return the tokenizer that ``trainer`` trains on a corpus's training documents, new or from the cache.

    Args:
        corpus: the documents; held-out documents are not used.
        trainer: the settings; draws its own seeded sample of the lines.
        cache_dir: folder of the cache; None for ``default_cache_dir``.
    """
    cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().resolve()
    folder = cache_dir / "tokenizers" / f"{_slug(corpus.name)}-{_key(corpus.fingerprint(), trainer.fingerprint)}"
    with lock_folder(folder):
        if not folder.is_dir():
            with staged_folder(folder) as staged:
                trainer.train(_require_text(corpus.training_lines(), corpus), staged)
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


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder; a second process prints a message, waits, and then finds the finished work."""
    try:
        with naming(folder), _wait_for_lock(folder):
            for staged in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):  # left by a killed process
                remove(staged)
            yield
    except OSError as error:
        place = Path(str(error.filename))
        if not (place.is_relative_to(folder.parent) or place in folder.parents):
            raise  # the error concerns a source or the output, not the cache
        raise DataError(
            f"cache_dir: cannot write {folder} ({error.strerror}); free some disk space, or set cache_dir= or "
            "LMTRANSFER_CACHE to another folder. Completed work is kept"
        ) from error


@contextmanager
def _wait_for_lock(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        print(f"another process is preparing {folder}: waiting until it ends", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _open(folder: Path, from_cache: bool) -> PreparedCorpus:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return PreparedCorpus(
        train=TokenStore.open(folder / "train"),
        validation=TokenStore.open(folder / "validation"),
        statistics=CorpusStatistics(**manifest["statistics"]),
        folder=folder,
        from_cache=from_cache,
    )

"""Corpora tokenised once and kept by content, and tokenizers trained once and kept the same way.

The key of a prepared corpus is a hash of the content of its sources, the settings that decide which documents come
out, the tokenizer, and the version of the format; nothing is ever taken for fresh by its name or its date alone. The
work is cut into blocks of documents, each of which becomes complete or stays absent, so that a prepare that was
killed goes on with the missing ones, and the result does not depend on how many processes worked on it.
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
from lmtransfer.data.store.filling import Progress, fill, no_text
from lmtransfer.data.store.statistics import CorpusStatistics
from lmtransfer.data.store.store import STORE_FORMAT, MixedStore, TokenStore
from lmtransfer.data.store.tokenising import BLOCK_CHARACTERS
from lmtransfer.errors import DataError
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.durable import remove, staged_folder, write_json
from lmtransfer.system.machine import naming
from lmtransfer.system.workers import default_num_workers
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.tokenizers.trainer import TokenizerTrainer

#: Seconds that a process waits for another one without saying so.
_PATIENCE = 3.0
CACHE_FORMAT = 1  # to be raised whenever the same text and tokenizer would give other sentences, blocks or statistics


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A tokenised corpus.

    Attributes:
        train: its training part; that of a mixture has parts.
        validation: its held-out part; may be empty.
        statistics: counts over both.
        folder: where it lies; of a mixture, the folder that the parts' own folders are in.
        from_cache: whether it was there already.
        parts: the corpora of a mixture, by name; empty for a single one.
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
    on_progress: Callable[[Progress], None] | None = None,
    min_tokens: int = 1,
) -> PreparedCorpus:
    """Tokenise a corpus, or find it tokenised; each part of a mixture is kept by itself.

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
        return _mixed(corpus, parts, cache_dir / "corpora")
    fingerprint = corpus.fingerprint()
    folder = cache_dir / "corpora" / f"{_slug(corpus.name)}-{_key(fingerprint, tokenizer.fingerprint)}"
    with writing(folder):
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
            f"corpus={corpus.name}: its training part has {prepared.train.num_tokens} tokens, and one row needs "
            f"{min_tokens}; give more text, or shorter rows"
        )
    return prepared


def _mixed(corpus: MixtureCorpus, parts: Mapping[str, PreparedCorpus], folder: Path) -> PreparedCorpus:
    train = {name: cast(TokenStore, part.train) for name, part in parts.items()}
    held_out = {name: cast(TokenStore, part.validation) for name, part in parts.items() if part.validation.num_tokens}
    statistics = CorpusStatistics()
    for name, part in parts.items():
        statistics.add(part.statistics)
        notes = part.statistics.notes.items()
        statistics.notes |= {f"{name}: {kind}": note for kind, note in notes}
    return PreparedCorpus(
        train=MixedStore(train, corpus.alpha),
        validation=MixedStore(held_out, corpus.alpha),
        statistics=statistics,
        folder=folder,
        from_cache=all(part.from_cache for part in parts.values()),
        parts=dict(parts),
    )


def tokenizer_for(corpus: Corpus, trainer: TokenizerTrainer, *, cache_dir: str | Path | None = None) -> Tokenizer:
    """The tokenizer that ``trainer`` makes of a corpus's training documents, trained now or found.

    Args:
        corpus: the documents; held-out ones are not looked at.
        trainer: draws its own seeded sample of the lines.
        cache_dir: where tokenizers are kept; None: see ``default_cache_dir``.

    Raises:
        DataError: the corpus has no text, or too little of it for the trainer's settings.
    """
    cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().resolve()
    folder = cache_dir / "tokenizers" / f"{_slug(corpus.name)}-{_key(corpus.fingerprint(), trainer.fingerprint)}"
    with writing(folder):
        if not folder.is_dir():
            with staged_folder(folder) as staged:
                trainer.train(_some(corpus.training_lines(), corpus), staged)
    return load_tokenizer(folder)


def _some(lines: Iterator[str], corpus: Corpus) -> Iterator[str]:
    """The lines, of which one at least has text.

    Raises:
        DataError: none has.
    """
    blank: list[str] = []
    for line in lines:
        if line and not line.isspace():
            return chain(blank, [line], lines)
        blank = [line]
    raise no_text(corpus)


def _key(*parts: str) -> str:
    settings = [CACHE_FORMAT, STORE_FORMAT, BLOCK_CHARACTERS, *parts]
    return blake2b(json.dumps(settings).encode(), digest_size=10).hexdigest()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:40] or "corpus"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes (a second one waits, says so, and then finds the work done)."""
    try:
        with naming(folder), _locked(folder):
            for staged in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):  # of a process that was killed
                remove(staged)
            yield
    except OSError as error:
        place = Path(str(error.filename))
        if not (place.is_relative_to(folder.parent) or place in folder.parents):
            raise  # of a source, or of what is shown
        raise DataError(
            f"cache_dir: cannot write {folder} ({error.strerror}); make room, or set cache_dir= or LMTRANSFER_CACHE "
            "to another place. What is complete is kept"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        print(f"another process is preparing {folder}: waiting for it to end", file=sys.stderr, flush=True)
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

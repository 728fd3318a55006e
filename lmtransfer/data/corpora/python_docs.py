"""The built-in corpus: the prose of the Python docstrings installed on every user's machine.

It contains the docstrings of the standard library and of seven libraries that lmtransfer depends on, so that
pretraining needs no download. Its downstream task is to classify docstrings by library. The modules of the task's dev
and test parts are not in the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.config.types import Folder, Name, Prob
from lmtransfer.data.corpora.corpus import BaseCorpus
from lmtransfer.data.corpora.docstrings import Docstring, DocstringSet, read_docstrings
from lmtransfer.data.corpora.libraries import BLANK, LIBRARIES, blank_names
from lmtransfer.data.corpora.split import text_hash
from lmtransfer.data.documents import Document, Notes
from lmtransfer.data.files import Meter
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.workers import default_num_workers

Split = Literal["train", "dev", "test"]

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
HELD_OUT: dict[Split, tuple[int, float]] = {"test": (200, 0.2), "dev": (120, 0.12)}  # documents, share of a library
MAX_MODULE_DOCUMENTS = 40
MIN_TASK_WORDS = 15  # shorter texts, such as "Return True if the two are equal.", do not reveal the library


class PythonDocs(BaseCorpus):
    """One document per docstring, ordered by module, without the modules of the task's dev and test parts.

    Args:
        name: short name, used in cache folders and messages.
        max_documents: see ``BaseCorpus``.
        max_words: see ``BaseCorpus``.
        validation_fraction: see ``BaseCorpus``.
        cache_dir: folder for the extracted docstrings; None for ``default_cache_dir``.

    Raises:
        ConfigError: a value is out of range.
        DataError: a library is missing; raised at the first read.
    """

    def __init__(
        self,
        *,
        name: Name = "python_docs",
        max_documents: int | None = None,
        max_words: int | None = None,
        validation_fraction: Prob = 0.01,
        cache_dir: Folder | Path | None = None,
    ) -> None:
        super().__init__(
            name=name,
            max_documents=max_documents,
            max_words=max_words,
            validation_fraction=validation_fraction,
            split_unit="document",
        )
        self.cache_dir = cache_dir

    @cached_property
    def _docstrings(self) -> DocstringSet:
        def on_progress(fraction: float) -> None:
            self._meter.done, self._meter.total = round(fraction * 1000), 1000

        return _read_all(self.cache_dir, on_progress)

    @cached_property
    def _pretraining(self) -> list[Docstring]:
        return pretraining_docstrings(self._docstrings.items)

    @override
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        read_notes = self._docstrings.notes
        for kind, count in read_notes.counts.items():
            notes.add(kind, read_notes.first[kind], count)
        meter.total = len(self._pretraining)
        for meter.done, item in enumerate(self._pretraining, start=1):
            yield Document(item.text, f"{item.module}:{item.name}" if item.name else item.module)

    @override
    def _content(self) -> dict[str, Any]:
        digest = blake2b(digest_size=16)
        for item in self._pretraining:
            digest.update(f"{item.text}\x00".encode())
        return {"docstrings": digest.hexdigest()}


def module_splits(docstrings: Iterable[Docstring]) -> dict[tuple[str, str], Split]:
    """Return the split of each module, by (library, module).

    In each library, modules are taken in the order of the hashes of their names. They go to the test part until it has
    200 documents (or 20 % of the library's), then to the dev part until it has 120 (12 %), then to the train part.
    Modules with more than 40 documents always go to the train part, because they would dominate a smaller part. Only
    documents that are long enough for the task are counted.
    """
    sizes: Counter[tuple[str, str]] = Counter()
    for item in docstrings:
        sizes[item.library, item.module] += len(item.text.split()) >= MIN_TASK_WORDS
    totals: Counter[str] = Counter()
    for (library, _), size in sizes.items():
        totals[library] += size
    splits: dict[tuple[str, str], Split] = {}
    held_out: Counter[tuple[str, Split]] = Counter()
    for library, module in sorted(sizes, key=lambda key: text_hash(" ".join(key))):
        size = sizes[library, module]
        splits[library, module] = "train"
        for split, (most, share) in HELD_OUT.items():
            if size <= MAX_MODULE_DOCUMENTS and held_out[library, split] < min(most, share * totals[library]):
                splits[library, module] = split
                held_out[library, split] += size
                break
    return splits


def pretraining_docstrings(docstrings: Sequence[Docstring]) -> list[Docstring]:
    """Return the train modules' docstrings, except those that a dev or test module has too (ignoring library names)."""
    splits = module_splits(docstrings)
    sides = [splits[item.library, item.module] for item in docstrings]
    held_out = {item.identity for side, item in zip(sides, docstrings, strict=True) if side != "train"}
    return [
        item for side, item in zip(sides, docstrings, strict=True) if side == "train" and item.identity not in held_out
    ]


def docstring_examples(*, max_per_library: int, cache_dir: str | Path | None = None) -> dict[Split, list[Docstring]]:
    """Return docstrings by split with library names blanked out, the same number for each library.

    A text that occurs in two libraries or in two splits is removed from all. A dev or test text is removed if at least
    half of its words are in paragraphs that also occur in train modules. If a library has too many texts, those with
    the smallest hashes are kept, so that the choice does not depend on any order.

    Args:
        max_per_library: maximum number of examples per library in a split.
        cache_dir: folder for the extracted docstrings; None for ``default_cache_dir``.

    Returns:
        Docstrings with their text on one line, ordered by library (as in ``LIBRARIES``) and hash.

    Raises:
        DataError: a library is missing.
    """
    items = _read_all(cache_dir).items
    splits = module_splits(items)
    owners: dict[int, set[tuple[str, Split]]] = {}
    for item in items:
        owners.setdefault(item.identity, set()).add((item.library, splits[item.library, item.module]))
    groups: dict[Split, dict[str, dict[int, Docstring]]] = {
        split: {library: {} for library in LIBRARIES} for split in SPLITS
    }
    train_paragraphs = {
        paragraph
        for item in items
        if splits[item.library, item.module] == "train"
        for paragraph in item.text.casefold().split("\n")
    }
    for item in items:
        split = splits[item.library, item.module]
        if len(owners[item.identity]) == 1 and (split == "train" or overlap_share(item.text, train_paragraphs) < 0.5):
            groups[split][item.library].setdefault(item.identity, item)
    return {
        split: _balance([_blank(members.values(), max_per_library) for members in group.values()])
        for split, group in groups.items()
    }


def overlap_share(text: str, paragraphs: Set[str]) -> float:
    """Return the share of a text's words whose paragraph is one of ``paragraphs``, which are case-folded."""
    own_paragraphs = text.casefold().split("\n")
    words = [len(paragraph.split()) for paragraph in own_paragraphs]
    return sum(n for n, paragraph in zip(words, own_paragraphs, strict=True) if paragraph in paragraphs) / sum(words)


def _blank(docstrings: Iterable[Docstring], most: int) -> list[Docstring]:
    """Return the first ``most`` docstrings by hash that have enough words, not counting blanks."""
    ordered = sorted(docstrings, key=lambda item: item.identity)
    texts = ((item, blank_names(item.text).split()) for item in ordered)
    enough = (
        replace(item, text=" ".join(words))
        for item, words in texts
        if len(words) - words.count(BLANK) >= MIN_TASK_WORDS
    )
    return list(islice(enough, most))


def _balance(groups: Sequence[list[Docstring]]) -> list[Docstring]:
    size = min(len(group) for group in groups)
    return [item for group in groups for item in group[:size]]


def _read_all(cache_dir: str | Path | None, on_progress: Callable[[float], None] | None = None) -> DocstringSet:
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    return read_docstrings(LIBRARIES, cache_dir=folder, num_workers=default_num_workers(), on_progress=on_progress)

"""Corpora that the `datasets` library can load: from the hub, from its cache when offline, or from a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmtransfer.data.corpora.corpus import BaseCorpus, SplitUnit
from lmtransfer.data.corpora.readers import as_document, join_lines
from lmtransfer.data.corpora.sources import source_digest
from lmtransfer.data.corpora.split import text_hash
from lmtransfer.data.documents import Document, Notes
from lmtransfer.data.files import Meter
from lmtransfer.errors import DataError

if TYPE_CHECKING:
    import datasets

_SAVED_MARKS = ("state.json", "dataset_dict.json")


class HubCorpus(BaseCorpus):
    """A data set from the Hugging Face hub, by name, or from a local folder.

    Offline, a data set that was loaded before is read from the cache of `datasets` (not with ``streaming``). A local
    folder can be used in place of a name: one written by ``save_to_disk``, or a copy of the hub repository.

    Args:
        dataset: name on the hub (``Salesforce/wikitext``) or a local folder.
        name: short name, part of cache folders and of messages.
        subset: the data set's configuration, if it has several.
        split: the split to read.
        validation_split: a split that is held out completely; None holds out ``validation_fraction`` of ``split``.
        revision: commit, tag or branch on the hub; None is the newest.
        streaming: read from the hub without a copy on disk.
        text_field: the column with the text.
        boundary: ``record``: a record is a document; ``heading``: a record is a line, and a document begins at a line
            ``= Title =``, as in WikiText.
        line_break: a mark for a line end, such as ``<br />``.
        max_documents: see ``BaseCorpus``.
        max_words: see ``BaseCorpus``.
        validation_fraction: see ``BaseCorpus``.
        split_unit: see ``BaseCorpus``.
        cache_dir: folder for cached digests of large source files; None computes the digests each time.

    Raises:
        ConfigError: a value out of its range.
        DataError: the data set cannot be loaded, or has no such column; raised at the first read.
    """

    def __init__(
        self,
        *,
        dataset: str,
        name: str,
        subset: str | None = None,
        split: str = "train",
        validation_split: str | None = None,
        revision: str | None = None,
        streaming: bool = False,
        text_field: str = "text",
        boundary: Literal["record", "heading"] = "record",
        line_break: str | None = None,
        max_documents: int | None = None,
        max_words: int | None = None,
        validation_fraction: float = 0.01,
        split_unit: SplitUnit = "document",
        cache_dir: str | Path | None = None,
    ) -> None:
        super().__init__(
            name=name,
            max_documents=max_documents,
            max_words=max_words,
            validation_fraction=validation_fraction,
            split_unit=split_unit,
        )
        folder = Path(dataset).expanduser()
        self.folder = folder.resolve() if folder.is_dir() else None
        self.dataset = dataset
        self.subset = subset
        self.split = split
        self.validation_split = validation_split
        self.revision = revision
        self.streaming = streaming
        self.text_field = text_field
        self.boundary = boundary
        self.line_break = line_break
        self._memo_folder = None if cache_dir is None else Path(cache_dir)

    @cached_property
    def _loaded(self) -> datasets.Dataset | datasets.IterableDataset:
        return self._load(self.split)

    @cached_property
    def _held_out(self) -> datasets.Dataset | datasets.IterableDataset | None:
        return None if self.validation_split is None else self._load(self.validation_split)

    def _load(self, split: str) -> datasets.Dataset | datasets.IterableDataset:
        from datasets import load_dataset, load_from_disk
        from datasets.exceptions import DatasetGenerationError

        try:
            if self.folder and any((self.folder / mark).is_file() for mark in _SAVED_MARKS):
                saved = load_from_disk(str(self.folder))
                loaded = saved[split] if isinstance(saved, dict) else saved
            else:
                loaded = load_dataset(
                    str(self.folder or self.dataset),
                    self.subset,
                    split=split,
                    revision=self.revision,
                    streaming=self.streaming,
                )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
            raise DataError(self._missing(f"{type(error).__name__}: {error}", split)) from None
        columns = loaded.column_names
        if columns is not None and self.text_field not in columns:
            names = ", ".join(columns)
            raise DataError(f"{self.dataset}: no column `{self.text_field}` (found: {names}); set corpus.text_field")
        return loaded

    def open(self) -> None:
        """Load the data set, so that a missing data set raises before any work.

        Raises:
            DataError: the data set cannot be loaded, or has no such column.
        """
        _ = self._loaded, self._held_out

    def _missing(self, reason: str, split: str) -> str:
        wanted = ", ".join(str(part) for part in (self.dataset, self.subset, split) if part)
        return (
            f"corpus={self.name}: the data set {wanted} cannot be loaded ({reason.strip()}).\nEither connect to a "
            "network once, so that `datasets` downloads it from the hub (then it works offline from the cache, "
            "HF_HOME),\nor set corpus.dataset=<folder> to a local copy (a clone of the hub repository, or the output "
            "of save_to_disk), or read plain files with corpus=text corpus.path=<files>."
        )

    def documents(self) -> Iterator[Document]:
        """The documents of ``split`` (capped, without copies of held-out ones), then those of ``validation_split``."""
        if self.validation_split is None:
            yield from super().documents()
            return
        held_out = {text_hash(document.text) for document in self._read_held_out(Notes())}
        for document in super().documents():
            if text_hash(document.text) in held_out:
                self.notes.add("training documents left out, copies of held-out ones", document.key)
            else:
                yield replace(document, held_out=False)
        for document in self._read_held_out(self.notes):
            yield replace(document, held_out=True)

    def _read_held_out(self, notes: Notes) -> Iterator[Document]:
        assert self._held_out is not None
        return self._read_records(self._held_out, f"{self.dataset}[{self.validation_split}]", notes, Meter())

    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        return self._read_records(self._loaded, f"{self.dataset}[{self.split}]", notes, meter)

    def _read_records(
        self, loaded: datasets.Dataset | datasets.IterableDataset, label: str, notes: Notes, meter: Meter
    ) -> Iterator[Document]:
        records = loaded.select_columns([self.text_field])
        meter.total = 0 if self.streaming else len(loaded)  # counted in records here

        def rows() -> Iterator[tuple[str, Any]]:
            for number, record in enumerate(records, start=1):
                meter.done = number
                yield f"{label}:row {number}", record[self.text_field]

        if self.boundary == "heading":
            yield from join_lines(((where, text or "") for where, text in rows()), "heading", notes)
            return
        for where, text in rows():
            document = as_document(text, where, notes, self.line_break)
            if document is not None:
                yield document

    def _content(self) -> dict[str, Any]:
        return {
            "source": self._source_digest(),
            "subset": self.subset,
            "split": self.split,
            "text_field": self.text_field,
            "boundary": self.boundary,
            "line_break": self.line_break,
            **({} if self.validation_split is None else {"validation_split": self.validation_split}),
        }

    def _source_digest(self) -> str:
        """Digest of the data set's files; with streaming from the hub, the name and the commit instead."""
        if self.folder:
            files = sorted(path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        elif self.streaming:
            return self._hub_commit()
        else:
            loaded = [self._loaded, *([] if self._held_out is None else [self._held_out])]
            files = [Path(file["filename"]) for part in loaded for file in part.cache_files]
        digest = blake2b(digest_size=16)
        for path in files:
            digest.update(f"{source_digest(path, self._memo_folder)}\n".encode())
        return digest.hexdigest()

    def _hub_commit(self) -> str:
        from huggingface_hub import HfApi

        self.open()  # raises a better message if the data set does not exist
        try:
            commit = HfApi().dataset_info(self.dataset, revision=self.revision).sha
        except Exception as error:  # the exceptions of a network failure depend on the HTTP library
            raise DataError(self._missing(f"{type(error).__name__}: {error}", self.split)) from error
        return f"{self.dataset}@{commit}"

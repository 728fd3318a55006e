"""Corpora in the data folder. Missing files are read from the hub instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from lmtransfer.config.types import DataFile, Folder, HubName, Name, Prob
from lmtransfer.data.corpora.corpus import FileCorpus, SplitUnit
from lmtransfer.data.corpora.hub import HubCorpus
from lmtransfer.data.corpora.text_files import Boundary
from lmtransfer.data.documents import Corpus, Document
from lmtransfer.data.files import EncodingErrors, find_file
from lmtransfer.errors import DataError


class DataFolderCorpus(Corpus):
    """A corpus in the data folder or, if files are missing there, on the hub.

    The hub is contacted only when the text is first needed. ``instead`` is advice that ends the error message if
    neither source works.

    Args:
        name: name of the folder in the cache.
        files: files or patterns below the data folder.
        boundary: what separates documents; see ``FileCorpus``.
        hub_dataset: name on the hub, or a folder with a copy of that repository; null: files only.
        hub_subset: configuration of the data set on the hub, if it has several.
        hub_split: split of the data set on the hub.
        hub_validation_split: split to hold out if the text comes from the hub; null, or text from the data folder: a
            part of the text is held out.
        hub_line_break: the mark that stands for a line break in the data set on the hub.
        encoding_errors: strict: stop at bytes that are not UTF-8, and name the line; replace: replace such bytes with
            U+FFFD and count them.
        max_documents: maximum number of documents, from the start of the corpus; null: all.
        max_words: maximum number of words, from the start of the corpus and extended to the end of a document; null:
            all.
        validation_fraction: share of the text held out for validation.
        split_unit: document: hold out whole documents, by hash; paragraphs: hold out the last paragraphs of each
            document, for few, long documents; auto: paragraphs below 20 documents.
    """

    def __init__(
        self,
        *,
        name: Name,
        files: list[DataFile],
        boundary: Boundary = "blank_line",
        hub_dataset: HubName | None = None,
        hub_subset: str | None = None,
        hub_split: str = "train",
        hub_validation_split: str | None = None,
        hub_line_break: str | None = None,
        instead: str = "",
        encoding_errors: EncodingErrors = "strict",
        max_documents: int | None = None,
        max_words: int | None = None,
        validation_fraction: Prob = 0.01,
        split_unit: SplitUnit = "document",
        data_root: Folder | Path | None = None,
        cache_dir: Folder | Path | None = None,
    ) -> None:
        self.name = name
        self._files = files
        self._instead = instead
        self._data_root = None if data_root is None else Path(data_root).expanduser().resolve()
        if self._data_root and not self._data_root.is_dir():
            raise DataError(f"data_root={data_root}: no such folder; correct data_root or LMTRANSFER_DATA")
        candidates = [find_file(self._data_root / file) for file in files] if self._data_root else []
        paths = [str(path) for path in candidates if path]
        self._source: FileCorpus | HubCorpus
        common: dict[str, Any] = {
            "name": name,
            "max_documents": max_documents,
            "max_words": max_words,
            "validation_fraction": validation_fraction,
            "split_unit": split_unit,
            "cache_dir": cache_dir,
        }
        if paths and len(paths) == len(files):
            self._source = FileCorpus(path=paths, boundary=boundary, encoding_errors=encoding_errors, **common)
        elif hub_dataset:
            self._source = HubCorpus(
                dataset=hub_dataset,
                subset=hub_subset,
                split=hub_split,
                validation_split=hub_validation_split,
                boundary="heading" if boundary == "heading" else "record",
                line_break=hub_line_break,
                **common,
            )
        else:
            raise DataError(self._missing("The hub has no copy of it."))
        self.notes, self.files = self._source.notes, self._source.files

    @override
    def fraction_read(self) -> float | None:
        return self._source.fraction_read()

    @override
    def documents(self) -> Iterator[Document]:
        return self._open_source.documents()

    @override
    def is_validation(self, document: Document) -> bool:
        return self._source.is_validation(document)

    @override
    def fingerprint(self) -> str:
        return self._open_source.fingerprint()

    @cached_property
    def _open_source(self) -> FileCorpus | HubCorpus:
        if isinstance(self._source, HubCorpus):
            try:
                self._source.open()
            except DataError as error:
                raise DataError(self._missing(f"The other source, the hub, failed: {error}")) from None
        return self._source

    def _missing(self, hub: str) -> str:
        search = f"they are not all in {self._data_root}" if self._data_root else "no data folder is set"
        text = (
            f"corpus={self.name}: the text was not found. Set data_root or LMTRANSFER_DATA to the folder that "
            f"contains {', '.join(self._files)}, plain or compressed ({search}). {hub}"
        )
        return f"{text} {self._instead}".rstrip()

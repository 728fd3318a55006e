"""The base class of corpora (limits, split, fingerprint), and the corpus of local files."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.config.types import Folder, Name, Prob, TextFormat
from lmtransfer.data.corpora.readers import Boundary, format_of, is_extracted, read_documents
from lmtransfer.data.corpora.sources import locate, source_digest
from lmtransfer.data.corpora.split import hash_threshold, split_ending, text_hash
from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.data.files import Meter
from lmtransfer.data.tables import delimiter_of
from lmtransfer.data.text_lines import EncodingErrors
from lmtransfer.errors import ConfigError

SplitUnit = Literal["auto", "document", "paragraphs"]

READER_VERSION = 1
FEW_DOCUMENTS = 20


class BaseCorpus(Corpus):
    """Caps, split and fingerprint for a source of documents.

    Args:
        name: short name, used in cache folders and messages.
        max_documents: maximum number of documents to read, from the start.
        max_words: number of words after which reading stops, at the end of a document.
        validation_fraction: share to hold out, from 0 (nothing) to below 1.
        split_unit: ``document``: the hash of a document's text decides its part, and each part has at least one
            document if there are two distinct documents. ``paragraphs``: the last paragraphs of each document are held
            out, about ``validation_fraction`` of it, for corpora of few, long documents. ``auto``: ``paragraphs`` if
            there are fewer than 20 documents, else ``document``.
    """

    def __init__(
        self,
        *,
        name: Name,
        max_documents: int | None,
        max_words: int | None,
        validation_fraction: Prob,
        split_unit: SplitUnit,
    ) -> None:
        problems = [
            f"corpus.{key}={value}: must be a whole number from 1, or null for no limit"
            for key, value in (("max_documents", max_documents), ("max_words", max_words))
            if value is not None and value < 1
        ]
        if not 0 <= validation_fraction < 1:
            problems.append(
                f"corpus.validation_fraction={validation_fraction}: must be from 0 (no validation) to less than 1"
            )
        if problems:
            raise ConfigError(problems)
        self.name = name
        self.max_documents = max_documents
        self.max_words = max_words
        self.validation_fraction = validation_fraction
        self.split_unit: SplitUnit = split_unit
        self.notes = Notes()
        self._meter = Meter()

    @abstractmethod
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        """Yield all documents of the source."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return digests of the content and settings that determine the documents of ``_read``, ready for JSON."""

    def documents(self) -> Iterator[Document]:
        """Yield the documents in the source's order; afterwards ``notes`` has the irregularities."""
        self.notes.clear()
        self._meter = Meter()
        for document in self._capped(self.notes, self._meter):
            if self._by_paragraphs:
                yield from split_ending(document, self.validation_fraction)
            else:
                yield document

    def is_validation(self, document: Document) -> bool:
        """Whether ``document`` is held out; equal texts are always in the same part."""
        if document.held_out is not None:
            return document.held_out
        return text_hash(document.text) < self._threshold

    def fingerprint(self) -> str:
        """Return a hex digest of the source's content and of all settings that change the documents or their split."""
        settings = {
            "reader": READER_VERSION,
            "content": self._content(),
            "max_documents": self.max_documents,
            "max_words": self.max_words,
            "validation_fraction": self.validation_fraction,
            "split_unit": self.split_unit,
        }
        return blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()

    @override
    def fraction_read(self) -> float | None:
        return min(1.0, self._meter.done / self._meter.total) if self._meter.total else None

    def _capped(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        words = 0
        for document in islice(self._read(notes, meter), self.max_documents):
            yield document
            if self.max_words is not None:
                words += len(document.text.split())
                if words >= self.max_words:
                    return

    @cached_property
    def _by_paragraphs(self) -> bool:
        if self.split_unit != "auto":
            return self.split_unit == "paragraphs"
        return sum(1 for _ in islice(self._capped(Notes(), Meter()), FEW_DOCUMENTS)) < FEW_DOCUMENTS

    @cached_property
    def _threshold(self) -> int:
        return hash_threshold((document.text for document in self._capped(Notes(), Meter())), self.validation_fraction)


class FileCorpus(BaseCorpus):
    """A corpus of local files: text, or a column of tables, each plain or as .gz, .xz or .zst.

    Args:
        path: a file, a folder (searched at any depth, or written by ``datasets.save_to_disk``), a pattern, or a list of
            these; ``train.txt`` also finds ``train.txt.xz``. Relative paths start at the folder where the command was
            started.
        name: short name, used in cache folders and messages.
        format: ``text``, or a table: ``tsv``, ``quoted_tsv``, ``csv``, ``jsonl`` (or an array of objects), ``parquet``
            (or arrow); ``auto``: by the suffix, and as text if the suffix is unknown.
        boundary: what separates the documents of text files: ``blank_line``, ``file`` (a file is a document),
            ``line`` (a line is a document), ``heading`` (WikiText's ``= Title =``), ``doc`` (WikiExtractor's
            ``<doc ...>``) or ``block`` (a document ends with the line at which it has 10,000 characters). ``auto``:
            ``doc`` for a file that begins with ``<doc id=...>``, else ``blank_line`` for a single file, ``file`` for a
            folder, a pattern or a list.
        text_field: the column of a table, or field of JSON, with the text; None for ``text`` or ``sentence``.
        delimiter: the character between the columns of tables (tsv, quoted_tsv or csv), or ``tab``; None for the
            separator with which the first line names the columns.
        line_break: a mark for a line end in the rows of tables, such as ``<br />``.
        encoding_errors: ``strict`` raises on bytes that are not UTF-8 and names the line; ``replace`` replaces and
            counts them.
        max_documents: see ``BaseCorpus``.
        max_words: see ``BaseCorpus``.
        validation_fraction: see ``BaseCorpus``.
        split_unit: see ``BaseCorpus``.
        cache_dir: folder for cached digests of large source files; None computes the digests each time.

    Raises:
        ConfigError: a value is out of range, or a file with a ``delimiter`` has a format without one.
        DataError: there is no file to read at ``path``.
    """

    def __init__(
        self,
        *,
        path: str | list[str],
        name: Name = "text",
        format: Literal["auto", TextFormat] = "auto",
        boundary: Literal["auto", Boundary] = "auto",
        text_field: str | None = None,
        delimiter: str | None = None,
        line_break: str | None = None,
        encoding_errors: EncodingErrors = "strict",
        max_documents: int | None = None,
        max_words: int | None = None,
        validation_fraction: Prob = 0.01,
        split_unit: SplitUnit = "auto",
        cache_dir: Folder | Path | None = None,
    ) -> None:
        super().__init__(
            name=name,
            max_documents=max_documents,
            max_words=max_words,
            validation_fraction=validation_fraction,
            split_unit=split_unit,
        )
        corpus_files = locate(path if isinstance(path, str) else list(path))
        self.files: Sequence[str] = corpus_files.files
        self._skipped_files = corpus_files.skipped_files
        self.format: TextFormat | None = None if format == "auto" else format
        single: Boundary = "blank_line" if corpus_files.named and len(self.files) == 1 else "file"
        self.boundary: Boundary = single if boundary == "auto" else boundary
        self._finds_boundary = boundary == "auto"
        self.delimiter = delimiter_of(delimiter, "corpus.delimiter")
        if self.delimiter is not None:
            self._check_delimiter()
        self.text_field = text_field
        self.line_break = line_break
        self.encoding_errors: EncodingErrors = encoding_errors
        self._memo_folder = None if cache_dir is None else Path(cache_dir)

    @override
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        if self._skipped_files:
            kind = "table and JSON files in the folder, left out (a pattern such as folder/*.csv reads them)"
            notes.add(kind, self._skipped_files[0], len(self._skipped_files))
        meter.total = sum(Path(file).stat().st_size for file in self.files)
        for file in map(Path, self.files):
            extracted = self._is_extracted(file)
            if extracted:
                notes.add("files from WikiExtractor, read with corpus.boundary=doc", str(file))
            yield from read_documents(
                file,
                file_format=self.format,
                boundary="doc" if extracted else self.boundary,
                text_field=self.text_field,
                delimiter=self.delimiter,
                encoding_errors=self.encoding_errors,
                line_break=self.line_break,
                notes=notes,
                meter=meter,
            )

    def _check_delimiter(self) -> None:
        for file in self.files:
            file_format = self._format_of(Path(file))
            if file_format not in ("tsv", "quoted_tsv", "csv"):
                raise ConfigError(
                    f"corpus.delimiter={self.delimiter}: {file} is read as {file_format}, which has no delimiter; set "
                    "corpus.delimiter=null, or corpus.format to tsv, quoted_tsv or csv"
                )

    def _is_extracted(self, file: Path) -> bool:
        return self._finds_boundary and self._format_of(file) == "text" and is_extracted(file)

    def _format_of(self, file: Path) -> TextFormat:
        return self.format or format_of(file)

    @override
    def _content(self) -> dict[str, Any]:
        digest = blake2b(digest_size=16)
        for file in map(Path, self.files):
            kind = "doc" if self._is_extracted(file) else self._format_of(file)
            digest.update(f"{kind} {source_digest(file, self._memo_folder)}\n".encode())
        return {
            "files": digest.hexdigest(),
            "boundary": self.boundary,
            "text_field": self.text_field,
            "line_break": self.line_break,
            "encoding_errors": self.encoding_errors,
            **({} if self.delimiter is None else {"delimiter": self.delimiter}),
        }

"""The base class of corpora (limits, split, fingerprint), and the corpus of local files.

Content decides the split into training and validation, never position or chance: the hash of a document's text.
Duplicates are therefore always in the same split, and a growing corpus keeps its split. With only a few long documents,
such as five novels, a hash would hold out a fifth of the text or nothing, so the last paragraphs of each document are
held out instead.
"""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.config.types import Folder, Name, Prob, TextFormat, Texts
from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.corpora.text_files import (
    CONVERT_HTML,
    HTML_SUFFIXES,
    MARKDOWN_SUFFIXES,
    Boundary,
    format_of,
    is_extracted,
    locate,
    read_documents,
    source_digest,
)
from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.data.files import EncodingErrors, Meter, plain_name
from lmtransfer.data.remote_files import SourceFile, file_size, source_file
from lmtransfer.data.tables import TEXT_COLUMNS, delimiter_of
from lmtransfer.errors import ConfigError

SplitUnit = Literal["auto", "document", "paragraphs"]

READER_VERSION = 2
FEW_DOCUMENTS = 20
HASH_RANGE = 1 << 64


def text_hash(text: str) -> int:
    """Return the 64-bit hash of a text, the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hash_threshold(texts: Iterable[str], fraction: float) -> int:
    """Return the hash below which a document is held out.

    The threshold is ``fraction`` of the hash's range, moved only as far as needed for both splits to have a document
    (if there are two different documents). Reading stops once both splits have a document, after about
    ``1 / fraction`` documents.
    """
    if fraction == 0:
        return 0
    threshold = round(fraction * HASH_RANGE)
    smallest, largest = HASH_RANGE, -1
    for text in texts:
        value = text_hash(text)
        smallest, largest = min(smallest, value), max(largest, value)
        if smallest < threshold <= largest:
            return threshold
    if smallest >= largest:
        return 0
    return smallest + 1 if smallest >= threshold else largest


def split_ending(document: Document, fraction: float) -> Iterator[Document]:
    """Cut a document in two: the beginning for training, the ending for validation.

    An ending with ``fraction`` of the characters would usually start inside a paragraph. The cut is at the end of that
    paragraph or, if no text is left after it, at the start of the last paragraph. A document with one paragraph is cut
    at the start of a sentence. A document with a single sentence goes to the training split.
    """
    text = document.text
    target = round(len(text) * (1 - fraction))
    cut = text.find("\n", max(0, target - 1)) + 1
    if cut == 0:
        cut = text.rfind("\n") + 1
    if cut == 0:
        starts = [start for start, _ in sentence_spans(text)][1:]
        cut = next((start for start in starts if start >= target), starts[-1] if starts else 0)
    beginning, ending = text[:cut].strip(), text[cut:].strip()
    if fraction == 0 or not beginning or not ending:
        yield Document(text, document.key, held_out=False)
        return
    yield Document(beginning, document.key, held_out=False)
    yield Document(ending, f"{document.key} (ending)", held_out=True)


@dataclass(kw_only=True, eq=False, repr=False)
class BaseCorpus(Corpus):
    """Caps, split and fingerprint for a source of documents.

    Attributes:
        split_unit: ``document``: the hash of a document's text decides its split, and each split has at least one
            document if there are two distinct documents. ``paragraphs``: the last paragraphs of each document are held
            out, about ``validation_fraction`` of it, for corpora of few, long documents. ``auto``: ``paragraphs`` if
            there are fewer than 20 documents, else ``document``.
        name: name of the folder in the cache.
        max_documents: maximum number of documents, from the start of the corpus; null: all.
        max_words: maximum number of words, from the start of the corpus and extended to the end of a document; null:
            all.
        validation_fraction: share of the text held out for validation.
    """

    # Subclasses inherit these annotations, so they must not be text, which would be evaluated elsewhere.
    name: Name
    max_documents: int | None = None
    max_words: int | None = None
    validation_fraction: Prob = 0.01
    split_unit: SplitUnit = "document"

    def __post_init__(self) -> None:
        problems = [
            f"corpus.{key}={value} must be a whole number of at least 1, or null for no limit"
            for key, value in (("max_documents", self.max_documents), ("max_words", self.max_words))
            if value is not None and value < 1
        ]
        if not 0 <= self.validation_fraction < 1:
            problems.append(
                f"corpus.validation_fraction={self.validation_fraction} must be at least 0 (no validation) and less "
                "than 1"
            )
        if problems:
            raise ConfigError(problems)
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
        """Whether ``document`` is held out; identical texts are always in the same split."""
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


@dataclass(kw_only=True, eq=False, repr=False)
class FileCorpus(BaseCorpus):
    """A corpus of files (text, or a column of tables), plain or compressed.

    Args:
        path: a file, a folder, a pattern or a list of them, relative to the current folder; or addresses such as
            s3://bucket/folder.
        format: text, csv, tsv, quoted_tsv, jsonl or parquet; auto: by the file extension.
        boundary: what separates documents: blank_line, file, line, heading, doc (WikiExtractor's <doc ...>) or block
            (10,000 characters, extended to the end of a line); auto: doc if a file begins with <doc id=...>, else
            blank_line for a single file, else file.
        text_field: column of a table, or field of JSON, that contains the text, or a list such as ``[text,body]``, of
            which the first that a row has is read; null: text or sentence.
        delimiter: character between the columns of a table, such as ";" or tab; null: inferred from the first line,
            which names the columns.
        line_break: the mark that stands for a line break in tables, such as <br />.
        encoding_errors: strict: stop at bytes that are not UTF-8, and name the line; replace: replace such bytes with
            U+FFFD and count them.
    """

    path: Texts | list[Texts]
    name: Name = "text"
    format: Literal["auto", TextFormat] = "auto"
    boundary: Literal["auto", Boundary] = "auto"
    text_field: str | list[str] | None = None
    delimiter: str | None = None
    line_break: str | None = None
    encoding_errors: EncodingErrors = "strict"
    split_unit: SplitUnit = "auto"
    cache_dir: Folder | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found = locate(self.path if isinstance(self.path, str) else list(self.path))
        self.files = self._found.files
        if self.text_field is not None and not self._text_fields:
            raise ConfigError("corpus.text_field=[]: list at least one column, or set null for text or sentence")
        html = next((file for file in self.files if self._suffix_of(file) in HTML_SUFFIXES), None)
        if html is not None and self.format == "auto":
            raise ConfigError(
                f"corpus.path: {html} is HTML, whose tags would be read as words: convert it to text first, "
                f"{CONVERT_HTML}, or set corpus.format=text to read it as it is"
            )
        single: Boundary = "blank_line" if self._found.named and len(self.files) == 1 else "file"
        self._boundary: Boundary = single if self.boundary == "auto" else self.boundary
        self.delimiter = delimiter_of(self.delimiter, "corpus.delimiter")
        if self.delimiter is not None:
            self._check_delimiter()

    @property
    @override
    def left_out(self) -> Notes:
        return self._found.left_out

    @override
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        files = [source_file(file) for file in self.files]
        meter.total = sum(map(file_size, files))
        for file in files:
            extracted = self._is_extracted(file)
            if extracted:
                notes.add("files from WikiExtractor, read with corpus.boundary=doc", str(file))
            if self.format == "auto" and self._suffix_of(str(file)) in MARKDOWN_SUFFIXES:
                notes.add("Markdown files, read as text with their marks", str(file))
            yield from read_documents(
                file,
                file_format=None if self.format == "auto" else self.format,
                boundary="doc" if extracted else self._boundary,
                text_fields=self._text_fields,
                delimiter=self.delimiter,
                encoding_errors=self.encoding_errors,
                line_break=self.line_break,
                notes=notes,
                meter=meter,
            )

    @property
    def _text_fields(self) -> tuple[str, ...]:
        if self.text_field is None:
            return TEXT_COLUMNS
        return (self.text_field,) if isinstance(self.text_field, str) else tuple(self.text_field)

    @staticmethod
    def _suffix_of(file: str) -> str:
        return Path(plain_name(source_file(file))).suffix.lower()

    def _check_delimiter(self) -> None:
        for file in self.files:
            file_format = self._format_of(source_file(file))
            if file_format not in ("tsv", "quoted_tsv", "csv"):
                raise ConfigError(
                    f"corpus.delimiter={self.delimiter}: {file} is read as {file_format}, which has no delimiter; set "
                    "corpus.delimiter=null, or corpus.format to tsv, quoted_tsv or csv"
                )

    def _is_extracted(self, file: SourceFile) -> bool:
        return self.boundary == "auto" and self._format_of(file) == "text" and is_extracted(file)

    def _format_of(self, file: SourceFile) -> TextFormat:
        return format_of(file) if self.format == "auto" else self.format

    @override
    def _content(self) -> dict[str, Any]:
        digest = blake2b(digest_size=16)
        for file in map(source_file, self.files):
            kind = "doc" if self._is_extracted(file) else self._format_of(file)
            digest.update(f"{kind} {source_digest(file, self.cache_dir)}\n".encode())
        return {
            "files": digest.hexdigest(),
            "boundary": self._boundary,
            "text_field": self.text_field if isinstance(self.text_field, str | None) else list(self.text_field),
            "line_break": self.line_break,
            "encoding_errors": self.encoding_errors,
            **({} if self.delimiter is None else {"delimiter": self.delimiter}),
        }

"""Corpora that the `datasets` library can load: from the hub, from its cache when offline, or from a local folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from typing_extensions import override

from lmtransfer.config.types import Folder, HubName
from lmtransfer.data.corpora.corpus import BaseCorpus, text_hash
from lmtransfer.data.corpora.text_files import build_document, join_lines, source_digest
from lmtransfer.data.documents import Document, Notes
from lmtransfer.data.files import SAVED_SET, SAVED_SPLITS, Meter
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import generator, permutation
from lmtransfer.system import door
from lmtransfer.system.network import connection_problem
from lmtransfer.system.printable import first_line
from lmtransfer.system.safe_files import check_folder, parse_yaml, read_bytes, read_json, read_yaml
from lmtransfer.system.validation import texts

if TYPE_CHECKING:
    import datasets

_Item = TypeVar("_Item")

#: Number of random numbers to draw at once.
_BLOCK = 8192

_COMMIT = re.compile(r"[0-9a-f]{40}")


def shuffle(items: Iterator[_Item], *, buffer: int) -> Iterator[_Item]:
    """Shuffle a stream of items, with at most ``buffer`` of them in memory.

    The first ``buffer`` items fill the buffer. Each later item replaces a random item in the buffer, which is yielded.
    At the end, the remaining items are yielded in random order. An item therefore comes at most ``buffer`` places
    earlier than in the source and, rarely, much later. The order depends only on the number of items and on ``buffer``,
    not on a run's seed, so that all runs read the same text.
    """
    held = list(islice(items, buffer))
    places: list[int] = []
    for number, item in enumerate(items):
        block, within = divmod(number, _BLOCK)
        if within == 0:
            places = generator(0, "shuffle buffer", block).integers(len(held), size=_BLOCK).tolist()
        yield held[places[within]]
        held[places[within]] = item
    for place in permutation(len(held), 0, "shuffle buffer"):
        yield held[place]


def reason_of_failure(error: Exception) -> str:
    """Say on one line why a data set cannot be loaded from the hub."""
    first, *_ = [*str(error).strip().splitlines(), ""]
    return connection_problem(error) or f"{type(error).__name__}: {first}"


def check_dataset_folder(folder: Path) -> None:
    """Check that a local data set names only files in its own folder; `datasets` would read any file that is named.

    A folder written by ``save_to_disk`` names its files in ``state.json`` and ``dataset_dict.json``; a copy of a
    repository names them in the ``configs`` of its card.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    door.check(folder)
    check_folder(folder, error=DataError)
    contents: dict[Path, Any] = {}
    if any((folder / mark).is_file() for mark in (SAVED_SET, SAVED_SPLITS)):
        paths = [folder / SAVED_SPLITS, folder / SAVED_SET, *folder.glob(f"*/{SAVED_SET}")]
        contents = {path: read_json(path, object, error=DataError) for path in paths if path.is_file()}
    card, settings = folder / "README.md", folder / ".huggingface.yaml"
    if card.is_file():
        front = REGEX_YAML_BLOCK.search(read_bytes(card, error=DataError).decode("utf-8", "replace"))
        if front:
            contents[card] = _configs(parse_yaml(front[2].encode(), object, source=str(card), error=DataError))
    if settings.is_file():
        contents[settings] = _configs(read_yaml(settings, object, error=DataError))
    for path, content in contents.items():
        for key, text in texts(content):
            if "://" in text or "::" in text or text.startswith(("/", "~")) or ".." in Path(text).parts:
                raise DataError(
                    f"{path}: {key} is {text[:60]!r}, which is not a file in {folder}: a local data set may only name "
                    "its own files; correct the path, or use a data set on the hub"
                )


def _configs(card: Any) -> Any:
    return {"configs": card.get("configs")} if isinstance(card, Mapping) else None


@dataclass(kw_only=True, eq=False, repr=False)
class HubCorpus(BaseCorpus):
    """A data set from the Hugging Face hub, by name, or from a local folder.

    Offline, a previously loaded data set is read from the cache of `datasets` (not with ``streaming``). A local folder
    can be used in place of a name: one written by ``save_to_disk``, or a copy of the hub repository.

    With ``streaming``, only the required text is read: with ``max_words`` or ``max_documents``, the first part of a
    large data set, or, with ``shuffle_buffer``, a mixed sample (the files are then read in random order too, if a
    record is a document). It is tokenized once into the cache, from which training reads, so a resumed run needs no
    network if ``revision`` is a commit.

    Args:
        dataset: owner/name on the hub, or a folder: a clone of the repository, or the output of save_to_disk.
        subset: configuration of the data set, if it has several.
        split: split to train on.
        validation_split: split to hold out; null: hold out a part of the training split.
        revision: commit, tag or branch; null: the newest commit, which a streaming run saves in its configuration.
        streaming: true: read from the hub without a copy on disk, and only as much as max_words or max_documents allow.
        shuffle_buffer: number of documents in a shuffle buffer, so that the limits select a mixed sample; 0: keep the
            source's order.
        text_field: column that contains the text.
        boundary: record: each record is a document; heading: records are lines of WikiText.
        line_break: the mark that stands for a line break, such as <br />.
    """

    dataset: HubName
    subset: str | None = None
    split: str = "train"
    validation_split: str | None = None
    revision: str | None = None
    streaming: bool = False
    shuffle_buffer: int = 0
    text_field: str = "text"
    boundary: Literal["record", "heading"] = "record"
    line_break: str | None = None
    cache_dir: Folder | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle_buffer < 0:
            raise ConfigError(
                f"corpus.shuffle_buffer={self.shuffle_buffer} must be a number of documents, or 0 for the source's "
                "order"
            )
        folder = Path(self.dataset).expanduser()
        self.folder = folder.resolve() if folder.is_dir() else None
        self.files = (self.dataset,) if self.folder else ()

    @cached_property
    def _dataset(self) -> datasets.Dataset | datasets.IterableDataset:
        return self._load(self.split)

    @cached_property
    def _held_out(self) -> datasets.Dataset | datasets.IterableDataset | None:
        return None if self.validation_split is None else self._load(self.validation_split)

    def _load(self, split: str) -> datasets.Dataset | datasets.IterableDataset:
        with self._requesting():
            return self._load_freely(split)

    def _requesting(self) -> AbstractContextManager[None]:
        return door.requesting(str(self.folder or self.dataset))

    def _load_freely(self, split: str) -> datasets.Dataset | datasets.IterableDataset:
        from datasets import load_dataset, load_from_disk
        from datasets.exceptions import DatasetGenerationError

        if self.folder:
            check_dataset_folder(self.folder)
        try:
            if self.folder and any((self.folder / mark).is_file() for mark in (SAVED_SET, SAVED_SPLITS)):
                saved = load_from_disk(str(self.folder))
                loaded = saved[split] if isinstance(saved, dict) else saved
            else:
                loaded = load_dataset(
                    str(self.folder or self.dataset),
                    self.subset,
                    split=split,
                    revision=self.commit or self.revision,
                    streaming=self.streaming,
                )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
            raise DataError(self._missing(reason_of_failure(error), split)) from None
        # A stream of JSON lines has no column names before the first record.
        columns = loaded.column_names or list(next(self._records(loaded, f"{self.dataset}[{split}]"), {}))
        if columns and self.text_field not in columns:
            names = ", ".join(columns)
            raise DataError(
                f"{self.dataset}: no column named `{self.text_field}`; the columns are {names}. Set corpus.text_field "
                "to one of them"
            )
        return loaded.select_columns([self.text_field])

    def open(self) -> None:
        """Load the data set, so that a missing data set raises an error before any work starts."""
        _ = self._dataset, self._held_out

    def _missing(self, reason: str, split: str) -> str:
        name = ", ".join(str(part) for part in (self.dataset, self.subset, split) if part)
        return (
            f"corpus={self.name}: the data set {name} cannot be loaded ({reason.strip()}).\nEither connect to a "
            "network once, so that `datasets` downloads it from the hub (then it works offline from the cache, "
            "HF_HOME),\nor set corpus.dataset=<folder> to a local copy (a clone of the hub repository, or the output "
            "of save_to_disk), or read plain files with corpus=text corpus.path=<files>."
        )

    def documents(self) -> Iterator[Document]:
        """Yield the documents of ``split`` (capped, without copies of held-out ones), then of ``validation_split``."""
        if self.validation_split is None:
            yield from super().documents()
            return
        held_out = {text_hash(document.text) for document in self._read_held_out(Notes())}
        for document in super().documents():
            if text_hash(document.text) in held_out:
                self.notes.add("training documents left out as copies of held-out documents", document.key)
            else:
                yield replace(document, held_out=False)
        for document in self._read_held_out(self.notes):
            yield replace(document, held_out=True)

    def _read_held_out(self, notes: Notes) -> Iterator[Document]:
        assert self._held_out is not None
        return self._documents_of(self._held_out, f"{self.dataset}[{self.validation_split}]", notes, Meter())

    @override
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        meter.total = 0 if self.streaming else len(self._dataset)  # in records
        label = f"{self.dataset}[{self.split}]"
        if not self.shuffle_buffer:
            return self._documents_of(self._dataset, label, notes, meter)
        records: Iterable[Any] = self._dataset
        if self.streaming and self.boundary == "record":
            order = permutation(self._dataset.num_shards, 0, "files of a stream").tolist()
            records = chain.from_iterable(self._dataset.shard(len(order), index) for index in order)
        return shuffle(self._documents_of(records, label, notes, meter), buffer=self.shuffle_buffer)

    def _documents_of(self, records: Iterable[Any], label: str, notes: Notes, meter: Meter) -> Iterator[Document]:
        def rows() -> Iterator[tuple[str, Any]]:
            for number, record in enumerate(self._records(records, label), start=1):
                meter.done = number
                yield f"{label}:row {number}", record.get(self.text_field)

        if self.boundary == "heading":
            yield from join_lines(((where, text or "") for where, text in rows()), "heading", notes)
            return
        for where, text in rows():
            document = build_document(text, where, notes, self.line_break)
            if document is not None:
                yield document

    def _records(self, records: Iterable[Any], label: str) -> Iterator[Mapping[str, Any]]:
        """Yield the records; every failure becomes a ``DataError``."""
        source, number = iter(records), 0
        while True:
            try:
                with self._requesting():
                    record = next(source, None)
            except Exception as error:  # the class depends on the HTTP library and on the file format
                raise DataError(
                    f"corpus={self.name}: {label} cannot be read after row {number} ({type(error).__name__}: "
                    f"{first_line(error)}); check the network and the data set, and run the same command again: "
                    "completed work is kept"
                ) from error
            if record is None:
                return
            number += 1
            yield record

    @override
    def _content(self) -> dict[str, Any]:
        return {
            "source": self._source_digest(),
            "subset": self.subset,
            "split": self.split,
            "text_field": self.text_field,
            "boundary": self.boundary,
            "line_break": self.line_break,
            **({} if self.validation_split is None else {"validation_split": self.validation_split}),
            **({"shuffle_buffer": self.shuffle_buffer} if self.shuffle_buffer else {}),
        }

    def _source_digest(self) -> str:
        """Return the digest of the data set's files; when streaming from the hub, of the name and the commit."""
        if self.folder:
            files = sorted(path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        elif self.streaming:
            return f"{self.dataset}@{self.commit}"
        else:
            parts = [self._dataset, *([] if self._held_out is None else [self._held_out])]
            files = [Path(file["filename"]) for part in parts for file in part.cache_files]
        digest = blake2b(digest_size=16)
        for path in files:
            digest.update(f"{source_digest(path, self.cache_dir)}\n".encode())
        return digest.hexdigest()

    @property
    def commit(self) -> str | None:
        """The commit of a stream from the hub, 40 hex digits; None for a local folder or a loaded data set."""
        return self._commit

    @cached_property
    def _commit(self) -> str | None:
        if self.folder or not self.streaming:
            return None
        if self.revision is not None and _COMMIT.fullmatch(self.revision):
            return self.revision
        from huggingface_hub import HfApi

        try:
            with self._requesting():
                return str(HfApi().dataset_info(self.dataset, revision=self.revision).sha)
        except door.Refused:
            raise
        except Exception as error:  # the exceptions of a network failure depend on the HTTP library
            raise DataError(self._missing(reason_of_failure(error), self.split)) from error

"""Sources of tagged sentences: one file per split, or a ``datasets`` name. Span tags are converted to BIO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import plain_name
from lmtransfer.data.tables import format_by_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.conll import (
    TagColumn,
    TaggedSentence,
    iob1_to_bio,
    read_conll,
    read_conllu,
    read_tagged_hub,
    read_tagged_rows,
    scheme_of,
    unmarked_starts,
)
from lmtransfer.tasks.label_checks import to_nfc
from lmtransfer.tasks.metrics.chunks import split_tag
from lmtransfer.tasks.places import HubSource, LocatedFiles

FileFormat = Literal["conll", "conllu", "jsonl", "parquet"]
Scheme = Literal["words", "bio", "iob1"]

UNMARKED = "spans that begin with I- instead of B-, kept unchanged"

#: Columns of the words and of the tags; None for the last column.
_DEFAULT_COLUMNS: dict[FileFormat, tuple[int | str, int | str | None]] = {
    "conll": (1, None),
    "conllu": ("form", "upos"),
    "jsonl": ("words", "tags"),
    "parquet": ("words", "tags"),
}
#: The usual names of the word field, which ``datasets`` calls tokens.
WORDS = ("words", "tokens")


class TaggedFiles:
    """A task's splits, from files, or from the hub for splits without a local file.

    Args:
        word_column: number, name or field of the words; None for the format's default.
        tag_column: number, name or field of the tags; None for the format's default.
        scheme: meaning of the tags; None to recognize it from the training split's tags.
        hub_columns: columns of the words and of the tags on the hub.
    """

    def __init__(
        self,
        located: LocatedFiles,
        *,
        file_format: FileFormat,
        word_column: int | str | None,
        tag_column: int | str | None,
        scheme: Scheme | None,
        hub: HubSource | None,
        hub_columns: Sequence[str],
    ) -> None:
        self.located, self.file_format = located, file_format
        self._scheme, self.span_encoding = scheme, ""
        default_word, default_tag = _DEFAULT_COLUMNS[file_format]
        self.word_column = default_word if word_column is None else word_column
        self.tag_column = default_tag if tag_column is None else tag_column
        self.hub, self.hub_columns = hub, tuple(hub_columns)
        self.splits = tuple(dict.fromkeys([*located.splits, *(hub.splits if hub else ())]))
        _check_columns(file_format, self.word_column, self.tag_column)
        if len(self.hub_columns) != 2:
            raise ConfigError(f"task.hub_columns={list(hub_columns)}: name the column of the words, then of the tags")
        if not self.splits:
            raise ConfigError("task.files is empty and task.hub is null: set a file for each split, or a datasets name")

    @cached_property
    def scheme(self) -> Scheme:
        """The meaning of the tags; ``span_encoding`` then says how spans are written, unless a setting specifies it."""
        if self._scheme is not None:
            return self._scheme
        if "train" not in self.splits:
            raise ConfigError(
                "task.scheme=null: there is no training file to recognize the scheme from; set words, bio or iob1"
            )
        scheme, self.span_encoding = scheme_of(sentence.tags or () for sentence in self._sentences("train", Notes()))
        return scheme

    def origin(self, split: str) -> str:
        """Return the file or hub split from which a split is read."""
        path = self.located.find(split)
        if path is not None:
            return str(path)
        if self.hub is not None and split in self.splits:
            return self.hub.origin(split)
        raise self.located.missing_error(split)

    def sentences(self, split: str, notes: Notes) -> Iterator[TaggedSentence]:
        """Yield the sentences of a split, in the order of the source, with spans in BIO."""
        sentences = (self._normalize(sentence, notes) for sentence in self._sentences(split, notes))
        return sentences if self.scheme == "words" else (self._as_bio(sentence, notes) for sentence in sentences)

    def _sentences(self, split: str, notes: Notes) -> Iterator[TaggedSentence]:
        path = self.located.find(split)
        if path is not None:
            other_format = _format_by_name(path)
            if self.file_format == "conll" and other_format is not None:
                raise DataError(
                    f"{path}: has the suffix of a {other_format} file, but task.file_format=conll reads columns: set "
                    f"task.file_format={other_format}, or rename the file"
                )
            return self._sentences_of(path, notes, with_gold=not split.startswith("test"))
        if self.hub is not None and split in self.splits:
            words, tags = self.hub_columns
            places = self.located.places(split)
            return read_tagged_hub(self.hub, split, words_column=words, tags_column=tags, places=places)
        raise self.located.missing_error(split)

    def _sentences_of(self, path: Path, notes: Notes, *, with_gold: bool) -> Iterator[TaggedSentence]:
        if self.file_format == "conllu":
            return read_conllu(path, tag_column=cast(TagColumn, self.tag_column), with_gold=with_gold, notes=notes)
        if self.file_format in ("jsonl", "parquet"):
            name_format = _format_by_name(path)
            return read_tagged_rows(
                path,
                file_format=name_format if name_format == "jsonl" or name_format == "parquet" else self.file_format,
                words_fields=words_fields(self.word_column),
                tags_field=str(self.tag_column),
                with_gold=with_gold,
                notes=notes,
            )
        word, tag = int(self.word_column), None if self.tag_column is None else int(self.tag_column)
        return read_conll(path, word_column=word, tag_column=tag, with_gold=with_gold, notes=notes)

    def _normalize(self, sentence: TaggedSentence, notes: Notes) -> TaggedSentence:
        """Return a sentence whose tags are in NFC."""
        if all(map(str.isascii, sentence.tags or ())):
            return sentence
        return replace(sentence, tags=tuple(to_nfc(tag, sentence.where(), notes) for tag in sentence.tags or ()))

    def _as_bio(self, sentence: TaggedSentence, notes: Notes) -> TaggedSentence:
        if sentence.tags is None:
            return sentence
        for word, tag in enumerate(sentence.tags):
            try:
                split_tag(tag)
            except DataError as error:
                raise DataError(f"{sentence.where(word)}: {error} (set task.scheme=words)") from None
        if self.scheme == "iob1":
            return replace(sentence, tags=iob1_to_bio(sentence.tags))
        unmarked = unmarked_starts(sentence.tags)
        if unmarked:
            notes.add(UNMARKED, sentence.where(unmarked[0]), len(unmarked))
        return sentence


def _format_by_name(path: Path) -> FileFormat | None:
    """Return the format implied by a file's name; None for columns."""
    if plain_name(path).lower().endswith(".conllu"):
        return "conllu"
    name_format = format_by_name(path)
    return name_format if name_format == "jsonl" or name_format == "parquet" else None


def words_fields(word_column: int | str) -> tuple[str, ...]:
    """Return the possible names of the word field."""
    return WORDS if word_column == WORDS[0] else (str(word_column),)


def _check_columns(file_format: FileFormat, word_column: int | str, tag_column: int | str | None) -> None:
    if file_format == "conllu":
        if word_column != "form":
            raise ConfigError(
                f"task.word_column={word_column}: must be null in CoNLL-U, where words are always in the column FORM"
            )
        if tag_column not in ("upos", "xpos"):
            raise ConfigError(f"task.tag_column={tag_column}: must be upos or xpos in CoNLL-U")
    for key, column in (("word_column", word_column), ("tag_column", tag_column)):
        if column is None:
            continue
        if file_format == "conll" and (not isinstance(column, int) or column < 1):
            raise ConfigError(f"task.{key}={column}: must be the number of a column, from 1")
        if file_format in ("jsonl", "parquet") and not isinstance(column, str):
            raise ConfigError(f"task.{key}={column}: must be the name of a field")
    if word_column == tag_column:
        raise ConfigError(f"task.tag_column={tag_column}: words and tags must be in different columns")

"""Tagged sentences in rows of JSON or parquet, on the hub, or in columns with one word per line (CoNLL, CoNLL-U).

CoNLL-2003 (Tjong Kim Sang and De Meulder, https://aclanthology.org/W03-0419) has four columns separated by spaces
(word, part of speech, chunk, entity) and a line ``-DOCSTART-`` before each document. WNUT-17 has two columns (word,
entity) separated by tabs. A number sign does not start a comment, because posts may begin with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import read_lines
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, TableRecord, open_table
from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.chunks import OUTSIDE, split_tag
from lmtransfer.tasks.settings import HubSource


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """One sentence."""

    source: str
    lines: tuple[int | str, ...]  # line number of each word in the file, or row of the sentence
    words: tuple[str, ...]
    tags: tuple[str, ...] | None  # tag names, one per word; None if the source has no tags
    name: str | None = None

    def where(self, word: int = 0) -> str:
        """Return ``file:line`` of a word, for messages."""
        return f"{self.source}:{self.lines[word]}"


def read_tagged_rows(
    path: Path,
    *,
    file_format: Literal["jsonl", "parquet"],
    words_fields: Sequence[str],
    tags_field: str,
    with_gold: bool,
    notes: Notes,
) -> Iterator[TaggedSentence]:
    """Read the sentences of a file in order; unless ``with_gold`` is set, a missing or null field hides the tags."""
    columns = [
        ColumnSpec(tuple(words_fields), "task.word_column", advice="write this field"),
        ColumnSpec((tags_field,), "task.tag_column", required=with_gold, advice="write this field"),
        ColumnSpec(("id",), "id", required=False),
    ]
    bad_rows = BadRows("refuse", notes, "or remove it")
    for record in open_table(path, columns, layout=TableLayout(file_format), bad_rows=bad_rows).records:
        where = record.where
        words = _texts(record, columns[0])
        tags = None
        if record.values.get(tags_field) is not None or with_gold:
            tags = _texts(record, columns[1])
            if len(tags) != len(words):
                raise DataError(f"{where}: {len(words)} words and {len(tags)} tags; give each word one tag")
        name = record.values.get("id")
        source, _, line = where.rpartition(":")
        yield TaggedSentence(source, (line,) * len(words), words, tags, None if name is None else str(name))


def _texts(record: TableRecord, column: ColumnSpec) -> tuple[str, ...]:
    name, where = record.name_of(column), record.where
    if name is None:
        raise DataError(f"{where}: {record.missing_message(column)}")
    texts = record.values[name]
    if isinstance(texts, list) and texts and all(isinstance(text, int) for text in texts):
        raise DataError(
            f"{where}: {name!r} contains label indices, as Dataset.to_json writes them: replace them with names "
            f"(dataset.features[{name!r}].feature.names), or use Dataset.to_parquet, which keeps the names"
        )
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise DataError(f"{where}: {name!r} must be a list of at least one text, none of them empty")
    return tuple(texts)


def read_tagged_hub(
    source: HubSource, split: str, *, words_column: str, tags_column: str, places: str
) -> Iterator[TaggedSentence]:
    """Read the sentences of a split; tag indices are replaced with names, and tags that are all -1 are hidden."""
    advice = ". Set task.hub_columns to the columns of the words and of the tags"
    table = source.load(split, places=places, columns=(words_column, tags_column), advice=advice)
    origin = source.origin(split)
    tag_names = getattr(getattr(table.features[tags_column], "feature", None), "names", None)
    for row, (words, values) in enumerate(zip(table[words_column], table[tags_column], strict=True)):
        if not words or len(words) != len(values):
            raise DataError(f"{origin}:{row}: {len(words)} words, but {len(values)} tags")
        hidden = all(value in (-1, None) for value in values)
        absent = [value for value in values if value is None or (isinstance(value, int) and value < 0)]
        if absent and not hidden:
            raise DataError(
                f"{origin}:{row}: {absent[0]} stands for a hidden tag, but other words have tags: give "
                "all words of a sentence tags, or none of them"
            )
        tags = None if hidden else tuple(str(value) if tag_names is None else tag_names[value] for value in values)
        yield TaggedSentence(origin, (row,) * len(words), tuple(words), tags)


_DOCUMENT_MARK = "-DOCSTART-"
_BLANKS = re.compile("[ \t]+")


def read_conll(
    path: Path, *, word_column: int, tag_column: int | None, with_gold: bool, notes: Notes
) -> Iterator[TaggedSentence]:
    """Read the sentences of a file in order.

    If the first word's line contains a tab, columns are separated by tabs, otherwise by spaces. Every line must have as
    many columns as that line. Columns are counted from 1. The tags are in the last column if ``tag_column`` is None; in
    a file without the tag column, they are hidden.
    """
    width, tag, by_tabs = 0, tag_column or 2, False
    for block in _blocks(path, notes):
        words: list[str] = []
        tags: list[str] = []
        for number, line in block:
            where = f"{path}:{number}"
            by_tabs = by_tabs if width else "\t" in line
            fields = line.split("\t") if by_tabs else _BLANKS.split(line.strip(" \t"))
            if not width:
                width = len(fields)
                if tag_column is None and width > 2:
                    tag = width
                    notes.add(f"file with {width} columns, the last of which has the tags (task.tag_column)", where)
                _check_width(width, where, word_column, tag, with_gold)
            if len(fields) != width:
                raise DataError(
                    f"{where}: {len(fields)} columns ({'tabs' if by_tabs else 'spaces'} between them), but the "
                    f"previous lines have {width}; correct the line (one word per line, a blank line between sentences)"
                )
            if not fields[word_column - 1]:
                raise DataError(f"{where}: the word in column {word_column} is empty; correct or remove the line")
            words.append(fields[word_column - 1])
            if width >= tag and not fields[tag - 1]:
                raise DataError(
                    f"{where}: the word {words[-1]!r} has no tag in column {tag}; add the tag, or remove the "
                    "column from the whole file if its tags are hidden"
                )
            tags += fields[tag - 1 : tag]
        lines = tuple(number for number, _ in block)
        yield TaggedSentence(str(path), lines, tuple(words), tuple(tags) if width >= tag else None)


def _blocks(path: Path, notes: Notes) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines between blank lines and document marks."""
    block: list[tuple[int, str]] = []
    for number, line in read_lines(path, notes=notes):
        is_mark = line.startswith(_DOCUMENT_MARK)
        if is_mark:
            notes.add(f"lines {_DOCUMENT_MARK} between documents", f"{path}:{number}")
        if not is_mark and line.strip(" \t"):
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def scheme_of(sentences: Iterable[Sequence[str]]) -> tuple[Literal["words", "bio", "iob1"], str]:
    """Determine whether tags describe single words or mark spans and, for spans, the usual name of their encoding.

    Tags mark spans if each of them is ``O`` or a prefix with a kind (``B-PER``), or if all are ``O``, ``B``, ``I`` and
    the like. The encoding is IOB1 if ``B-`` begins only spans that follow another span of the same kind, and ``I-``
    begins all others.
    """
    tags: set[str] = set()
    num_unmarked, has_marked = 0, False
    for sentence in sentences:
        tags.update(sentence)
        try:
            num_unmarked += len(unmarked_starts(sentence))
        except DataError:
            return "words", ""
        before = [OUTSIDE, *sentence][: len(sentence)]
        has_marked = has_marked or any(
            tag.startswith("B") and (last == OUTSIDE or last[1:] != tag[1:])
            for last, tag in zip(before, sentence, strict=True)
        )
    prefixes = {tag[0] for tag in tags}
    if not any("-" in tag for tag in tags) and not {OUTSIDE, "B", "I"} <= tags:
        return "words", ""
    if num_unmarked and not has_marked:
        return "iob1", "IOB1"
    return "bio", "BIOES" if prefixes & set("ES") else "BILOU" if prefixes & set("LU") else "BIO"


def iob1_to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert one sentence's tags to BIO, with ``B-`` at the start of every span; BIO tags are unchanged.

    CoNLL-2003's own files (IOB1: Ramshaw and Marcus, https://aclanthology.org/W95-0107) write ``B-`` only if a span
    directly follows another of the same kind.
    """
    unmarked = set(unmarked_starts(tags))
    return tuple("B" + tag[1:] if word in unmarked else tag for word, tag in enumerate(tags))


def unmarked_starts(tags: Sequence[str]) -> list[int]:
    """Find the words tagged ``I-kind`` that start a span, because the preceding word is not in a span of that kind."""
    begins = []
    last_prefix, last_kind = OUTSIDE, ""
    for word, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        if prefix == "I" and (last_prefix not in "BI" or kind != last_kind):
            begins.append(word)
        last_prefix, last_kind = prefix, kind
    return begins


def _check_width(width: int, where: str, word_column: int, tag_column: int, with_gold: bool) -> None:
    if width < word_column:
        raise DataError(f"{where}: {width} columns; task.word_column={word_column} must be one of them, counted from 1")
    if word_column == tag_column and width > 1:
        raise DataError(
            f"{where}: {width} columns, the last of which would hold both the words and the tags: set task.tag_column"
        )
    if width < tag_column and with_gold:
        raise DataError(
            f"{where}: {width} column{'s' * (width > 1)}, so there are no tags: task.tag_column={tag_column} must be "
            "one of them, counted from 1"
        )


TagColumn = Literal["upos", "xpos"]

_NUM_COLUMNS: Final = 10
_PLACES: Final[dict[TagColumn, int]] = {"upos": 3, "xpos": 4}
_RANGE = re.compile(r"\d+-\d+")
_EMPTY_NODE = re.compile(r"\d+\.\d+")
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")


def read_conllu(path: Path, *, tag_column: TagColumn, with_gold: bool, notes: Notes) -> Iterator[TaggedSentence]:
    """Read the sentences of a file, named by ``sent_id``; unless ``with_gold``, tags that are all ``_`` are hidden."""
    for block in _blocks(path, notes):
        words: list[str] = []
        tags: list[str] = []
        lines: list[int] = []
        name: str | None = None
        for number, line in block:
            where = f"{path}:{number}"
            if line.startswith("#"):
                match = _SENTENCE_ID.match(line)
                name = match[1] if match else name
                continue
            fields = line.split("\t")
            if len(fields) != _NUM_COLUMNS:
                raise DataError(
                    f"{where}: {len(fields)} columns, but CoNLL-U has {_NUM_COLUMNS}, with tabs between them"
                )
            if _RANGE.fullmatch(fields[0]):
                notes.add("ranges of several words (3-4), left out", where)
                continue
            if _EMPTY_NODE.fullmatch(fields[0]):
                notes.add("empty nodes (8.1), left out", where)
                continue
            if fields[0] != str(len(words) + 1):
                raise DataError(
                    f"{where}: the word has the id {fields[0]!r}, but {len(words) + 1} is expected; is a blank line "
                    "missing between two sentences?"
                )
            word, tag = fields[1], fields[_PLACES[tag_column]]
            if not word or not tag:
                missing = tag_column.upper() if word else "FORM"
                raise DataError(f"{where}: column {missing} is empty; write an underscore for an unspecified value")
            words.append(word)
            tags.append(tag)
            lines.append(number)
        untagged = [place for place, tag in enumerate(tags) if tag == "_"]
        if untagged and (len(untagged) < len(tags) or with_gold):
            raise DataError(
                f"{path}:{lines[untagged[0]]}: the word {words[untagged[0]]!r} has no tag in column "
                f"{tag_column.upper()}; add the tag, or set task.tag_column to the column that has tags"
            )
        if words:
            yield TaggedSentence(str(path), tuple(lines), tuple(words), None if untagged else tuple(tags), name)

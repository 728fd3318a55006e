"""Read columns with one word per line and a blank line between sentences, as in the shared tasks of CoNLL.

CoNLL-2003 (Tjong Kim Sang and De Meulder, https://aclanthology.org/W03-0419) has four columns separated by spaces
(word, part of speech, chunk, entity) and a line ``-DOCSTART-`` before each document. WNUT-17 has two columns (word,
entity) separated by tabs. A number sign does not start a comment, because posts begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lmtransfer.data.documents import Notes
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.metrics.chunks import OUTSIDE, split_tag
from lmtransfer.tasks.file_formats.tagged import TaggedSentence

_DOCUMENT_MARK = "-DOCSTART-"
_BLANKS = re.compile("[ \t]+")


def read_conll(
    path: Path, *, word_column: int, tag_column: int, with_gold: bool, notes: Notes
) -> Iterator[TaggedSentence]:
    """Read the sentences of a file, in its order.

    If the first word's line has a tab, columns are separated by tabs, otherwise by spaces. Every line must have as many
    columns as that line. In a file without the tag column the tags are hidden.

    Args:
        path: the file, plain or compressed.
        word_column: column of the word, from 1.
        tag_column: column of the tag, from 1.
        with_gold: whether the file must have the tag column.
        notes: counts document marks.

    Raises:
        DataError: a line has another number of columns, a word or tag is empty, or the file lacks a column; the message
            has ``file:line``.
    """
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    width: int | None = None
    by_tabs = False

    def sentence() -> TaggedSentence:
        hidden = width is not None and width < tag_column
        return TaggedSentence(str(path), tuple(lines), tuple(words), None if hidden else tuple(tags))

    for number, line in read_lines(path, notes=notes):
        where = f"{path}:{number}"
        is_mark = line.startswith(_DOCUMENT_MARK)
        if is_mark:
            notes.add(f"lines {_DOCUMENT_MARK} between documents", where)
        if is_mark or not line.strip(" \t"):
            if words:
                yield sentence()
                words, tags, lines = [], [], []
            continue
        if width is None:
            by_tabs = "\t" in line
        fields = line.split("\t") if by_tabs else _BLANKS.split(line.strip(" \t"))
        if width is None:
            width = len(fields)
            _check_width(width, where, word_column, tag_column, with_gold)
        if len(fields) != width:
            raise DataError(
                f"{where}: {len(fields)} columns ({'tabs' if by_tabs else 'spaces'} between them), but the lines "
                f"before have {width}; correct the line (one word per line, a blank line between sentences)"
            )
        if not fields[word_column - 1]:
            raise DataError(f"{where}: the word in column {word_column} is empty; correct or remove the line")
        words.append(fields[word_column - 1])
        lines.append(number)
        if width >= tag_column:
            if not fields[tag_column - 1]:
                raise DataError(
                    f"{where}: the word {words[-1]!r} has no tag in column {tag_column}; add the tag, or remove the "
                    "column from the whole file if its tags are hidden"
                )
            tags.append(fields[tag_column - 1])
    if words:
        yield sentence()


def iob1_to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert the tags of one sentence to BIO, with ``B-`` at the start of every span; BIO tags stay unchanged.

    CoNLL-2003's own files (IOB1: Ramshaw and Marcus, https://aclanthology.org/W95-0107) write ``B-`` only if a span
    directly follows another one of the same kind.

    Args:
        tags: ``O``, ``B-kind`` or ``I-kind`` of each word.

    Raises:
        DataError: a tag is not of this form.
    """
    unmarked = set(unmarked_begins(tags))
    return tuple("B" + tag[1:] if word in unmarked else tag for word, tag in enumerate(tags))


def unmarked_begins(tags: Sequence[str]) -> list[int]:
    """Find the words that start a span with the tag ``I-kind``: the word before is in no open span of that kind.

    Args:
        tags: tags of one sentence.

    Raises:
        DataError: a tag is not a span tag.
    """
    found = []
    last_prefix, last_kind = OUTSIDE, ""
    for word, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        if prefix == "I" and (last_prefix not in "BI" or kind != last_kind):
            found.append(word)
        last_prefix, last_kind = prefix, kind
    return found


def _check_width(width: int, where: str, word_column: int, tag_column: int, with_gold: bool) -> None:
    if width < word_column:
        raise DataError(f"{where}: {width} columns; task.word_column={word_column} must be one of them, counted from 1")
    if width < tag_column and with_gold:
        raise DataError(
            f"{where}: {width} column{'s' * (width > 1)}, so there are no tags: task.tag_column={tag_column} must be "
            "one of them, counted from 1"
        )

"""Columns with one word per line and blank lines between sentences, as in the shared tasks of CoNLL.

CoNLL-2003 (Tjong Kim Sang and De Meulder, https://aclanthology.org/W03-0419) has four columns separated by spaces
(word, part of speech, chunk, entity) and a line ``-DOCSTART-`` before each document. WNUT-17 has two columns (word,
entity) separated by tabs. A number sign does not start a comment, because posts begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.tagged import TaggedSentence
from lmtransfer.tasks.metrics.chunks import OUTSIDE, split_tag

_DOCUMENT_MARK = "-DOCSTART-"
_BLANKS = re.compile("[ \t]+")


def read_conll(
    path: Path, *, word_column: int, tag_column: int | None, with_gold: bool, notes: Notes
) -> Iterator[TaggedSentence]:
    """Read the sentences of a file in order.

    If the first word's line has a tab, columns are separated by tabs, otherwise by spaces. Every line must have as many
    columns as that line. In a file without the tag column, the tags are hidden.

    Args:
        path: the file, plain or compressed.
        word_column: column of the word, from 1.
        tag_column: column of the tag, from 1; None for the last column, as in all files of these tasks.
        with_gold: whether the file must have the tag column.
        notes: counts document marks, and records the number of columns if there are three or more.

    Raises:
        DataError: a line has a different number of columns, a word or tag is empty, or the file lacks a column; the
            message has ``file:line``.
    """
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    width: int | None = None
    tag = tag_column or 2
    by_tabs = False

    def sentence() -> TaggedSentence:
        hidden = width is not None and width < tag
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
            if tag_column is None and width > 2:
                tag = width
                notes.add(f"file with {width} columns, the last of which has the tags (task.tag_column)", where)
            _check_width(width, where, word_column, tag, with_gold)
        if len(fields) != width:
            raise DataError(
                f"{where}: {len(fields)} columns ({'tabs' if by_tabs else 'spaces'} between them), but the lines "
                f"before have {width}; correct the line (one word per line, a blank line between sentences)"
            )
        if not fields[word_column - 1]:
            raise DataError(f"{where}: the word in column {word_column} is empty; correct or remove the line")
        words.append(fields[word_column - 1])
        lines.append(number)
        if width >= tag:
            if not fields[tag - 1]:
                raise DataError(
                    f"{where}: the word {words[-1]!r} has no tag in column {tag}; add the tag, or remove the "
                    "column from the whole file if its tags are hidden"
                )
            tags.append(fields[tag - 1])
    if words:
        yield sentence()


def scheme_of(sentences: Iterable[Sequence[str]]) -> tuple[Literal["words", "bio", "iob1"], str]:
    """Recognize the meaning of tags: properties of single words, or spans, with the usual name of the span encoding.

    Tags mark spans if all of them are ``O`` or a prefix with a kind (``B-PER``), or only ``O``, ``B``, ``I`` and the
    like. Spans are IOB1 if ``B-`` only ever begins a span next to another of its kind, and ``I-`` begins others.

    Args:
        sentences: the tags of each sentence.
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

    Args:
        tags: ``O``, ``B-kind`` or ``I-kind`` for each word.
    """
    unmarked = set(unmarked_starts(tags))
    return tuple("B" + tag[1:] if word in unmarked else tag for word, tag in enumerate(tags))


def unmarked_starts(tags: Sequence[str]) -> list[int]:
    """Find words that start a span with the tag ``I-kind`` because the preceding word is not in a span of that kind.

    Args:
        tags: tags of one sentence.
    """
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
            f"{where}: {width} columns, the last of which would have both the words and the tags: set task.tag_column"
        )
    if width < tag_column and with_gold:
        raise DataError(
            f"{where}: {width} column{'s' * (width > 1)}, so there are no tags: task.tag_column={tag_column} must be "
            "one of them, counted from 1"
        )

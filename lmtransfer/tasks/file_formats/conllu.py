"""CoNLL-U, the format of Universal Dependencies (https://universaldependencies.org/format.html).

Ten columns separated by tabs: ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS, MISC. An underscore marks an
unspecified value, a number sign starts a comment, and a blank line follows each sentence. Words are syntactic words,
numbered from 1. A range such as ``3-4`` (*don't* before *do* and *n't*) and an empty node such as ``8.1`` have no tags,
so they are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.tagged import TaggedSentence

TagColumn = Literal["upos", "xpos"]

_NUM_COLUMNS: Final = 10
_PLACES: Final[dict[TagColumn, int]] = {"upos": 3, "xpos": 4}
_RANGE = re.compile(r"\d+-\d+")
_EMPTY_NODE = re.compile(r"\d+\.\d+")
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")


def read_conllu(path: Path, *, tag_column: TagColumn, with_gold: bool, notes: Notes) -> Iterator[TaggedSentence]:
    """Read the sentences of a file in order, named by ``sent_id``.

    Args:
        path: the file, plain or compressed.
        tag_column: ``upos`` (the universal tag) or ``xpos`` (the language's own).
        with_gold: whether all words must have a tag; otherwise a sentence whose tags are all underscores has hidden
            tags.
        notes: counts ranges and empty nodes.

    Raises:
        DataError: a line does not have ten columns, words are out of order, or a word has no form or tag; the message
            has ``file:line``.
    """
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    name: str | None = None

    def sentence() -> TaggedSentence:
        untagged = [i for i, tag in enumerate(tags) if tag == "_"]
        if untagged and (len(untagged) < len(tags) or with_gold):
            raise DataError(
                f"{path}:{lines[untagged[0]]}: the word {words[untagged[0]]!r} has no tag in column "
                f"{tag_column.upper()}; add the tag, or set task.tag_column to the column that has tags"
            )
        return TaggedSentence(str(path), tuple(lines), tuple(words), None if untagged else tuple(tags), name)

    for number, line in read_lines(path, notes=notes):
        where = f"{path}:{number}"
        if not line.strip():
            if words:
                yield sentence()
            words, tags, lines, name = [], [], [], None
            continue
        if line.startswith("#"):
            match = _SENTENCE_ID.match(line)
            name = match[1] if match else name
            continue
        fields = line.split("\t")
        if len(fields) != _NUM_COLUMNS:
            raise DataError(f"{where}: {len(fields)} columns, but CoNLL-U has {_NUM_COLUMNS}, with tabs between them")
        if _RANGE.fullmatch(fields[0]):
            notes.add("ranges of several words (3-4), left out", where)
            continue
        if _EMPTY_NODE.fullmatch(fields[0]):
            notes.add("empty nodes (8.1), left out", where)
            continue
        if fields[0] != str(len(words) + 1):
            raise DataError(
                f"{where}: the word has number {fields[0]!r}, but {len(words) + 1} is expected; is a blank line "
                "missing between two sentences?"
            )
        if not fields[1] or not fields[_PLACES[tag_column]]:
            missing = tag_column.upper() if fields[1] else "FORM"
            raise DataError(f"{where}: column {missing} is empty; write an underscore for an unspecified value")
        words.append(fields[1])
        tags.append(fields[_PLACES[tag_column]])
        lines.append(number)
    if words:
        yield sentence()

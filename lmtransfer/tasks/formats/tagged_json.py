"""JSON lines with a sentence each: ``{"words": ["Ann", "ran"], "tags": ["PROPN", "VERB"]}``, and ``id`` if wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmtransfer.data.documents import Notes
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.formats.tagged_sentence import TaggedSentence


def read_tagged_json(
    path: Path, *, words_field: str, tags_field: str, with_gold: bool, notes: Notes
) -> Iterator[TaggedSentence]:
    """The sentences of a file, in its order; blank lines are passed over.

    Args:
        path: the file, plain or compressed.
        words_field: field of the words.
        tags_field: field of the tags.
        with_gold: whether all must have it; else it may be missing or null: hidden.
        notes: where odd things of the file are counted.

    Raises:
        DataError: a line that is no such object, or has another number of tags than words, with ``file:line``.
    """
    for number, line in read_lines(path, notes=notes):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}); a .jsonl file holds one object a line") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: holds {type(record).__name__} where one JSON object a line is expected")
        words = _texts(record, words_field, where, "task.word_column")
        tags = None
        if record.get(tags_field) is not None or with_gold:
            tags = _texts(record, tags_field, where, "task.tag_column")
            if len(tags) != len(words):
                raise DataError(f"{where}: {len(words)} words and {len(tags)} tags; give each word one")
        name = record.get("id")
        yield TaggedSentence(str(path), (number,) * len(words), words, tags, None if name is None else str(name))


def _texts(record: dict[str, Any], name: str, where: str, key: str) -> tuple[str, ...]:
    if name not in record:
        raise DataError(
            f"{where}: no field {name!r}; there are {', '.join(record) or 'none'}. Set {key} to one of these"
        )
    texts = record[name]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise DataError(f"{where}: {name!r} must be a list of texts, at least one, none of them empty")
    return tuple(texts)

"""Read sentences of users: a line of words, JSON lines with ``words``, or files with one word per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmtransfer.data.documents import Notes, clean
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.conll import read_conll
from lmtransfer.tasks.file_formats.conllu import read_conllu
from lmtransfer.tasks.file_formats.tagged import read_tagged_rows
from lmtransfer.tasks.input_files import Given, InputFile, Reader, json_object
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.files import WORDS, words_fields


class SentenceReader(Reader):
    """Makes sentences from the input of users.

    Args:
        kind: short name of the task's kind, for messages.
        file_format: format of the task's own files.
        word_column: column of the words in these files.
        tag_column: column of the tags in these files.
    """

    formats = ("lines", "jsonl", "conll", "conllu", "parquet")
    file_only = ("conll", "conllu", "parquet")

    def __init__(self, kind: str, *, file_format: str, word_column: int | str, tag_column: int | str | None) -> None:
        super().__init__(kind)
        self.json_format = "jsonl"
        self._own_format, self._word_column, self._tag_column = file_format, word_column, tag_column

    def of_filled_line(self, line: str, where: str, name: str, notes: Notes) -> TaggedExample:
        """Make a sentence from a line of words separated by white space."""
        return TaggedExample(name, tuple(clean(line, where, notes).split()))

    def of_file(self, source: InputFile) -> Iterator[Given]:
        """Read JSON lines, or a file with one word per line; its tags are not used."""
        same = source.file_format == self._own_format
        if source.file_format == "jsonl":
            fields = words_fields(self._word_column) if same else WORDS
            yield from source.each_line(lambda line, where, name: _words(line, where, name, fields), pass_blank=True)
            return
        assert source.path is not None
        if source.file_format == "conllu":
            sentences = read_conllu(source.path, tag_column="upos", with_gold=False, notes=source.notes)
        elif source.file_format == "parquet":
            sentences = read_tagged_rows(
                source.path,
                file_format="parquet",
                words_fields=words_fields(self._word_column) if same else WORDS,
                tags_field=str(self._tag_column) if same else "tags",
                with_gold=False,
                notes=source.notes,
            )
        else:
            word = int(self._word_column) if same else 1
            tag = int(self._tag_column) if same and self._tag_column is not None else None
            sentences = read_conll(source.path, word_column=word, tag_column=tag, with_gold=False, notes=source.notes)
        for number, sentence in enumerate(sentences):
            yield sentence.where(), TaggedExample(sentence.name or str(number), sentence.words)


def _words(line: str, where: str, name: str, fields: Sequence[str]) -> TaggedExample:
    row, name = json_object(line, where, name)
    field = next((field for field in fields if row.maybe(field) is not None), fields[0])
    words = tuple(word.filled_text() for word in row.field(field).items())
    if not words:
        raise DataError(f"{where}: {field!r} has no words")
    return TaggedExample(name, words)

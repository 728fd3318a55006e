"""Tagging: a tag for each word of a sentence, such as its part of speech or its position in a named entity.

Shape legend: R words of all sentences, C tags, W words of a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from typing_extensions import override

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import plain_name
from lmtransfer.data.table_rows import TableColumns
from lmtransfer.data.tables import format_by_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
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
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.heads import HeadSpec, TaggingSpec
from lmtransfer.tasks.input_files import InputFile, InputRow, OpenInput, Reader
from lmtransfer.tasks.label_checks import (
    check_label,
    check_labels,
    check_names,
    check_training_file,
    list_labels,
    to_nfc,
)
from lmtransfer.tasks.metrics.chunks import OUTSIDE, Chunks, chunk_scores, split_tag
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import FileSettings, HubDatasetSettings, HubSource, TaskSettings
from lmtransfer.tasks.tagging.example import TaggedExample, encode_words
from lmtransfer.tokenizers.base import Tokenizer

FileFormat = Literal["conll", "conllu", "jsonl", "parquet"]
Scheme = Literal["words", "bio", "iob1"]

UNMARKED = "spans that begin with I- instead of B-, left unchanged"
ENCODED = "encoded"
#: Number of words that a tag needs for a statement about their capital letters.
_MIN_WORDS = 20

#: Columns of the words and of the tags; None for the last column.
_DEFAULT_COLUMNS: dict[FileFormat, tuple[int | str, int | str | None]] = {
    "conll": (1, None),
    "conllu": ("form", "upos"),
    "jsonl": ("words", "tags"),
    "parquet": ("words", "tags"),
}
#: The usual names of the word field, which ``datasets`` calls tokens.
WORDS = ("words", "tokens")


class SentenceReader(Reader):
    """A reader for the user's sentences."""

    formats = ("text", "jsonl", "conll", "conllu", "parquet")
    file_only = ("conll", "conllu", "parquet")

    def __init__(self, kind: str, *, file_format: str, word_column: int | str, tag_column: int | str | None) -> None:
        super().__init__(kind)
        self.json_format = "jsonl"
        self._own_format, self._word_column, self._tag_column = file_format, word_column, tag_column

    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> TaggedExample:
        """Build a sentence from a line with white space between words."""
        return TaggedExample(name, tuple(clean(line, where, notes).split()))

    def parse_file(self, source: InputFile) -> OpenInput:
        """Open JSON, parquet or a file with one word per line; tags are not used."""
        same = source.file_format == self._own_format
        if source.file_format in ("jsonl", "parquet"):
            fields = _words_fields(self._word_column) if same else WORDS
            return source.each_row(fields, lambda row, name: _words(row, name, fields))
        assert source.path is not None
        if source.file_format == "conllu":
            sentences = read_conllu(source.path, tag_column="upos", with_gold=False, notes=source.notes)
        else:
            word = int(self._word_column) if same else 1
            tag = int(self._tag_column) if same and self._tag_column is not None else None
            sentences = read_conll(source.path, word_column=word, tag_column=tag, with_gold=False, notes=source.notes)
        return OpenInput(TableColumns(("id", "words")), _sentence_rows(sentences))


def _sentence_rows(sentences: Iterable[TaggedSentence]) -> Iterator[InputRow]:
    for number, sentence in enumerate(sentences):
        example = TaggedExample(sentence.name or str(number), sentence.words)
        yield InputRow(sentence.where(), example.id, example, {"id": example.id, "words": list(example.words)})


def _words(row: JsonNode, name: str, fields: Sequence[str]) -> TaggedExample:
    field = next((field for field in fields if row.get(field) is not None), fields[0])
    words = tuple(word.nonblank_text() for word in row.field(field).items())
    if not words:
        raise DataError(f"{row.where}: {field!r} has no words")
    return TaggedExample(name, words)


class Tagging(Task):
    """Sentences with one tag per word, from one file per split or from the hub.

    Tags may be missing in splits whose name begins with ``test``. Sentences longer than ``max_length`` are read in
    windows.

    Attributes:
        notes: unusual input by split, found by the last ``examples``; under ``"encoded"``, by the last ``encode``.
    """

    class Settings(TaskSettings, FileSettings, HubDatasetSettings):
        """The settings of tagging.

        Attributes:
            scheme: meaning of the tags. ``words``: a property of each word; the metric is accuracy over words. ``bio``:
                spans and their kinds (also BIOES, BILOU); the main metric is span F1. ``iob1``: spans in files that
                write ``B-`` only between two spans of the same kind (CoNLL-2003's), converted to BIO. null: recognized
                from the tags of the training split.
            labels: the tags in order; null: the tags of the training file, sorted, with ``O`` first.
            file_format: ``conll`` (columns, a blank line between sentences), ``conllu``, ``jsonl`` or ``parquet``.
            word_column: conll: the word's column, counted from 1, null: 1; jsonl and parquet: field of the words, null:
                ``words`` or ``tokens``.
            tag_column: conll: the tag's column, counted from 1, null: the last one; jsonl and parquet: field of the
                tags, null: ``tags``; conllu: ``upos`` or ``xpos``, null: ``upos``.
            hub_columns: names of the columns of the words and of the tags on the hub.
        """

        scheme: Scheme | None = None
        labels: Sequence[str] | None = None
        file_format: FileFormat = "conll"
        word_column: int | str | None = None
        tag_column: int | str | None = None
        hub_columns: Sequence[str] = ("tokens", "tags")

    settings: Settings
    baseline_name = "most frequent tag"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        asked = self.settings
        self.files = asked.located_files(task=self.name)
        self.splits = self.files.splits
        self.notes: dict[str, Notes] = {}
        word, tag = _DEFAULT_COLUMNS[asked.file_format]
        self._word_column = word if asked.word_column is None else asked.word_column
        self._tag_column = tag if asked.tag_column is None else asked.tag_column
        _check_columns(asked.file_format, self._word_column, self._tag_column)
        if len(asked.hub_columns) != 2:
            raise ConfigError(
                f"task.hub_columns={list(asked.hub_columns)}: name the column of the words, then that of the tags"
            )
        self._span_encoding = ""
        if asked.labels is not None:
            labels = [to_nfc(label, "task.labels") for label in asked.labels]
            self.labels = self._check(labels, asked.scheme or "words")

    @cached_property
    def scheme(self) -> Scheme:
        """The meaning of the tags."""
        if self.settings.scheme is not None:
            return self.settings.scheme
        if "train" not in self.splits:
            raise ConfigError(
                "task.scheme=null: there is no training file from which to recognize the scheme; set words, bio or iob1"
            )
        scheme, self._span_encoding = scheme_of(sentence.tags or () for sentence in self._read("train", Notes()))
        return scheme

    @property
    def main_metric(self) -> str:  # type: ignore[override]
        """Accuracy over words, or F1 of spans."""
        return "accuracy" if self.scheme == "words" else "f1"

    @cached_property
    @override
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._check(self.discover_labels(), self.scheme)

    def discover_labels(self) -> list[str]:
        """Return the tags of the training split: ``O``, then the others in alphabetical order."""
        check_training_file(self.splits, self.name, items="tags")
        tag_column = self._tag_column
        column = "task.tag_column (now the last)" if tag_column is None else f"task.tag_column={tag_column}"
        counts = Counter[str]()
        for sentence in self._sentences("train", Notes()):
            for word, tag in enumerate(sentence.tags or ()):
                if tag not in counts:
                    check_label(tag, sentence.where(word), column)
                counts[tag] += 1
        check_labels(counts, origin=self.origin("train"), items="words", column=column)
        return sorted(counts, key=lambda tag: (tag != OUTSIDE, tag))

    def _check(self, labels: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
        checked = check_names(labels)
        if scheme != "words":
            try:
                for label in labels:
                    split_tag(label)
            except DataError as error:
                raise ConfigError(f"task.labels: {error} (set task.scheme=words)") from None
        return checked

    @override
    def reader(self) -> SentenceReader:
        return SentenceReader(
            TaggingSpec.kind,
            file_format=self.settings.file_format,
            word_column=self._word_column,
            tag_column=self._tag_column,
        )

    @override
    def texts(self, example: TaggedExample) -> tuple[str, ...]:
        return (" ".join(example.words),)

    @override
    def echo(self, example: TaggedExample) -> dict[str, Any]:
        return {"words": list(example.words)}

    @property
    def head(self) -> HeadSpec:
        """A head that predicts one of C tags per word."""
        return TaggingSpec(len(self.labels))

    @override
    def origin(self, split: str) -> str:
        return self.files.origin(split)

    @override
    def capitals(self, examples: Sequence[TaggedExample]) -> tuple[str, float, float] | None:
        kinds = [label if self.scheme == "words" else split_tag(label)[1] or label for label in self.labels]
        totals, capitals = Counter[str](), Counter[str]()
        for example in examples:
            for word, tag in zip(example.words, example.tags or (), strict=False):
                totals[kinds[tag]] += 1
                capitals[kinds[tag]] += word[:1].isupper()
        num_words, num_capitals = totals.total(), capitals.total()
        contrasts = [
            (kind, capitals[kind] / num, (num_capitals - capitals[kind]) / (num_words - num))
            for kind, num in totals.items()
            if kind != OUTSIDE and _MIN_WORDS <= num < num_words
        ]
        return max(contrasts, key=lambda contrast: contrast[1] - contrast[2], default=None)

    @override
    def examples(self, split: str) -> list[TaggedExample]:
        notes = self.notes[split] = Notes()
        index = {label: number for number, label in enumerate(self.labels)}
        sentences: list[TaggedExample] = []
        places: dict[str, str] = {}
        for number, sentence in enumerate(self._sentences(split, notes)):
            name = sentence.name or f"{split}:{number}"
            if name in places:
                raise DataError(
                    f"{sentence.where()}: {places[name]} has the same id {name}; give each sentence a unique id"
                )
            places[name] = sentence.where()
            sentences.append(TaggedExample(name, sentence.words, self._indices(sentence, index)))
        if not sentences:
            raise DataError(f"{self.origin(split)}: there are no sentences")
        if self.scheme != "words" and self._span_encoding:
            kind = f"sentences with tags that mark spans ({self._span_encoding}), scored by F1 unless task.scheme=words"
            notes.add(kind, self.origin(split), len(sentences))
        return sentences

    def _sentences(self, split: str, notes: Notes) -> Iterator[TaggedSentence]:
        """Yield the sentences of a split, in the order of the source, with spans in BIO."""
        sentences = (_normalize(sentence, notes) for sentence in self._read(split, notes))
        return sentences if self.scheme == "words" else (self._as_bio(sentence, notes) for sentence in sentences)

    def _read(self, split: str, notes: Notes) -> Iterator[TaggedSentence]:
        source, file_format = self.files.locate(split), self.settings.file_format
        if isinstance(source, HubSource):
            words, tags = self.settings.hub_columns
            places = self.files.places(split)
            return read_tagged_hub(source, split, words_column=words, tags_column=tags, places=places)
        name_format, with_gold = _format_by_name(source), not split.startswith("test")
        if file_format == "conll":
            if name_format is not None:
                raise DataError(
                    f"{source}: the name has the suffix of a {name_format} file, but task.file_format=conll reads "
                    f"columns: set task.file_format={name_format}, or rename the file"
                )
            word, tag = int(self._word_column), None if self._tag_column is None else int(self._tag_column)
            return read_conll(source, word_column=word, tag_column=tag, with_gold=with_gold, notes=notes)
        if file_format == "conllu":
            return read_conllu(source, tag_column=cast(TagColumn, self._tag_column), with_gold=with_gold, notes=notes)
        return read_tagged_rows(
            source,
            file_format=name_format if name_format == "jsonl" or name_format == "parquet" else file_format,
            words_fields=_words_fields(self._word_column),
            tags_field=str(self._tag_column),
            with_gold=with_gold,
            notes=notes,
        )

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

    def _indices(self, sentence: TaggedSentence, index: Mapping[str, int]) -> tuple[int, ...] | None:
        if sentence.tags is None:
            return None
        for word, tag in enumerate(sentence.tags):
            if tag not in index:
                raise DataError(
                    f"{sentence.where(word)}: the tag {tag!r} of {sentence.words[word]!r} is not one of "
                    f"{list_labels(list(index))}; correct it, or set task.labels"
                )
        return tuple(index[tag] for tag in sentence.tags)

    @override
    def encode(
        self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode sentences as [CLS] w1 w2 ... [SEP], long ones in windows."""
        notes = self.notes[ENCODED] = Notes()
        return encode_words(examples, tokenizer, max_length=max_length, notes=notes)

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[TagsAnswer]:
        """Yield the most probable tag of each word, one answer per sentence."""
        stop = 0
        for example in encoded.examples:
            start, stop = stop, stop + len(example.words)
            logits_WC = outputs[start:stop].astype(np.float64)
            tags_W = logits_WC.argmax(axis=1)
            chosen_W1 = np.take_along_axis(logits_WC, tags_W[:, None], axis=1)
            probabilities_W = 1 / np.exp(logits_WC - chosen_W1).sum(axis=1)
            yield self._answer(tags_W.tolist(), tuple(probabilities_W.tolist()))

    def _answer(self, tags: Sequence[int], probabilities: tuple[float, ...] | None = None) -> TagsAnswer:
        return TagsAnswer(tuple(tags), tuple(self.labels[tag] for tag in tags), probabilities)

    @override
    def score(self, examples: Sequence[TaggedExample], answers: Iterable[TagsAnswer]) -> dict[str, float]:
        """Compute ``accuracy`` over words; for spans first ``f1``, ``precision`` and ``recall`` (see ``Chunks``)."""
        chunks = None if self.scheme == "words" else Chunks(labels=self.labels)
        counts = np.zeros(3)
        num_right = num_words = 0
        for example, answer in zip(examples, answers, strict=True):
            if example.tags is None:
                raise DataError(f"{example.id} has no gold tags, so it cannot be scored")
            num_right += sum(gold == tag for gold, tag in zip(example.tags, answer.tags, strict=True))
            num_words += len(example.tags)
            if chunks is not None:
                counts += chunks.counts(answer.tags, example.tags)
        accuracy = {"accuracy": num_right / num_words if num_words else 0.0}
        return accuracy if chunks is None else chunk_scores(*counts.tolist()) | accuracy

    @override
    def scored_examples(self, examples: Sequence[TaggedExample], answers: Sequence[TagsAnswer]) -> ScoredExamples:
        pairs = [(answer.tags, example.tags or ()) for example, answer in zip(examples, answers, strict=True)]
        words = np.array([len(gold) for _, gold in pairs], dtype=np.float64)
        right = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairs], dtype=np.float64)
        ratios = {"accuracy": Ratio(right, words)}
        if self.scheme != "words":
            chunks = Chunks(labels=self.labels)
            counts = np.array([chunks.counts(*pair) for pair in pairs], dtype=np.float64).reshape(-1, 3)
            right, predicted, gold = counts.T
            ratios |= {
                "f1": Ratio(2 * right, predicted + gold),
                "precision": Ratio(right, predicted),
                "recall": Ratio(right, gold),
            }
        return scored_examples(
            examples,
            kind="tagging",
            labels=self.labels,
            predicted=np.array([tag for predicted, _ in pairs for tag in predicted], dtype=np.int64),
            gold=np.array([tag for _, gold in pairs for tag in gold], dtype=np.int64),
            words=words,
            ratios=ratios,
            confidences=[
                probability for answer in answers for probability in (answer.probabilities or [None] * len(answer.tags))
            ],
        )

    def baseline(self, train: Sequence[TaggedExample], examples: Sequence[TaggedExample]) -> list[TagsAnswer]:
        """Predict the most frequent training tag for every word (on a tie, the first in ``labels``)."""
        counts = np.bincount([tag for example in train for tag in example.tags or ()], minlength=len(self.labels))
        return [self._answer([int(counts.argmax())] * len(example.words)) for example in examples]


def _normalize(sentence: TaggedSentence, notes: Notes) -> TaggedSentence:
    """Return the sentence with its tags in NFC."""
    if all(map(str.isascii, sentence.tags or ())):
        return sentence
    return replace(sentence, tags=tuple(to_nfc(tag, sentence.where(), notes) for tag in sentence.tags or ()))


def _format_by_name(path: Path) -> FileFormat | None:
    """Return the format that a file's name implies; None for columns."""
    if plain_name(path).lower().endswith(".conllu"):
        return "conllu"
    name_format = format_by_name(path)
    return name_format if name_format == "jsonl" or name_format == "parquet" else None


def _words_fields(word_column: int | str) -> tuple[str, ...]:
    """Return the alternative names of the field of the words."""
    return WORDS if word_column == WORDS[0] else (str(word_column),)


def _check_columns(file_format: FileFormat, word_column: int | str, tag_column: int | str | None) -> None:
    if file_format == "conllu":
        if word_column != "form":
            raise ConfigError(
                f"task.word_column={word_column} must be null in CoNLL-U, where words are always in the column FORM"
            )
        if tag_column not in ("upos", "xpos"):
            raise ConfigError(f"task.tag_column={tag_column} must be upos or xpos in CoNLL-U")
    for key, column in (("word_column", word_column), ("tag_column", tag_column)):
        if column is None:
            continue
        if file_format == "conll" and (not isinstance(column, int) or column < 1):
            raise ConfigError(f"task.{key}={column} must be the number of a column, counted from 1")
        if file_format in ("jsonl", "parquet") and not isinstance(column, str):
            raise ConfigError(f"task.{key}={column} must be the name of a field")
    if word_column == tag_column:
        raise ConfigError(f"task.tag_column={tag_column}: words and tags must be in different columns")

"""The statistics of a prepared corpus, which are part of its manifest: counts, rates and irregularities."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class CorpusStatistics:
    """Counts over a whole prepared corpus, training and validation together unless the name says otherwise.

    Attributes:
        documents: documents with text, duplicates included; with ``split_unit=paragraphs`` the beginning and the ending
            of a document count as two documents.
        validation_documents: number of held-out documents.
        duplicate_documents: number of exact duplicates of earlier documents.
        sentences: sentences (see ``lmtransfer.data.corpora.sentences``) with at least one token.
        words: sequences of characters between white space.
        tokens: tokens of the tokenizer, without special tokens.
        validation_words: number of held-out words.
        validation_tokens: number of held-out tokens.
        unknown_tokens: number of unknown tokens.
        text_bytes: bytes of the documents' text as UTF-8.
        longest_sentence_tokens: tokens of the longest sentence.
        seconds: wall-clock time of the preparation, excluding interrupted attempts.
        notes: irregularities in the input: their count and first place, by kind.
    """

    documents: int = 0
    validation_documents: int = 0
    duplicate_documents: int = 0
    sentences: int = 0
    words: int = 0
    tokens: int = 0
    validation_words: int = 0
    validation_tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    longest_sentence_tokens: int = 0
    seconds: float = 0.0
    notes: dict[str, dict[str, int | str]] = field(default_factory=dict)

    @property
    def unknown_rate(self) -> float:
        """Share of the tokens that are the unknown token, 0 to 1."""
        return self.unknown_tokens / self.tokens if self.tokens else 0.0

    def add(self, other: CorpusStatistics) -> None:
        """Add the counts of another part of the same corpus."""
        for name in (item.name for item in fields(self) if item.name != "notes"):
            combine = max if name == "longest_sentence_tokens" else int.__add__ if name != "seconds" else float.__add__
            setattr(self, name, combine(getattr(self, name), getattr(other, name)))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)

"""A text or a text pair with a label, a set of labels or a score, and the sentence that contains a phrase (SST-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

#: The sentence of a phrase that occurs in several sentences.
OF_SEVERAL = ""


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or pair of texts.

    Attributes:
        label: index into the task's ``labels``; None if hidden, and for other kinds of tasks.
        label_set: indices of all labels, ascending; None if hidden, and for other kinds of tasks.
        part_of: the sentence of which the text is a phrase; "" if there are several, None if the task has no phrases.
    """

    id: str
    text: str
    text_pair: str | None = None
    label: int | None = None
    label_set: tuple[int, ...] | None = None
    score: float | None = None
    part_of: str | None = None
    language: str | None = None

    @property
    def has_gold(self) -> bool:
        """Whether the label, the set of labels or the score is known."""
        return self.label is not None or self.label_set is not None or self.score is not None

    @property
    def content(self) -> tuple[str, ...]:
        """The text, or the texts of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def class_index(self) -> int:
        """The label."""
        return -1 if self.label is None else self.label

    @property
    def group(self) -> str:
        """The sentence of which the text is a phrase, otherwise the text itself: the first of a pair (a premise)."""
        return self.text if self.part_of is None else self.part_of


def sentences_of(texts: Sequence[str]) -> list[str]:
    """Return the sentence of which each text is a part: the longest of these texts that contains its words in a row.

    A text that is not part of another is its own sentence. A phrase in several sentences gets ``OF_SEVERAL``. Thus if
    one text is part of another, either both have the same sentence, or the shorter one gets ``OF_SEVERAL``.

    Args:
        texts: texts with spaces between their words.
    """
    words = [tuple(text.split()) for text in texts]
    owners: dict[int, str | None] = {}  # by hash of consecutive words; None for several sentences
    for own in sorted(set(words), key=lambda own: (-len(own), own)):
        if hash(own) in owners:
            continue
        sentence = " ".join(own)
        for start in range(len(own)):
            for stop in range(start + 1, len(own) + 1):
                part = hash(own[start:stop])
                owners[part] = sentence if owners.get(part, sentence) == sentence else None
    return [owners.get(hash(own), " ".join(own)) or OF_SEVERAL for own in words]


def with_sentences(examples: Sequence[TextExample]) -> list[TextExample]:
    """Return the same examples, each with the sentence of which it is a part."""
    sentences = sentences_of([example.text for example in examples])
    return [replace(example, part_of=sentence) for example, sentence in zip(examples, sentences, strict=True)]

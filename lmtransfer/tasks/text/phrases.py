"""Which sentence a phrase comes from, where a training set holds both and does not say (SST-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.tasks.text.text_example import TextExample

#: Of a phrase that several sentences have.
OF_SEVERAL = ""


def sentences_of(texts: Sequence[str]) -> list[str]:
    """For each text the sentence that it is a part of: the longest text, of these, that has its words in a row.

    A sentence is a text that is part of no other, and is its own. Of a phrase in several sentences it is
    ``OF_SEVERAL``. So of two texts of which one is part of the other, the longer is of the same sentence as the
    shorter, or the shorter is of several.

    Args:
        texts: with their words between spaces.
    """
    words = [tuple(text.split()) for text in texts]
    owners: dict[int, str | None] = {}  # by hash of words in a row; None: several
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
    """The same examples, each with the sentence that it is a part of."""
    sentences = sentences_of([example.text for example in examples])
    return [replace(example, part_of=sentence) for example, sentence in zip(examples, sentences, strict=True)]

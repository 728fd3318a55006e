"""Texts and pairs with a label, a set of labels or a score, and their encoding as [CLS] a [SEP] b [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmtransfer.tasks.encoded import EncodedExamples, TokenRows, ragged_offsets, text_capacity
from lmtransfer.tasks.heads import Targets
from lmtransfer.tokenizers.base import Tokenizer

#: Stands for the sentence of a phrase that occurs in several sentences.
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
        """The sentence of which the text is a phrase, otherwise the text itself or the first text of a pair."""
        return self.text if self.part_of is None else self.part_of


def sentences_of(texts: Sequence[str]) -> list[str]:
    """Return the sentence that contains each text: the longest of these texts with the same consecutive words.

    A text that is not part of another is its own sentence. A phrase in several sentences gets ``OF_SEVERAL``. Thus, if
    one text is part of another, either both have the same sentence, or the shorter one gets ``OF_SEVERAL``.
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
    """Return the same examples, each with the sentence that contains its text."""
    sentences = sentences_of([example.text for example in examples])
    return [replace(example, part_of=sentence) for example, sentence in zip(examples, sentences, strict=True)]


def encode_texts(
    examples: Sequence[TextExample],
    targets: Targets[np.ndarray],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    num_segments: int,
) -> EncodedExamples:
    """Encode single texts or pairs as BERT does (Devlin et al. 2019, section 3).

    A pair that is too long loses one token at a time from the end of the longer text (on a tie, of the second text).
    Without segments in the encoder, both texts have segment 0.
    """
    texts = [example.text for example in examples]
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    num_specials = 3 if pairs else 2
    capacity = text_capacity(num_specials, max_length=max_length)
    firsts = tokenizer.encode_ids(texts)
    seconds = tokenizer.encode_ids(pairs) if pairs else [None] * len(firsts)
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    token_rows = TokenRows(tokenizer)
    pieces: list[np.ndarray] = []
    sizes = np.zeros((len(firsts), 2), dtype=np.int64)  # number of tokens of each text, with its special tokens
    num_truncated = 0
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        keep_first, keep_second = longest_first(len(first), 0 if second is None else len(second), capacity)
        num_truncated += keep_first < len(first) or (second is not None and keep_second < len(second))
        pieces += [cls, token_rows.rows(first[:keep_first], texts[i]), sep]
        sizes[i, 0] = keep_first + 2
        if second is not None:
            pieces += [token_rows.rows(second[:keep_second], pairs[i]), sep]
            sizes[i, 1] = keep_second + 1
    tokens_T, character_table = token_rows.join(pieces)
    return EncodedExamples(
        examples=tuple(examples),
        owners=np.arange(len(examples), dtype=np.int64),
        tokens_T=tokens_T,
        segments_T=np.repeat(np.tile(np.array([0, min(1, num_segments - 1)], np.int8), len(sizes)), sizes.ravel()),
        offsets=ragged_offsets(sizes.sum(1)),
        targets=targets,
        target_offsets=np.arange(len(examples) + 1),
        num_truncated=num_truncated,
        first_lengths=sizes[:, 0] if pairs else None,
        character_table=character_table,
    )


def longest_first(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Return how many tokens each text keeps if tokens are cut from the longer text (on a tie, the second)."""
    if first + second <= capacity:
        return first, second
    half = (capacity + 1) // 2
    if second <= capacity - half:
        return capacity - second, second
    if first <= half:
        return first, capacity - first
    return half, capacity - half

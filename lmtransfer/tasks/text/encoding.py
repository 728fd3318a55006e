"""Texts as [CLS] text [SEP], and text pairs as [CLS] a [SEP] b [SEP], in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmtransfer.tasks.encoded import EncodedExamples, character_rows_of, join_arrays, ragged_offsets, text_capacity
from lmtransfer.tasks.targets import Targets
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer


def encode_texts(
    examples: Sequence[TextExample],
    targets: Targets[np.ndarray],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    num_segments: int,
) -> EncodedExamples:
    """Encode single texts or pairs as BERT does (Devlin et al. 2019, section 3).

    A pair that is too long loses one token at a time from the end of the longer text (on a tie, of the second text). An
    encoder without segments gets 0 for both texts.
    """
    texts = [example.text for example in examples]
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    num_specials = 3 if pairs else 2
    capacity = text_capacity(num_specials, max_length=max_length)
    firsts = tokenizer.encode_ids(texts)
    seconds = tokenizer.encode_ids(pairs) if pairs else [None] * len(firsts)
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    character_rows = character_rows_of(tokenizer)
    pieces: list[np.ndarray] = []
    table_rows: list[np.ndarray] = []
    segments: list[np.ndarray] = []
    lengths = np.zeros(len(firsts), dtype=np.int64)
    first_lengths = np.zeros(len(firsts), dtype=np.int64)
    num_truncated = 0
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        keep_first, keep_second = longest_first(len(first), 0 if second is None else len(second), capacity)
        num_truncated += keep_first < len(first) or (second is not None and keep_second < len(second))
        pieces += [cls, first[:keep_first], sep]
        if character_rows is not None:
            table_rows += [cls, character_rows.rows(first[:keep_first], texts[i]), sep]
        lengths[i] = first_lengths[i] = keep_first + 2
        segments.append(np.zeros(keep_first + 2, dtype=np.int8))
        if second is not None:
            pieces += [second[:keep_second], sep]
            if character_rows is not None:
                table_rows += [character_rows.rows(second[:keep_second], pairs[i]), sep]
            lengths[i] += keep_second + 1
            segments.append(np.full(keep_second + 1, min(1, num_segments - 1), dtype=np.int8))
    return EncodedExamples(
        examples=tuple(examples),
        owners=np.arange(len(examples), dtype=np.int64),
        tokens_T=join_arrays(pieces),
        segments_T=np.concatenate(segments) if segments else np.zeros(0, np.int8),
        offsets=ragged_offsets(lengths),
        targets=targets,
        target_offsets=np.arange(len(examples) + 1),
        num_truncated=num_truncated,
        first_lengths=first_lengths if pairs else None,
        character_table=None if character_rows is None else character_rows.character_table(table_rows),
    )


def longest_first(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Return the number of tokens that two texts keep if tokens are cut from the longer (on a tie, the second)."""
    if first + second <= capacity:
        return first, second
    half = (capacity + 1) // 2
    if second <= capacity - half:
        return capacity - second, second
    if first <= half:
        return first, capacity - first
    return half, capacity - half

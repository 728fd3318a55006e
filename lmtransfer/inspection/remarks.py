"""What a user should know about their rows beyond the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lmtransfer.data.store.cache import PreparedCorpus
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.objectives.views import RowCounts

_MANY_DUPLICATES, _MANY_UNKNOWN = 0.01, 0.01
_FEW_STEPS = 20
#: Rows of mixed length cost more the further their mean is from the longest.
_SHORT = 0.5


def remarks(
    prepared: PreparedCorpus, lengths: np.ndarray, counts: RowCounts, rows: Rows, *, steps: int
) -> Sequence[str]:
    """One sentence each, with what to do about it."""
    return list(_remarks(prepared, lengths, counts, rows, steps))


def _remarks(prepared: PreparedCorpus, lengths: np.ndarray, counts: RowCounts, rows: Rows, steps: int) -> Iterator[str]:
    statistics = prepared.statistics
    for kind, note in statistics.notes.items():
        yield f"{kind}: {note['count']:,} (first at {note['first']})"
    if statistics.duplicate_documents > _MANY_DUPLICATES * statistics.documents:
        share = statistics.duplicate_documents / statistics.documents
        yield f"{share:.1%} of the documents are copies of others, which a model learns by heart: remove them"
    if statistics.unknown_rate > _MANY_UNKNOWN:
        yield (
            f"{statistics.unknown_rate:.1%} of the tokens are unknown: raise tokenizer.character_coverage, or set "
            "tokenizer.byte_fallback=true"
        )
    if prepared.validation.num_tokens == 0:
        yield "nothing is held out, so there will be no validation: raise corpus.validation_fraction"
    if lengths.mean() < _SHORT * rows.max_length:
        yield (
            f"rows have {lengths.mean():.0f} tokens on average where objective.max_length={rows.max_length} allows "
            f"more: objective/rows=stream or full_sentences fills them"
        )
    for name, values in counts.labels.items():
        if len(values) == 1:
            (value,) = values
            yield (
                f"every row has {name} {value} ({rows.label_names[name][value]}), so there is nothing to learn from "
                "it: documents need several sentences each"
            )
    if steps < _FEW_STEPS:
        yield f"an epoch is only {steps} steps: a small corpus is soon learnt by heart, give more text"

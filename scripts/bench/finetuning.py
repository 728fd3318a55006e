"""The labeled rows that both sides train on, with the lengths of SST-2, MNLI and SQuAD."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from lmtransfer.data.documents import Corpus
from lmtransfer.data.files import find_file, read_lines
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import LabelTargets, SpanTargets
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer

from .setting import Setting

#: File in the data folder, its text columns, and the number of corpus sentences that replace each column if the file is
#: missing.
_SOURCES = {
    "finetune": ("sst2/train.tsv", (0,), (1,)),
    "finetune_pairs": ("lingnli/train.tsv", (0, 1), (1, 1)),
    "finetune_spans": (None, (), (1, 8)),
}


def examples_of(setting: Setting, corpus: Corpus, tokenizer: Tokenizer) -> EncodedExamples:
    """Build as many examples as the steps need; labels and spans are arbitrary, which does not affect the time."""
    texts = list(islice(_texts(setting.part, corpus), setting.rows * (setting.steps + setting.warmup)))
    examples = [TextExample(str(i), sides[0], sides[1] if len(sides) > 1 else None) for i, sides in enumerate(texts)]
    labels = np.arange(len(examples)) % 2
    encoded = encode_texts(examples, LabelTargets(labels), tokenizer, max_length=setting.length, num_segments=2)
    return _with_spans(encoded) if setting.part == "finetune_spans" else encoded


def _texts(part: str, corpus: Corpus) -> Iterator[tuple[str, ...]]:
    """Yield the texts from the data folder ``LMTRANSFER_DATA`` if it exists, else from sentences of the corpus."""
    name, columns, sentences = _SOURCES[part]
    path = find_file(Path(os.environ.get("LMTRANSFER_DATA", "/nowhere")) / name) if name else None
    if path is not None:
        for number, line in read_lines(path):
            if number > 1:
                fields = line.rstrip("\n").split("\t")
                yield tuple(fields[column] for column in columns)
        return
    source = (sentence for document in corpus.documents() for sentence in document.text.split(". ") if sentence)
    while True:
        sides = tuple(". ".join(islice(source, count)) for count in sentences)
        if not all(sides):
            return
        yield sides


def _with_spans(encoded: EncodedExamples) -> EncodedExamples:
    """Add a span of three tokens in the second text to each row."""
    rows = []
    for start, stop in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True):
        first, last = int((encoded.segments_T[start:stop] == 0).sum()), int(stop - start) - 1
        begin = first + (last - first) // 3
        rows.append([begin, min(begin + 2, last - 1), -1, first, last])
    return EncodedExamples(
        examples=encoded.examples,
        owners=encoded.owners,
        tokens_T=encoded.tokens_T,
        segments_T=encoded.segments_T,
        offsets=encoded.offsets,
        targets=SpanTargets(*np.array(rows).T),
        target_offsets=encoded.target_offsets,
        num_truncated=encoded.num_truncated,
    )

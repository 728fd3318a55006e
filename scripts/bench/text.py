"""The rows that both sides train on."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.python_docs import PythonDocs
from lmtransfer.data.documents import Corpus
from lmtransfer.data.store.cache import prepare, tokenizer_for
from lmtransfer.errors import DataError
from lmtransfer.objectives.corruption.token_masking import TokenMasking
from lmtransfer.objectives.learner import needed_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.rows.sentence_pairs import SentencePairs
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.train import SentencePieceTrainer

from .finetuning import examples_of
from .setting import FINETUNING, MASK_PROB, Setting


def text() -> tuple[Corpus, Tokenizer]:
    """The Python documentation, or generated words if the packages that contain it are not installed."""
    trainer = SentencePieceTrainer(kind="unigram", vocab_size=8192, allow_fewer=True)
    if not os.environ.get("LMTRANSFER_BENCH_SYNTHETIC"):
        try:
            corpus = PythonDocs()
            return corpus, tokenizer_for(corpus, trainer)
        except DataError as error:
            print(f"made-up text instead of the Python documentation: {str(error).splitlines()[0]}", flush=True)
    made_up = FileCorpus(path=str(_synthetic()), name="synthetic")
    return made_up, tokenizer_for(made_up, trainer)


def _synthetic(num_documents: int = 4000) -> Path:
    """Documents of random words with frequencies as in English (Zipf), the same in every run."""
    path = Path(gettempdir()) / f"lmtransfer-bench-{num_documents}.txt"
    if not path.is_file():
        draw = random.Random(0)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20000)]
        weights = [1 / (rank + 1) for rank in range(len(words))]
        documents = (
            "\n".join(" ".join(draw.choices(words, weights, k=draw.randint(5, 40))) + "." for _ in range(12))
            for _ in range(num_documents)
        )
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        staged.replace(path)
    return path


def objectives_of(setting: Setting) -> Sequence[Any]:
    """The losses of pretraining."""
    return [MaskedLanguageModel(), *([NextSentencePrediction()] if setting.part == "pairs" else [])]


def source_of(setting: Setting, *, capacity: int | None, few_shapes: bool) -> tuple[Any, Tokenizer]:
    """The rows of a part, read in the same way as by the commands."""
    corpus, tokenizer = text()
    if setting.part in FINETUNING:
        return TaskSource(examples_of(setting, corpus, tokenizer)), tokenizer
    kind = SentencePairs if setting.part == "pairs" else LanguageStream
    source = PretrainingSource(
        store=prepare(corpus, tokenizer).train,
        rows=kind(tokenizer=tokenizer, max_length=setting.length),
        corruption=TokenMasking(tokenizer=tokenizer, mask_prob=MASK_PROB),
        seed=0,
        output_positions=needed_output_positions(objectives_of(setting)),
        capacity=capacity,
        few_shapes=few_shapes,
    )
    return source, tokenizer

"""The rows that both sides train on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.python_docs import PythonDocs
from lmtransfer.data.documents import Corpus
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_cache import prepare, tokenizer_for
from lmtransfer.errors import DataError
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import SentencePieceTrainer

from .finetuning import examples_of
from .made_up import text_file
from .setting import FINETUNING, MASK_PROB, Setting

#: The variable that sets the number of made-up documents, which are then used even if the documentation is installed.
_MADE_UP = "LMTRANSFER_BENCH_SYNTHETIC"
_NUM_MADE_UP = 4000


@cache
def made_up_file() -> Path | None:
    """Return the file of made-up text that replaces the Python documentation; None if this is installed."""
    num_documents = os.environ.get(_MADE_UP)
    if num_documents:
        return text_file(int(num_documents))
    try:
        PythonDocs().fingerprint()
    except DataError as error:
        print(f"made-up text instead of the Python documentation: {str(error).splitlines()[0]}", flush=True)
        return text_file(_NUM_MADE_UP)
    return None


def corpus_overrides() -> list[str]:
    """Return the words that set the corpus on a command line."""
    path = made_up_file()
    return ["corpus=python_docs"] if path is None else ["corpus=text", f"corpus.path={path}"]


def text() -> tuple[Corpus, Tokenizer]:
    """Return the corpus and its tokenizer."""
    path = made_up_file()
    corpus = PythonDocs() if path is None else FileCorpus(path=str(path), name="synthetic")
    return corpus, tokenizer_for(corpus, SentencePieceTrainer(kind="unigram", vocab_size=8192, allow_fewer=True))


def objectives_of(setting: Setting) -> Sequence[Any]:
    """Return the losses of pretraining."""
    return [MaskedLanguageModel(), *([NextSentencePrediction()] if setting.part == "pairs" else [])]


def stream_of(
    setting: Setting, *, one_size: bool, few_shapes: bool, num_workers: int
) -> tuple[PlannedStream, Tokenizer]:
    """Return the steps of a part, read in the same way as by the commands, and the tokenizer.

    Args:
        setting: the part.
        one_size: whether pretraining batches are filled to a fixed size, for compiled blocks.
        few_shapes: whether pretraining batches have few sizes.
        num_workers: number of processes that build pretraining batches.
    """
    corpus, tokenizer = text()
    if setting.part in FINETUNING:
        return PlannedStream(
            TaskSource(examples_of(setting, corpus, tokenizer)), seed=0, batch_examples=setting.rows
        ), tokenizer
    store, rows = prepare(corpus, tokenizer).train, _rows(setting, tokenizer)
    step_tokens = setting.rows * setting.length
    if setting.part == "ragged":  # the average number of tokens in this number of rows
        mean_length = float(rows.plan(store, seed=0, epoch=0).lengths.mean())
        step_tokens = max(round(setting.rows * mean_length), setting.length)
    source = PretrainingSource(
        store=store,
        rows=rows,
        corruption=TokenMasking(tokenizer=tokenizer, mask_prob=MASK_PROB),
        seed=0,
        output_positions=collect_output_positions(objectives_of(setting)),
        capacity=step_tokens if one_size else None,
        few_shapes=few_shapes,
    )
    loader: dict[str, Any] = {"num_workers": num_workers, "pin_memory": setting.device == "cuda"}
    if setting.part == "ragged":
        return PlannedStream(source, seed=0, batch_tokens=step_tokens, **loader), tokenizer
    return PlannedStream(source, seed=0, batch_examples=setting.rows, **loader), tokenizer


def _rows(setting: Setting, tokenizer: Tokenizer) -> Rows:
    if setting.part == "ragged":
        return FullSentences(tokenizer=tokenizer, max_length=setting.length, cross_documents=False)
    kind = SentencePairs if setting.part == "pairs" else LanguageStream
    return kind(tokenizer=tokenizer, max_length=setting.length)

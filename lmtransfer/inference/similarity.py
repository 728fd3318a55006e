"""Sentence similarity scores: the cosine of sentence vectors, for any run and without training."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from lmtransfer.errors import DataError
from lmtransfer.inference.pretrained import ZeroShotScores
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.similarity import CHANCE, SentenceSimilarity
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters
from lmtransfer.transfer.embedder import Embedder, TextVectors, scale_vectors
from lmtransfer.transfer.open_embedder import VectorChoice, open_embedder, with_random_encoder
from lmtransfer.transfer.standardizer import Standardizer


def score_similarity(task: SentenceSimilarity, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Correlate cosines with gold scores, for the run and for the same encoder with random weights.

    Args:
        task: the pairs, and how to turn a sentence into a vector.

    Raises:
        ConfigError: the pooling or the layers do not fit the run.
        DataError: the split is missing or malformed, or its scores are hidden.
    """
    choice = VectorChoice(task.settings.layers, task.settings.pooling, prefix="task.")
    embedder = open_embedder(saved, choice, hardware=hardware, max_length=task.max_length)
    pairs = task.examples(split)
    hidden = sum(not pair.has_gold for pair in pairs)
    if hidden:
        raise DataError(
            f"split={split}: {hidden} of {len(pairs)} pairs of task {task.name} have no score (published test scores "
            "are hidden); set split=dev"
        )
    start_time = time.monotonic()
    embedded = _embed(pairs, embedder)
    answers = _answers(embedded, task)
    seconds = time.monotonic() - start_time
    control = _answers(_embed(pairs, with_random_encoder(embedder, saved)), task)
    cut = [f"{embedded.num_cut:,} sentences are cut to {embedder.max_length} tokens"] if embedded.num_cut else []
    return ZeroShotScores(
        metrics=task.score(pairs, answers),
        method=f"cosine of vectors, {embedder.method}" + (", standardised" if task.settings.standardise else ""),
        chance=CHANCE,
        num_scored=len(pairs),
        num_tokens=embedded.num_tokens,
        num_parameters=num_parameters(embedder.model),
        seconds=seconds,
        examples=task.scored_examples(pairs, answers),
        control=task.score(pairs, control),
        control_examples=task.scored_examples(pairs, control),
        more={"num_truncated": {split: embedded.num_cut}},
        shown={name: name for name in task.metric_names[1:]},
        notes=cut,
    )


def _embed(pairs: Sequence[TextExample], embedder: Embedder) -> TextVectors:
    """Embed both sentences of each pair, in turn; each rank embeds a share."""
    sentences = [sentence for pair in pairs for sentence in pair.content]
    rank, world_size = process_group.rank(), process_group.world_size()
    parts = process_group.gather(embedder.embed(sentences[rank::world_size]))
    vectors = np.zeros((len(sentences), embedder.dim), dtype=np.float32)
    for number, part in enumerate(parts):
        vectors[number::world_size] = part.vectors
    return TextVectors(vectors, sum(part.num_cut for part in parts), sum(part.num_tokens for part in parts))


def _answers(embedded: TextVectors, task: SentenceSimilarity) -> list[ScoreAnswer]:
    scale = None
    if task.settings.standardise:
        scale = Standardizer(dim=embedded.vectors.shape[1])
        scale.fit([torch.from_numpy(embedded.vectors)])
    unit = scale_vectors(embedded.vectors, standardizer=scale, normalise=True).astype(np.float64)
    return [ScoreAnswer(cosine) for cosine in (unit[::2] * unit[1::2]).sum(1).tolist()]

"""Score a pretraining run on minimal pairs of sentences, without training."""

from __future__ import annotations

import time

import numpy as np

from lmtransfer.objectives.base import Objective
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tasks.file_formats.blimp import MinimalPair
from lmtransfer.tasks.text.minimal_pairs import CHANCE, MinimalPairs
from lmtransfer.training import distributed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters
from lmtransfer.zero_shot.pretrained import Pretrained, open_pretrained, token_predictor
from lmtransfer.zero_shot.scored import ZeroShotScores
from lmtransfer.zero_shot.sentence_log_probability import SentenceScorer, SentenceScores


def score_minimal_pairs(task: MinimalPairs, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Score a pretraining run by the log-probabilities of the two sentences of each pair.

    Args:
        task: the pairs.
        split: split of the task.
        saved: the run.
        hardware: device and precision.

    Raises:
        RunDirectoryError: the run was not pretrained.
        ConfigError: its objective gives no token probabilities.
        DataError: the split is missing or malformed.
    """
    pretrained = open_pretrained(saved, hardware=hardware)
    predictor = token_predictor(pretrained.learner)
    pairs = task.examples(split)
    start_time = time.monotonic()
    scores = _scores(pairs, task, saved, pretrained, predictor, hardware)
    seconds = time.monotonic() - start_time
    answers: list[tuple[float, float]] = [(good, bad) for good, bad in scores.log_probabilities.reshape(-1, 2).tolist()]
    metrics = task.score(pairs, answers)
    num_paradigms = len({pair.paradigm for pair in pairs})
    num_ties = sum(good == bad for good, bad in answers)
    phenomena = {name: name.split("/")[1] for name in metrics if name.startswith("phenomenon/")}
    ties = [f"{num_ties:,} ties, which count as wrong"] if num_ties else []
    return ZeroShotScores(
        metrics=metrics,
        method=_method(predictor, task),
        chance=CHANCE,
        num_scored=len(pairs),
        num_tokens=scores.num_tokens,
        num_parameters=num_parameters(pretrained.learner),
        seconds=seconds,
        examples=task.scored_examples(pairs, answers),
        more={"num_sentences": 2 * len(pairs), "num_paradigms": num_paradigms, "num_ties": num_ties},
        shown=phenomena,
        notes=[f"{num_paradigms} paradigms", *ties],
    )


def _scores(
    pairs: list[MinimalPair],
    task: MinimalPairs,
    saved: SavedRun,
    pretrained: Pretrained,
    predictor: Objective,
    hardware: Hardware,
) -> SentenceScores:
    """The scores of the sentences: good and bad of each pair alternate; each rank scores a share of the pairs."""
    scorer = SentenceScorer(
        predictor=predictor,
        tokenizer=saved.tokenizer,
        frame=pretrained.frame,
        hidden=task.hidden,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )
    rank, world_size = distributed.rank(), distributed.world_size()
    own = pairs[rank::world_size]
    parts = distributed.gather(scorer.score([sentence for pair in own for sentence in (pair.good, pair.bad)]))
    together = np.zeros((len(pairs), 2))
    for number, part in enumerate(parts):
        together[number::world_size] = part.log_probabilities.reshape(-1, 2)
    return SentenceScores(together.reshape(-1), sum(part.num_tokens for part in parts))


def _method(predictor: Objective, task: MinimalPairs) -> str:
    """A description of the scoring method."""
    if predictor.predicts != "masked":
        return f"log-probability by {predictor.name}"
    return f"pseudo-log-likelihood by {predictor.name}, hidden: {task.hidden}"

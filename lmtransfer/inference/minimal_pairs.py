"""Scores a pretraining run on minimal pairs of sentences, without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from lmtransfer.inference.pretrained import (
    Frame,
    Hidden,
    Pretrained,
    Query,
    ZeroShotScores,
    in_batches,
    open_pretrained,
    pack_queries,
    sentence_queries,
    token_predictor,
)
from lmtransfer.objectives.base import Objective
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tasks.file_formats.blimp import MinimalPair
from lmtransfer.tasks.text.minimal_pairs import CHANCE, MinimalPairs
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters

#: Number of sentences encoded at a time, so that memory does not grow with the number of sentences.
_BLOCK_SENTENCES = 4096


@dataclass(frozen=True, slots=True)
class SentenceScores:
    """The log-probabilities of sentences.

    Attributes:
        log_probabilities: one per sentence, in nats, float64, shape (N,).
        num_tokens: number of tokens that the encoder read, including special tokens and repetitions.
    """

    log_probabilities: np.ndarray
    num_tokens: int


class SentenceScorer:
    """Computes log-probabilities of sentences: the sum over tokens of log p(token | context of its prediction).

    For a language model this is the logarithm of the sentence's probability (chain rule), given the special token
    before it; the special token after it is not in the sum. For a backward language model it is the same from the other
    end. For two independent language models (bilm) it is the **mean** of both. Their sum would rank sentences the same
    way, but the mean has the scale of a single model, like the loss.

    For a masked or permutation language model it is the pseudo-log-likelihood (Salazar et al. 2020,
    https://aclanthology.org/2020.acl-main.240): each token is masked in turn and predicted from all others. This needs
    one forward pass over the sentence for each of its tokens. The first pieces of a rare word are then easy to predict
    from its last pieces. With ``hidden="rest_of_word"`` the later pieces are masked too (PLL-word-l2r of Kauf and
    Ivanova 2023, https://aclanthology.org/2023.acl-short.80).

    A sentence without tokens has the log-probability 0.

    Args:
        predictor: the objective whose head predicts tokens; see ``token_predictor``.
        tokenizer: the tokenizer of the run.
        frame: the special tokens around a sentence.
        hidden: which tokens of the same word are also masked; used only if the model masks tokens.
        batch_tokens: maximum number of tokens in a batch (a longer sentence forms its own batch).
        device: device of the encoder.
        autocast: returns the context of a forward pass; the softmax is always in float32.
    """

    def __init__(
        self,
        *,
        predictor: Objective,
        tokenizer: Tokenizer,
        frame: Frame,
        hidden: Hidden = "token",
        batch_tokens: int = 8192,
        device: torch.device | str = "cpu",
        autocast: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        self.predictor, self.tokenizer, self.frame, self.hidden = predictor, tokenizer, frame, hidden
        self.batch_tokens, self.device, self.autocast = batch_tokens, device, autocast

    @torch.inference_mode()
    def score(self, sentences: Sequence[str]) -> SentenceScores:
        """Score sentences independently of their order and each other; the encoder must be in evaluation mode."""
        parts = [
            self._score_block(sentences[first : first + _BLOCK_SENTENCES])
            for first in range(0, len(sentences), _BLOCK_SENTENCES)
        ]
        log_probabilities = np.concatenate([np.zeros(0), *(part.log_probabilities for part in parts)])
        return SentenceScores(log_probabilities, sum(part.num_tokens for part in parts))

    def _score_block(self, sentences: Sequence[str]) -> SentenceScores:
        """Score a block; sentences with equal ids are read once, so that rounding cannot give them different scores."""
        encodings = [self.tokenizer.encode(sentence) for sentence in sentences]
        first_of: dict[bytes, int] = {}
        same = np.array([first_of.setdefault(_content(encoding), i) for i, encoding in enumerate(encodings)])
        # Shortest first: attention computes sequences of the same length together.
        order = sorted(first_of.values(), key=lambda owner: len(encodings[owner].ids))
        queries = (
            query
            for owner in order
            if len(encodings[owner].ids)
            for query in self._of_sentence(encodings[owner], owner, sentences[owner])
        )
        totals, num_tokens = np.zeros(len(sentences)), 0
        for batch in in_batches(queries, batch_tokens=self.batch_tokens):
            packed, places = pack_queries(batch)
            ids_M = torch.from_numpy(np.concatenate([query.ids for query in batch])).to(self.device)
            with self.autocast():
                distributions = self.predictor.predict(packed.to(self.device), places, mask_id=self.tokenizer.mask_id)
            logs = torch.stack([softmax.log_probabilities(ids_M).cpu() for softmax in distributions]).double().mean(0)
            owners = np.repeat([query.owner for query in batch], [len(query.places) for query in batch])
            np.add.at(totals, owners, logs.numpy())
            num_tokens += packed.num_tokens
        return SentenceScores(totals[same], num_tokens)

    def _of_sentence(self, encoding: Encoding, owner: int, sentence: str) -> Iterator[Query]:
        tokens = self.frame.around(encoding.ids, text=sentence)
        if self.predictor.predicts == "masked":
            mask_id = self.tokenizer.mask_id
            yield from sentence_queries(tokens, encoding.word_starts, owner=owner, mask_id=mask_id, hidden=self.hidden)
        else:
            places = np.arange(1, len(tokens) - 1)
            yield Query(tokens, places, tokens[1:-1], owner, self.frame.character_ids(encoding))


def _content(encoding: Encoding) -> bytes:
    """Return the complete input of a model for a text, as bytes."""
    character_bytes = b"" if encoding.characters is None else encoding.characters.tobytes()
    return encoding.ids.tobytes() + character_bytes


def score_minimal_pairs(task: MinimalPairs, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Score a pretraining run by the log-probabilities of the two sentences of each pair.

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
    """Score the sentences, good and bad alternating; each rank scores a share of the pairs."""
    scorer = SentenceScorer(
        predictor=predictor,
        tokenizer=saved.tokenizer,
        frame=pretrained.frame,
        hidden=task.settings.hidden,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )
    rank, world_size = process_group.rank(), process_group.world_size()
    own = pairs[rank::world_size]
    parts = process_group.gather(scorer.score([sentence for pair in own for sentence in (pair.good, pair.bad)]))
    together = np.zeros((len(pairs), 2))
    for number, part in enumerate(parts):
        together[number::world_size] = part.log_probabilities.reshape(-1, 2)
    return SentenceScores(together.reshape(-1), sum(part.num_tokens for part in parts))


def _method(predictor: Objective, task: MinimalPairs) -> str:
    """Describe the scoring method."""
    if predictor.predicts != "masked":
        return f"log-probability by {predictor.name}"
    return f"pseudo-log-likelihood by {predictor.name}, hidden: {task.settings.hidden}"

"""Scores completions after prefixes with a pretraining run, without training."""

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
from lmtransfer.tasks.file_formats.choices import Choice
from lmtransfer.tasks.text.completions import CompletionChoice
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters

#: Number of texts encoded at a time, so that memory does not grow with the number of texts.
_BLOCK_TEXTS = 4096


@dataclass(frozen=True, slots=True)
class CompletionScores:
    """The log-probabilities of completions.

    Attributes:
        log_probabilities: one per completion, in nats, float64, shape (N,).
        num_predicted: number of tokens in each completion, int64, shape (N,).
        num_tokens: number of tokens that the encoder read, including special tokens and repetitions.
    """

    log_probabilities: np.ndarray
    num_predicted: np.ndarray
    num_tokens: int


class CompletionScorer:
    """Computes log-probabilities of completions: the sum over tokens of log p(token | context of its prediction).

    The tokens of a completion are those that end after the character at which it begins. A completion may be a whole
    text.

    For a language model this is the logarithm of the completion's probability after the special token and the prefix
    (chain rule); the special token after the text is not in the sum. For a backward language model it is the same from
    the other end. For two independent language models (bilm) it is the **mean** of both. Their sum would rank texts the
    same way, but the mean has the scale of a single model, like the loss.

    For a masked or permutation language model it is the pseudo-log-likelihood (Salazar et al. 2020,
    https://aclanthology.org/2020.acl-main.240): each token is masked in turn and predicted from all others. This needs
    one forward pass over the text for each token of the completion. The first pieces of a rare word are then easy to
    predict from its last pieces. With ``hidden="rest_of_word"`` the later pieces are masked too (PLL-word-l2r of Kauf
    and Ivanova 2023, https://aclanthology.org/2023.acl-short.80).

    A completion without tokens has the log-probability 0.

    Args:
        predictor: the objective whose head predicts tokens; see ``token_predictor``.
        tokenizer: the tokenizer of the run.
        frame: the special tokens around a text.
        hidden: which tokens of the same word are also masked; used only if the model masks tokens.
        batch_tokens: maximum number of tokens in a batch (a longer text forms its own batch).
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
    def score(self, texts: Sequence[str], starts: Sequence[int] | None = None) -> CompletionScores:
        """Score completions independently of their order and each other; the encoder must be in evaluation mode.

        Args:
            texts: prefix and completion as one text.
            starts: index of the character at which each completion begins; None if each text is a completion.
        """
        begins = [0] * len(texts) if starts is None else starts
        blocks = [slice(first, first + _BLOCK_TEXTS) for first in range(0, len(texts), _BLOCK_TEXTS)]
        parts = [self._score_block(texts[block], begins[block]) for block in blocks]
        return CompletionScores(
            np.concatenate([np.zeros(0), *(part.log_probabilities for part in parts)]),
            np.concatenate([np.zeros(0, dtype=np.int64), *(part.num_predicted for part in parts)]),
            sum(part.num_tokens for part in parts),
        )

    def _score_block(self, texts: Sequence[str], starts: Sequence[int]) -> CompletionScores:
        """Score a block; completions with equal ids are read once, so that rounding cannot tell them apart."""
        encodings = [self.tokenizer.encode(text) for text in texts]
        places = [
            np.flatnonzero(encoding.offsets[:, 1] > start) if start else np.arange(len(encoding.ids))
            for encoding, start in zip(encodings, starts, strict=True)
        ]
        first_of: dict[bytes, int] = {}
        same = np.array(
            [first_of.setdefault(_content(encodings[i]) + places[i].tobytes(), i) for i in range(len(texts))]
        )
        # Shortest first: attention computes sequences of the same length together.
        order = sorted(first_of.values(), key=lambda owner: len(encodings[owner].ids))
        queries = (
            query
            for owner in order
            if len(places[owner])
            for query in self._queries(encodings[owner], places[owner] + 1, owner, texts[owner])
        )
        totals, num_tokens = np.zeros(len(texts)), 0
        for batch in in_batches(queries, batch_tokens=self.batch_tokens):
            packed, positions = pack_queries(batch)
            ids_M = torch.from_numpy(np.concatenate([query.ids for query in batch])).to(self.device)
            with self.autocast():
                distributions = self.predictor.predict(
                    packed.to(self.device), positions, mask_id=self.tokenizer.mask_id
                )
            logs = torch.stack([softmax.log_probabilities(ids_M).cpu() for softmax in distributions]).double().mean(0)
            owners = np.repeat([query.owner for query in batch], [len(query.places) for query in batch])
            np.add.at(totals, owners, logs.numpy())
            num_tokens += packed.num_tokens
        return CompletionScores(totals[same], np.array([len(place) for place in places], dtype=np.int64), num_tokens)

    def _queries(self, encoding: Encoding, places: np.ndarray, owner: int, text: str) -> Iterator[Query]:
        tokens = self.frame.around(encoding.ids, text=text)
        if self.predictor.predicts == "masked":
            yield from sentence_queries(
                tokens,
                encoding.word_starts,
                places=places,
                owner=owner,
                mask_id=self.tokenizer.mask_id,
                hidden=self.hidden,
            )
        else:
            yield Query(tokens, places, tokens[places], owner, self.frame.character_ids(encoding))


def _content(encoding: Encoding) -> bytes:
    """Return the complete input of a model for a text, as bytes."""
    character_bytes = b"" if encoding.characters is None else encoding.characters.tobytes()
    return encoding.ids.tobytes() + character_bytes


def score_choices(task: CompletionChoice, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Score a pretraining run by the log-probabilities of each item's alternatives.

    Raises:
        RunDirectoryError: the run was not pretrained.
        ConfigError: its objective gives no token probabilities.
        DataError: the split is missing or malformed.
    """
    pretrained = open_pretrained(saved, hardware=hardware)
    predictor = token_predictor(pretrained.learner)
    choices = task.examples(split)
    start_time = time.monotonic()
    answers, num_tokens = _answers(choices, task, saved, pretrained, predictor, hardware)
    seconds = time.monotonic() - start_time
    metrics = task.score(choices, answers)
    subsets = {choice.subset for choice in choices}
    num_ties = sum(scores.count(max(scores)) > 1 for scores in answers)
    counted = {"shared": "which count in part", "wrong": "which count as wrong"}[task.settings.ties]
    category = f"{task.kind.category}/"
    return ZeroShotScores(
        metrics=metrics,
        method=_method(predictor, task),
        chance=task.chance(choices),
        num_scored=len(choices),
        num_tokens=num_tokens,
        num_parameters=num_parameters(pretrained.learner),
        seconds=seconds,
        examples=task.scored_examples(choices, answers),
        more={"num_sentences": sum(map(len, answers)), "num_subsets": len(subsets), "num_ties": num_ties},
        shown={name: name.split("/")[1] for name in metrics if name.startswith(category)},
        notes=[f"{len(subsets)} {task.kind.subset}s", *([f"{num_ties:,} ties, {counted}"] if num_ties else [])],
    )


def _answers(
    choices: list[Choice],
    task: CompletionChoice,
    saved: SavedRun,
    pretrained: Pretrained,
    predictor: Objective,
    hardware: Hardware,
) -> tuple[list[list[float]], int]:
    """Score the alternatives of each item, and count the tokens read; each rank scores a share of the items."""
    scorer = CompletionScorer(
        predictor=predictor,
        tokenizer=saved.tokenizer,
        frame=pretrained.frame,
        hidden=task.settings.hidden,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )
    rank, world_size = distributed.rank(), distributed.world_size()
    own = choices[rank::world_size]
    scores = scorer.score(
        [text for choice in own for text in choice.texts], [len(prefix) for choice in own for prefix in choice.prefixes]
    )
    values = scores.log_probabilities
    if task.settings.normalize == "tokens":
        values = values / np.maximum(scores.num_predicted, 1)
    ends = np.cumsum([len(choice.completions) for choice in own])
    parts = distributed.gather(([part.tolist() for part in np.split(values, ends)[:-1]], scores.num_tokens))
    together: list[list[float]] = [[] for _ in choices]
    for number, (answers, _) in enumerate(parts):
        together[number::world_size] = answers
    return together, sum(num_tokens for _, num_tokens in parts)


def _method(predictor: Objective, task: CompletionChoice) -> str:
    """Describe the scoring method."""
    per_token = " per token" if task.settings.normalize == "tokens" else ""
    if predictor.predicts != "masked":
        return f"log-probability{per_token} by {predictor.name}"
    return f"pseudo-log-likelihood{per_token} by {predictor.name}, hidden: {task.settings.hidden}"

"""The scores that a pretraining run gives to completions of prefixes, without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from lmtransfer.inference.pretrained import (
    Frame,
    Hidden,
    Query,
    ZeroShotScores,
    in_batches,
    open_pretrained,
    pack_queries,
    sentence_queries,
    token_predictor,
)
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tasks.file_formats.choices import Choice
from lmtransfer.tasks.text.completions import CompletionChoice
from lmtransfer.tasks.text.surprisal import Passage, Surprisal
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters

#: Number of texts encoded at a time, so that memory does not grow with the number of texts.
_BLOCK_TEXTS = 4096


@dataclass(frozen=True, slots=True)
class CompletionScores:
    """The log-probabilities of completions, token by token.

    Attributes:
        tokens: the log-probability of each token of each completion, in nats, float64.
        ids: the ids of these tokens.
        spans: the characters [start, end) of these tokens in the text, int32, shape (n, 2) for each completion.
        num_tokens: number of tokens that the encoder read, including special tokens and repetitions.
    """

    tokens: Sequence[np.ndarray]
    ids: Sequence[np.ndarray]
    spans: Sequence[np.ndarray]
    num_tokens: int

    @property
    def log_probabilities(self) -> np.ndarray:
        """The log-probability of each completion, in nats, float64, shape (N,)."""
        return np.array([logs.sum() for logs in self.tokens], dtype=np.float64)

    def per_token(self) -> np.ndarray:
        """Return each completion's mean log-probability per token, in nats; 0 for one without tokens."""
        return np.array([logs.mean() if len(logs) else 0.0 for logs in self.tokens], dtype=np.float64)


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
            [logs for part in parts for logs in part.tokens],
            [ids for part in parts for ids in part.ids],
            [spans for part in parts for spans in part.spans],
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
        same = [first_of.setdefault(_content(encodings[i]) + places[i].tobytes(), i) for i in range(len(texts))]
        # Shortest first: attention computes sequences of the same length together.
        order = sorted(first_of.values(), key=lambda owner: len(encodings[owner].ids))
        queries = (
            query
            for owner in order
            if len(places[owner])
            for query in self._queries(encodings[owner], places[owner] + 1, owner, texts[owner])
        )
        logs_of: dict[int, list[np.ndarray]] = {owner: [] for owner in order}
        num_tokens = 0
        for batch in in_batches(queries, batch_tokens=self.batch_tokens):
            packed, positions = pack_queries(batch)
            ids_M = torch.from_numpy(np.concatenate([query.ids for query in batch])).to(self.device)
            with self.autocast():
                distributions = self.predictor.predict(
                    packed.to(self.device), positions, mask_id=self.tokenizer.mask_id
                )
            logs = torch.stack([softmax.log_probabilities(ids_M).cpu() for softmax in distributions]).double().mean(0)
            ends = np.cumsum([len(query.places) for query in batch])[:-1]
            for query, part in zip(batch, np.split(logs.numpy(), ends), strict=True):
                logs_of[query.owner].append(part)
            num_tokens += packed.num_tokens
        joined = {owner: np.concatenate([np.zeros(0), *parts]) for owner, parts in logs_of.items()}
        ids = [encoding.ids[place] for encoding, place in zip(encodings, places, strict=True)]
        spans = [encoding.offsets[place] for encoding, place in zip(encodings, places, strict=True)]
        return CompletionScores([joined[owner] for owner in same], ids, spans, num_tokens)

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
    scoring = _Scoring.of(saved, hidden=task.settings.hidden, hardware=hardware)
    choices = task.examples(split)
    start_time = time.monotonic()
    scores, num_tokens = scoring.scores(
        [choice.texts for choice in choices], [[len(prefix) for prefix in choice.prefixes] for choice in choices]
    )
    per_token = task.settings.normalize == "tokens"
    answers = [(part.per_token() if per_token else part.log_probabilities).tolist() for part in scores]
    seconds = time.monotonic() - start_time
    metrics = task.score(choices, answers)
    low, high = task.interval(choices, task.rights(choices, answers))
    comparison = _compare_with_frequencies(task, choices, scores, answers, saved, per_token=per_token)
    subsets = {choice.subset for choice in choices}
    num_ties = sum(values.count(max(values)) > 1 for values in answers)
    counted = {"shared": "which count in part", "wrong": "which count as wrong"}[task.settings.ties]
    category = f"{task.kind.category}/"
    return ZeroShotScores(
        metrics=metrics,
        method=scoring.method(per_token=per_token),
        chance=task.chance(choices),
        num_scored=len(choices),
        num_tokens=num_tokens,
        num_parameters=num_parameters(scoring.learner),
        seconds=seconds,
        examples=task.scored_examples(choices, answers),
        baseline=None if comparison is None else comparison.metrics,
        more={
            "num_sentences": sum(map(len, answers)),
            "num_subsets": len(subsets),
            "num_ties": num_ties,
            "interval": [low, high],
            **({} if comparison is None else {"minus_token_frequencies": comparison.difference}),
        },
        shown={name: name.split("/")[1] for name in metrics if name.startswith(category)},
        notes=[
            f"{len(subsets)} {task.kind.subset}s",
            f"95 % interval {100 * low:.1f} to {100 * high:.1f} over items",
            *([] if comparison is None else [comparison.text]),
            *([f"{num_ties:,} ties, {counted}"] if num_ties else []),
        ],
    )


@dataclass(frozen=True, slots=True)
class _FrequencyComparison:
    """The choices by token frequency, and the run's accuracy minus theirs with its 95 % interval over items."""

    metrics: dict[str, float]
    difference: dict[str, Any]

    @property
    def text(self) -> str:
        low, high = self.difference["interval"]
        return (
            f"minus token frequencies {100 * self.difference['accuracy']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        )


def _compare_with_frequencies(
    task: CompletionChoice,
    choices: Sequence[Choice],
    scores: Sequence[CompletionScores],
    answers: Sequence[Sequence[float]],
    saved: SavedRun,
    *,
    per_token: bool,
) -> _FrequencyComparison | None:
    """Choose by how frequent the completions' tokens are in the run's training text, and compare item by item.

    A token that does not occur in the text counts like the rarest one that does. None if the run does not know the
    frequencies, as a published model does not.
    """
    shares_V = saved.directory.read_token_shares()
    if shares_V is None:
        return None
    logs_V = np.log(np.where(shares_V > 0, shares_V, shares_V[shares_V > 0].min()))
    total = np.mean if per_token else np.sum
    by_frequency = [[float(total(logs_V[ids])) if len(ids) else 0.0 for ids in part.ids] for part in scores]
    pairs = zip(task.rights(choices, answers), task.rights(choices, by_frequency), strict=True)
    metrics = task.score(choices, by_frequency)
    low, high = task.interval(choices, [own - other for own, other in pairs])
    return _FrequencyComparison(metrics, {"accuracy": (low + high) / 2, "interval": [low, high]})


def score_surprisal(task: Surprisal, split: str, saved: SavedRun, hardware: Hardware) -> ZeroShotScores:
    """Compute the surprisal of each word of a text.

    Raises:
        RunDirectoryError: the run was not pretrained.
        ConfigError: its objective gives no token probabilities.
        DataError: the text is missing or not UTF-8.
    """
    scoring = _Scoring.of(saved, hidden=task.settings.hidden, hardware=hardware)
    passages = task.examples(split)
    start_time = time.monotonic()
    scores, num_tokens = scoring.scores([[passage.text] for passage in passages], [[0]] * len(passages))
    answers = [
        word_surprisals(passage, part.tokens[0], part.spans[0]) for passage, part in zip(passages, scores, strict=True)
    ]
    rows = [
        f"{passage.id}\t{number}\t{passage.text[slice(*span)]}\t{bits:.6f}"
        for passage, surprisals in zip(passages, answers, strict=True)
        for number, (span, bits) in enumerate(zip(passage.words, surprisals.tolist(), strict=True))
    ]
    return ZeroShotScores(
        metrics=task.score(passages, answers),
        method=f"surprisal in bits, {scoring.method()}",
        chance=None,
        num_scored=len(rows),
        num_tokens=num_tokens,
        num_parameters=num_parameters(scoring.learner),
        seconds=time.monotonic() - start_time,
        examples=task.scored_examples(passages, answers),
        shown={"surprisal": "surprisal"},
        notes=[f"{len(passages):,} texts", "words.tsv has a row for each word"],
        files={"words.tsv": "\n".join(["text\tnumber\tword\tsurprisal", *rows]) + "\n"},
    )


def word_surprisals(passage: Passage, logs: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Add up the surprisals of each word's tokens, in bits, float64, one per word.

    A token belongs to the word that contains its last character.

    Args:
        logs: log-probability of each token of the text, in nats.
        spans: characters [start, end) of each token.
    """
    starts = np.array([start for start, _ in passage.words])
    word_of = np.maximum(np.searchsorted(starts, np.maximum(spans[:, 1] - 1, 0), side="right") - 1, 0)
    return np.bincount(word_of, weights=-logs / np.log(2), minlength=len(starts))


@dataclass(frozen=True, slots=True)
class _Scoring:
    """A pretraining run that scores groups of texts; each rank scores a share of the groups."""

    learner: PretrainingLearner
    scorer: CompletionScorer

    @classmethod
    def of(cls, saved: SavedRun, *, hidden: Hidden, hardware: Hardware) -> _Scoring:
        """Load the run."""
        pretrained = open_pretrained(saved, hardware=hardware)
        scorer = CompletionScorer(
            predictor=token_predictor(pretrained.learner),
            tokenizer=saved.tokenizer,
            frame=pretrained.frame,
            hidden=hidden,
            device=hardware.device,
            autocast=hardware.precision.autocast,
        )
        return cls(pretrained.learner, scorer)

    def scores(
        self, texts: Sequence[Sequence[str]], starts: Sequence[Sequence[int]]
    ) -> tuple[list[CompletionScores], int]:
        """Score each group of texts; also return the number of tokens that the encoder read."""
        rank, world_size = process_group.rank(), process_group.world_size()
        own_texts, own_starts = texts[rank::world_size], starts[rank::world_size]
        flat = self.scorer.score(
            [text for group in own_texts for text in group], [s for group in own_starts for s in group]
        )
        ends = np.cumsum([0, *map(len, own_texts)])
        own = [
            CompletionScores(flat.tokens[first:last], flat.ids[first:last], flat.spans[first:last], 0)
            for first, last in pairwise(ends.tolist())
        ]
        parts = process_group.gather((own, flat.num_tokens))
        together: list[Any] = [None] * len(texts)
        for number, (groups, _) in enumerate(parts):
            together[number::world_size] = groups
        return together, sum(num_tokens for _, num_tokens in parts)

    def method(self, *, per_token: bool = False) -> str:
        """Describe the scoring method."""
        predictor, unit = self.scorer.predictor, " per token" if per_token else ""
        if predictor.predicts != "masked":
            return f"log-probability{unit} by {predictor.name}"
        return f"pseudo-log-likelihood{unit} by {predictor.name}, hidden: {self.scorer.hidden}"

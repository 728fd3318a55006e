"""The scores that a pretraining run gives to completions of prefixes, without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from lmtransfer.inference.pretrained import (
    Frame,
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
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Hidden, ModelFacts
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import check_not_nan, num_parameters

#: Number of texts encoded at a time, so that memory does not grow with the number of texts.
_BLOCK_TEXTS = 4096


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
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.predictor, self.tokenizer, self.frame, self.hidden = predictor, tokenizer, frame, hidden
        self.batch_tokens, self.device, self.autocast = batch_tokens, device, autocast

    @torch.inference_mode()
    def score(self, completions: Sequence[Completion]) -> tuple[CompletionScores, int]:
        """Score completions independently of their order and each other; the encoder must be in evaluation mode.

        Returns:
            The scores, and the number of tokens that the encoder read, special tokens and repetitions included.
        """
        blocks = range(0, len(completions), _BLOCK_TEXTS)
        parts = [self._score_block(completions[first : first + _BLOCK_TEXTS]) for first in blocks]
        scores = CompletionScores(
            [logs for part, _ in parts for logs in part.tokens],
            [ids for part, _ in parts for ids in part.ids],
            [spans for part, _ in parts for spans in part.spans],
        )
        return scores, sum(num_tokens for _, num_tokens in parts)

    def _score_block(self, completions: Sequence[Completion]) -> tuple[CompletionScores, int]:
        """Score a block; equal inputs are read once, so that rounding cannot tell them apart."""
        encodings = [self.tokenizer.encode(completion.text) for completion in completions]
        places = [
            np.flatnonzero(encoding.offsets[:, 1] > completion.start)
            if completion.start
            else np.arange(len(encoding.ids))
            for encoding, completion in zip(encodings, completions, strict=True)
        ]
        logs = [np.zeros(len(own), dtype=np.float64) for own in places]
        # An input, with the tokens to predict in it: place in the input, id, completion, number of the token in it.
        inputs: dict[bytes, tuple[Query, list[tuple[int, int, int, int]]]] = {}
        for owner, (encoding, own) in enumerate(zip(encodings, places, strict=True)):
            for number, query in self._queries(encoding, own, completions[owner].text):
                _, targets = inputs.setdefault(_content(query), (query, []))
                targets += [
                    (place, token, owner, number + offset)
                    for offset, (place, token) in enumerate(zip(query.places.tolist(), query.ids.tolist(), strict=True))
                ]
        # Shortest first: attention computes sequences of the same length together.
        ordered = sorted(inputs.values(), key=lambda entry: len(entry[0].tokens))
        num_tokens = 0
        for batch in in_batches(ordered, batch_tokens=self.batch_tokens):
            queries, rows, targets = [], [], []
            num_places = 0
            for query, part in batch:
                places_of, row_of = np.unique([place for place, *_ in part], return_inverse=True)
                queries.append(replace(query, places=places_of))
                rows.append(row_of + num_places)
                targets += part
                num_places += len(places_of)
            packed, positions = pack_queries(queries)
            with self.autocast():
                distributions = self.predictor.predict(
                    packed.to(self.device), positions, mask_id=self.tokenizer.mask_id
                )
            rows_N = torch.from_numpy(np.concatenate(rows)).to(self.device)
            ids_N = torch.tensor([token for _, token, *_ in targets], device=self.device)
            values = torch.stack([softmax.at(rows_N).log_probabilities(ids_N).cpu() for softmax in distributions])
            check_not_nan(values.T, what="the model's probabilities")
            for (_, _, owner, number), value in zip(targets, values.double().mean(0).tolist(), strict=True):
                logs[owner][number] = value
            num_tokens += packed.num_tokens
        ids_of = [encoding.ids[own] for encoding, own in zip(encodings, places, strict=True)]
        spans = [encoding.offsets[own] for encoding, own in zip(encodings, places, strict=True)]
        return CompletionScores(logs, ids_of, spans), num_tokens

    def _queries(self, encoding: Encoding, places: np.ndarray, text: str) -> Iterator[tuple[int, Query]]:
        """Yield the inputs that predict the tokens at ``places``, each with the index of its first place."""
        if not len(places):
            return
        tokens = self.frame.around(encoding.ids, text=text)
        if self.predictor.predicts == "masked":
            yield from enumerate(
                sentence_queries(
                    tokens, encoding.word_starts, places=places + 1, mask_id=self.tokenizer.mask_id, hidden=self.hidden
                )
            )
        else:
            yield 0, Query(tokens, places + 1, tokens[places + 1], self.frame.character_ids(encoding))

    def method(self) -> str:
        """Describe the scoring method."""
        if self.predictor.predicts != "masked":
            return f"log-probability by {self.predictor.name}"
        return f"pseudo-log-likelihood by {self.predictor.name}, hidden: {self.hidden}"


def _content(query: Query) -> bytes:
    """Return the complete input of a model, as bytes."""
    return query.tokens.tobytes() + (b"" if query.characters is None else query.characters.tobytes())


def score_completions(
    task: CompletionTask, split: str, saved: SavedRun, hardware: Hardware, *, control: bool = False
) -> ZeroShotScores:
    """Score the items of a task with a pretraining run, or with each of its revisions if the task compares them.

    Args:
        control: whether to score them also with the random weights of the run's seed; not for a task that compares
            revisions.

    Raises:
        RunDirectoryError: the run was not pretrained, or has no revisions although the task compares them.
        ConfigError: the run's objective gives no token probabilities.
        DataError: the split is missing or malformed.
    """
    runs, words = ([saved], []) if not task.needs_revisions else _revisions(saved)
    items = task.examples(split)
    groups = [task.completions(item) for item in items]
    start_time = time.monotonic()
    scores: list[CompletionScores] = []
    num_tokens = 0
    for run in runs:
        learner, scorer = _open(run, hidden=task.hidden, hardware=hardware)
        part, part_tokens = _score_groups(scorer, groups)
        scores += part
        num_tokens += part_tokens
    shares_V = saved.directory.read_token_shares()
    logs_V = None if shares_V is None else np.log(np.where(shares_V > 0, shares_V, shares_V[shares_V > 0].min()))
    facts = ModelFacts(saved.tokenizer.vocab_size, logs_V, words)
    findings = task.evaluate(items, scores, facts)
    seconds = time.monotonic() - start_time
    untrained: Findings | None = None
    if control:
        _, scorer = _open(saved, hidden=task.hidden, hardware=hardware, trained=False)
        control_scores, _ = _score_groups(scorer, groups)
        untrained = task.evaluate(items, control_scores, facts)
        gain = task.gain(items, scores, control_scores)
        if gain is not None:
            findings = replace(findings, more={**findings.more, "minus_random_weights": gain})
    return ZeroShotScores(
        findings=findings,
        method=task.describe(scorer.method()),
        num_tokens=num_tokens,
        num_parameters=num_parameters(learner),
        seconds=seconds,
        control=None if untrained is None else untrained.metrics,
        control_examples=None if untrained is None else untrained.examples,
    )


def _revisions(saved: SavedRun) -> tuple[list[SavedRun], list[int]]:
    """Return a run at each of its revisions, and the number of words that each revision has read."""
    words = saved.directory.revision_words()
    return [replace(saved, revision=tokens) for tokens in words], list(words.values())


def _open(
    saved: SavedRun, *, hidden: Hidden, hardware: Hardware, trained: bool = True
) -> tuple[PretrainingLearner, CompletionScorer]:
    pretrained = open_pretrained(saved, hardware=hardware, trained=trained)
    scorer = CompletionScorer(
        predictor=token_predictor(pretrained.learner),
        tokenizer=saved.tokenizer,
        frame=pretrained.frame,
        hidden=hidden,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )
    return pretrained.learner, scorer


def _score_groups(
    scorer: CompletionScorer, groups: Sequence[Sequence[Completion]]
) -> tuple[list[CompletionScores], int]:
    """Score groups of completions; also return the number of tokens read. Each rank scores a share of the groups."""
    rank, world_size = process_group.rank(), process_group.world_size()
    own_groups = groups[rank::world_size]
    own_scores, own_tokens = scorer.score([completion for group in own_groups for completion in group])
    ends = np.cumsum([0, *map(len, own_groups)]).tolist()
    own = [own_scores.part(first, last) for first, last in pairwise(ends)]
    scores: list[Any] = [None] * len(groups)
    num_tokens = 0
    for number, (part, part_tokens) in enumerate(process_group.gather((own, own_tokens))):
        scores[number::world_size] = part
        num_tokens += part_tokens
    return scores, num_tokens

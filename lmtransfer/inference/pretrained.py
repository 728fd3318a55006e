"""A saved pretraining run, loaded with the head that scores sentences or fills masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import ConfigError, DataError, RunDirectoryError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective, builtin_objectives
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.pretraining.build import load_learner
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tasks.zero_shot.task import Findings, Hidden
from lmtransfer.tokenizers.base import CharacterTokenizer, Encoding, Tokenizer
from lmtransfer.training.hardware import Hardware

#: Batches are padded to a multiple of this, because kernels are recompiled for each new shape.
_TOKENS_MULTIPLE = 32
_EXCERPT_CHARACTERS = 60
#: Number of masks that replace a token and all text after it (hidden="following").
_FOLLOWING_MASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShotScores:
    """The scores of a run on a task that needs no head.

    Attributes:
        findings: the metrics, and the predictions and notes that belong to them.
        num_tokens: number of tokens that the encoder read.
        num_parameters: number of parameters of all modules that were run.
        control: the metrics of the same model with random weights; None if that was not scored.
        control_examples: the scored examples of that model.
    """

    findings: Findings
    method: str
    num_tokens: int
    num_parameters: int
    seconds: float
    control: Mapping[str, float] | None = None
    control_examples: ScoredExamples | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One input sequence.

    Attributes:
        tokens: ids of the input, including special tokens, int64, shape (n,).
        places: indices of the tokens to predict, ascending, int64.
        ids: the true ids at these positions, int64; empty if they are unknown.
        characters: character ids of each token, int16, shape (n, 50); None if the tokenizer provides no characters.
    """

    tokens: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    characters: np.ndarray | None = None


class Frame:
    """The special tokens around a text, as in pretraining, and the maximum length of a text.

    [SEP] comes after the text, as after each document in training. [CLS] comes before the text. If training rows had no
    [CLS] (``rows.frame=none``), the [SEP] of a previous document comes before it. Neither is predicted.
    """

    def __init__(self, *, tokenizer: Tokenizer, encoder: Encoder, rows: Rows) -> None:
        begins_bare = rows.frame == "none"
        self.begin_id = tokenizer.sep_id if begins_bare else tokenizer.cls_id
        self.end_id = tokenizer.sep_id
        self.max_length = encoder.max_length
        self._characters = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None

    def around(self, ids: np.ndarray, *, text: str) -> np.ndarray:
        """Put the special tokens around the ids; return int64, shape (n + 2,)."""
        if len(ids) + 2 > self.max_length:
            excerpt = text if len(text) <= _EXCERPT_CHARACTERS else text[:_EXCERPT_CHARACTERS] + "..."
            raise DataError(
                f"{excerpt!r}: the text has {len(ids) + 2} tokens with its special tokens, but the model reads at most "
                f"{self.max_length} (model.max_length): shorten the text"
            )
        return np.concatenate([[self.begin_id], ids, [self.end_id]]).astype(np.int64)

    def character_ids(self, encoding: Encoding) -> np.ndarray | None:
        """Return the character ids of a text and its special tokens, (n + 2, 50); None if the tokenizer has none."""
        if self._characters is None or encoding.characters is None:
            return None
        return np.concatenate([self._characters[[self.begin_id]], encoding.characters, self._characters[[self.end_id]]])


def sentence_queries(
    tokens: np.ndarray, word_starts: np.ndarray, *, places: np.ndarray, mask_id: int, hidden: Hidden
) -> Iterator[Query]:
    """Yield one query for each token to predict, in which that token is masked.

    Args:
        tokens: ids with the special tokens around them, int64, shape (n + 2,).
        word_starts: whether each token begins a word, bool, shape (n,).
        places: indices of the tokens to predict in ``tokens``.
        hidden: what is masked together with that token; see ``tasks.zero_shot.task.Hidden``.
    """
    ends = np.append(np.flatnonzero(word_starts), len(word_starts)) + 1
    for place in places.tolist():
        if hidden == "following":
            seen = np.concatenate([tokens[:place], [mask_id] * _FOLLOWING_MASKS, tokens[-1:]])
            yield Query(seen, np.array([place]), tokens[[place]])
            continue
        stop = place + 1 if hidden == "token" else int(ends[np.searchsorted(ends, place, side="right")])
        seen = tokens.copy()
        seen[place:stop] = mask_id
        yield Query(seen, np.array([place]), tokens[[place]])


T = TypeVar("T")


def in_batches(queries: Iterable[tuple[Query, T]], *, batch_tokens: int) -> Iterator[list[tuple[Query, T]]]:
    """Group queries, in order, into batches of at most ``batch_tokens`` tokens, but at least one query."""
    batch: list[tuple[Query, T]] = []
    size = 0
    for query, about in queries:
        if batch and size + len(query.tokens) > batch_tokens:
            yield batch
            batch, size = [], 0
        batch.append((query, about))
        size += len(query.tokens)
    if batch:
        yield batch


def pack_queries(queries: Sequence[Query]) -> tuple[PackedBatch, np.ndarray]:
    """Pack the sequences end to end, followed by filler; also return the positions to predict, int64 (M,)."""
    lengths = [len(query.tokens) for query in queries]
    size = sum(lengths)
    capacity = size + -size % _TOKENS_MULTIPLE
    packed = pack([query.tokens for query in queries], capacity=capacity, max_length=max(lengths))
    character_rows = [query.characters for query in queries if query.characters is not None]
    if character_rows:
        characters = np.concatenate([*character_rows, np.repeat(character_rows[0][:1], capacity - size, axis=0)])
        packed = packed.with_tokens(packed.tokens_T, torch.from_numpy(characters))
    starts = np.cumsum([0, *lengths[:-1]])
    places = [start + query.places for start, query in zip(starts, queries, strict=True)]
    return packed, np.concatenate(places)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A pretrained encoder with its objectives.

    Attributes:
        learner: encoder and objectives with the run's weights, in evaluation mode, on the device.
    """

    learner: PretrainingLearner
    frame: Frame


def open_pretrained(saved: SavedRun, *, hardware: Hardware, trained: bool = True) -> Pretrained:
    """Load the encoder and objectives of a pretraining run; without ``trained``, with random weights."""
    if "objective" not in saved.config or "task" in saved.config:
        raise RunDirectoryError(
            f"run={saved.path}: this run was not pretrained on text, so it has no head that predicts tokens; choose a "
            f"pretraining run, such as runs/pretrain/<name>"
        )
    parts, learner = load_learner(saved, trained=trained)
    frame = Frame(tokenizer=saved.tokenizer, encoder=learner.encoder, rows=parts.rows)
    return Pretrained(learner.to(hardware.device).eval(), frame)


def token_predictor(learner: PretrainingLearner) -> Objective:
    """Return the first objective that gives token probabilities."""
    return _first_predictor(learner, lambda objective: bool(objective.predicts), "gives no token probabilities")


def masked_predictor(learner: PretrainingLearner) -> Objective:
    """Return the first objective that predicts a masked token from the context on both sides."""
    return _first_predictor(learner, lambda objective: objective.predicts == "masked", "cannot fill a [MASK]")


def _first_predictor(learner: PretrainingLearner, fits: Callable[[Any], bool], lack: str) -> Objective:
    predictor = next(filter(fits, learner.objective_list()), None)
    if predictor is None:
        names = _or_list(objective.name for objective in builtin_objectives() if fits(objective))
        raise ConfigError(
            f"run: its objective ({', '.join(learner.objectives)}) {lack}; choose a run with "
            f"objective={names}, or with an objective that includes mlm, such as mlm_nsp"
        )
    return predictor


def _or_list(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last

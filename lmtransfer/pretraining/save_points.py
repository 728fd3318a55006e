"""The points at which pretraining keeps its model (``train.save_at`` and ``train.save_at_words``); budgets in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from lmtransfer.config.budget import KINDS
from lmtransfer.config.phases import Phase
from lmtransfer.config.revisions import count_text, read_count
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError

#: The checkpoints in the tracks of the BabyLM challenge (2026), in words read.
_STRICT_SMALL = (*range(1, 10), *range(10, 101, 10))
_STRICT = (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
TRACKS = {
    "babylm_strict_small": tuple(1_000_000 * millions for millions in _STRICT_SMALL),
    "babylm_strict": tuple(1_000_000 * millions for millions in _STRICT),
}
#: The limits of the tracks: words in the text, and words read, including repetitions.
LIMITS = {
    "babylm_strict_small": (10_000_000, 100_000_000),
    "babylm_strict": (100_000_000, 1_000_000_000),
}


def save_points(train: TrainSettings) -> tuple[int, ...]:
    """Return the points of ``train.save_at`` as token counts."""
    problems, points = [], []
    for point in train.save_at or ():
        tokens = read_count(point)
        if tokens is None or tokens < 0:
            problems.append(
                f"train.save_at: {point!r} is not a number of tokens; use 0 (the initial weights) or more, such as "
                "100000, 100k, 1M or 2.5B"
            )
        else:
            points.append(tokens)
    for before, after in zip(points, points[1:], strict=False):
        if after <= before:
            repeated = "is listed twice" if after == before else f"follows {count_text(before)}"
            problems.append(f"train.save_at: {count_text(after)} {repeated}; list each number once, in ascending order")
    if problems:
        raise ConfigError(problems)
    return tuple(points)


def word_budget(train: TrainSettings) -> int | None:
    """Return ``train.words`` as an integer; None if there is no budget in words."""
    if train.words is None:
        return None
    words = read_count(train.words)
    if not words:
        raise ConfigError(f"train.words={train.words} is not a number of words; use 1 or more, such as 500k or 100M")
    return words


def word_points(train: TrainSettings) -> tuple[int, ...]:
    """Return the points of ``train.save_at_words`` as word counts, in ascending order."""
    if isinstance(train.save_at_words, str):
        if train.save_at_words not in TRACKS:
            raise ConfigError(
                f"train.save_at_words={train.save_at_words} is not allowed: use {' or '.join(TRACKS)}, or a list of "
                "word counts such as [1M,10M]"
            )
        points = list(TRACKS[train.save_at_words])
    else:
        counts = [read_count(point) for point in train.save_at_words or ()]
        points = [count for count in counts if count is not None and count >= 0]
        if len(points) < len(counts) or points != sorted(set(points)):
            raise ConfigError(
                f"train.save_at_words={list(train.save_at_words or ())} must be a list of word counts in ascending "
                "order, such as [0,500k,1M]"
            )
    budget = word_budget(train)
    if budget is not None and points and points[-1] > budget:
        raise ConfigError(
            f"train.save_at_words: the budget train.words={train.words} does not reach {count_text(points[-1])}: raise "
            "the budget, or remove the points beyond it"
        )
    return tuple(points)


def check_track(train: TrainSettings, *, text_words: int) -> None:
    """Check a run with the checkpoints of a track against the limits of the track; held-out words count as text."""
    track = train.save_at_words
    if not isinstance(track, str) or track not in LIMITS:
        return
    most_text, most_read = LIMITS[track]
    budget = word_budget(train)
    problems = []
    if text_words > most_text:
        problems.append(
            f"corpus: the text has {text_words:,} words, but {track} allows {most_text:,}: set corpus.max_words, or, "
            "for a run outside the track, set train.save_at_words to a list"
        )
    if budget is None or budget > most_read:
        value = "no budget in words" if budget is None else f"train.words={train.words}"
        problems.append(
            f"train: {value}, but {track} allows {most_read:,} words: set train.words={count_text(most_read)}"
        )
    if problems:
        raise ConfigError(problems)


def convert_words(train: TrainSettings, tokens_per_word: Callable[[], float]) -> TrainSettings:
    """Convert budgets and save points from words to tokens, including special tokens."""
    budget, points = word_budget(train), word_points(train)
    if points and train.save_at:
        raise ConfigError("train.save_at and train.save_at_words are both set; keep one")
    if budget is None and not points:
        return train
    ratio = tokens_per_word()
    tokens = {} if budget is None else {"tokens": round(budget * ratio), "words": None}
    save_at = {"save_at": [round(point * ratio) for point in points], "save_at_words": None} if points else {}
    return train.model_copy(update={**tokens, **save_at})


def check_reached(train: TrainSettings, phases: Sequence[Phase], *, steps_per_epoch: int | None = None) -> None:
    """Check that the budget reaches all points; budgets in seconds cannot be checked."""
    steps = train.steps
    if train.epochs is not None and steps_per_epoch is not None:
        steps = max(math.ceil(train.epochs * steps_per_epoch), train.min_steps or 0)
    own = [None if phase.train is None else phase.train.batch_tokens for phase in phases]
    sizes = [batch_tokens or train.batch_tokens or 0 for batch_tokens in own]
    most_tokens = train.tokens if steps is None else steps * max(sizes)
    if most_tokens is None:
        return
    kind, limit = next((kind, limit) for kind in KINDS if (limit := getattr(train, kind)) is not None)
    budget = f"train.{kind}={limit}" if isinstance(limit, str) else f"train.{kind}={limit:g}"
    points = save_points(train)
    missing = [count_text(point) for point in points if point > most_tokens]
    if missing:
        raise ConfigError(
            f"train.save_at: the budget {budget} gives at most {most_tokens:,} tokens, so it does not reach "
            f"{', '.join(missing)}: raise the budget, or lower train.save_at"
        )


def explain_unreached(points: Sequence[int], tokens: float) -> list[str]:
    """Return a warning if a run of ``tokens`` tokens does not reach some points; otherwise an empty list."""
    missing = [count_text(point) for point in points if point > tokens]
    if not missing:
        return []
    points_text = ", ".join(missing)
    return [f"warning: train.save_at: the run will probably not reach {points_text} tokens: raise train.seconds"]


def explain_missed(points: Sequence[int], *, tokens: int, revisions: Collection[int]) -> list[str]:
    """Return a note if a resumed run has passed points without keeping its model; otherwise an empty list."""
    missed = [count_text(point) for point in points if point <= tokens and point not in revisions]
    if not missed:
        return []
    seen = count_text(tokens)
    return [f"train.save_at: the model cannot be saved at {', '.join(missed)}: the run has already seen {seen} tokens"]

"""The losses of a pretrained model with memory lengths other than those used in training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmtransfer.data.store.store import TokenStore
from lmtransfer.data.stream.evaluation_batches import evaluation_batches
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.parts import PretrainingParts
from lmtransfer.pretraining.text import Text
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training import process_group
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.learner import Learner, Loss

#: Maximum number of contiguous streams into which the text is cut.
_LANES = 8


@dataclass(frozen=True, slots=True)
class Measurement:
    """A trained model, and the text on which it is measured.

    Attributes:
        learner: the model with the heads of its objectives, on its device.
        parts: rows, corruption and objectives.
        text: the corpus.
        hardware: device and precision.
        most_tokens: maximum number of tokens to count for each loss; None counts all.
    """

    learner: PretrainingLearner
    parts: PretrainingParts
    text: Text
    hardware: Hardware
    most_tokens: int | None


def read_lengths(cfg: DictConfig) -> list[int] | None:
    """Return the memory lengths to measure, sorted, or None if none are given.

    Raises:
        ConfigError: a value is not a number of tokens, or a setting requires ``memory_lengths``, which is not set.
    """
    numbers = ("segment_length", "clamp_length", "eval_tokens")
    wrong = {key: cfg[key] for key in numbers if cfg[key] is not None and not _is_count(cfg[key], least=1)}
    if wrong:
        raise ConfigError([f"{key}={value} must be a number of tokens" for key, value in wrong.items()])
    if cfg.memory_lengths is None:
        idle = [key for key in ("segment_length", "clamp_length", "same_length") if cfg[key]]
        if idle:
            raise ConfigError(f"{idle[0]} needs memory_lengths, such as memory_lengths=[0,64,640]")
        return None
    setting = OmegaConf.to_container(OmegaConf.create({"values": cfg.memory_lengths}))["values"]  # type: ignore[index,call-overload]
    values = setting if isinstance(setting, list) else [setting]
    if not values or not all(_is_count(value, least=0) for value in values):
        raise ConfigError(
            f"memory_lengths={setting} must be a list of token counts, such as memory_lengths=[0,64,256,640]"
        )
    return sorted(set(values))


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def losses_by_memory(measurement: Measurement, lengths: list[int], cfg: DictConfig) -> list[float]:
    """Measure the loss with each memory length.

    All losses are measured on the same tokens. The text is cut into a few contiguous streams of windows of
    ``segment_length`` tokens. The first windows of a stream only fill the longest memory and are not counted.

    Raises:
        ConfigError: the model has no memory, or ``segment_length`` is longer than the model allows.
        DataError: there is too little held-out text.
    """
    encoder = measurement.learner.encoder

    def remember(length: int) -> None:
        encoder.set_memory(length, clamp_length=cfg.clamp_length, same_length=bool(cfg.same_length))

    remember(lengths[0])
    segment_length = cfg.segment_length or measurement.parts.rows.max_length
    if segment_length > encoder.max_length:
        raise ConfigError(f"segment_length={segment_length} is longer than model.max_length={encoder.max_length}")
    held_out = measurement.text.prepared.validation
    if not isinstance(held_out, TokenStore) or not held_out.num_tokens:
        raise DataError(
            "memory_lengths: the run's corpus is a mixture or has no held-out part; use a run with a single corpus and "
            "a held-out part"
        )
    source = _contiguous_source(measurement, held_out, measurement.text.tokenizer, segment_length)
    num_windows = int((source.plan(0).lengths == segment_length).sum())
    warm_up = -(-lengths[-1] // segment_length)
    num_streams = max(min(_LANES, num_windows // (4 * max(warm_up, 1))), 1)
    if num_windows <= warm_up:
        raise DataError(
            f"memory_lengths: the held-out text has {num_windows} windows of {segment_length} tokens, but a memory of "
            f"{lengths[-1]} tokens needs {warm_up} windows to fill: lower memory_lengths, or use a run with more "
            "held-out text"
        )
    losses = []
    for length in lengths:
        remember(length)
        batches = evaluation_batches(
            source,
            micro_batch_tokens=num_streams * segment_length,
            max_tokens=_with_warm_up(measurement.most_tokens, warm_up, windows=num_streams * segment_length),
            rank=process_group.rank(),
            world_size=process_group.world_size(),
            num_streams=num_streams,
        )
        losses.append(_mean_loss(measurement, batches, warm_up=warm_up))
    return losses


def _with_warm_up(most_tokens: int | None, warm_up: int, *, windows: int) -> int | None:
    """Return how many tokens to read so that about ``most_tokens`` count, with at least one window per stream."""
    return None if most_tokens is None else max(most_tokens, windows) + warm_up * windows


def _contiguous_source(
    measurement: Measurement, held_out: TokenStore, tokenizer: Tokenizer, segment_length: int
) -> PretrainingSource:
    rows = LanguageStream(max_length=segment_length, frame="none", contiguous=True, tokenizer=tokenizer)
    return PretrainingSource(
        store=held_out,
        rows=rows,
        corruption=measurement.parts.corruption,
        seed=0,
        output_positions={objective.output_positions for objective in measurement.parts.objectives},
    )


def _mean_loss(measurement: Measurement, batches: Iterable[Any], *, warm_up: int) -> float:
    learner = _AfterWarmUp(measurement.learner, windows=warm_up)
    hardware = measurement.hardware
    losses = evaluate_losses(learner, batches, device=hardware.device, precision=hardware.precision)
    loss = losses.pop("loss")
    assert losses, "at least one window of each stream is counted"
    assert math.isfinite(loss), "a finished run has finite weights"
    return loss


class _AfterWarmUp(Learner):
    """A learner without losses in the first windows, which only fill its memory."""

    def __init__(self, learner: PretrainingLearner, *, windows: int) -> None:
        super().__init__()
        self.learner, self.windows = learner, windows

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Return the counts of the wrapped learner."""
        return self.learner.counts(batch)

    def losses(self, batch: PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        """Return the wrapped learner's losses after the warm-up; the state is the number of windows and its state."""
        seen, inner = recurrent_state if batch.follows and recurrent_state is not None else (0, None)
        losses, inner = self.learner.losses(batch, inner)
        return losses if seen >= self.windows else {}, (seen + 1, inner)

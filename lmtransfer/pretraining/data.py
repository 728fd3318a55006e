"""The data of a pretraining run: the stream of training steps, and the validation batches."""

from __future__ import annotations

from collections.abc import Callable

from lmtransfer.config.settings import TrainSettings
from lmtransfer.data.micro_batches import PlannedStream, evaluation_batches
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.errors import DataError
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.build import PretrainingParts
from lmtransfer.pretraining.text import Text
from lmtransfer.tokenizers.base import characters_of
from lmtransfer.training import process_group
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware

#: A function that computes the losses on a token store, on at most the given number of tokens; None means all.
Measure = Callable[[TokenStore, int | None], dict[str, float]]

#: Maximum number of tokens in a forward pass during validation.
_EVALUATION_MICRO_BATCH = 8192
#: Number of contiguous streams into which text is cut for validation, whatever the batch size.
_EVALUATION_STREAMS = 16


class PretrainingData:
    """The text of a run as batches: of one size for compiled models, of few sizes on a CPU."""

    def __init__(
        self, text: Text, parts: PretrainingParts, *, train: TrainSettings, hardware: Hardware, seed: int
    ) -> None:
        self.parts, self.hardware = parts, hardware
        parts.corruption.observe(text.prepared.train)
        self.held_out = text.prepared.validation
        self.characters = characters_of(text.tokenizer)
        assert train.batch_tokens is not None, "pretraining counts tokens"
        self.training = self._source(text.prepared.train, seed=seed)
        self.stream = PlannedStream(
            self.training,
            seed=seed,
            batch_tokens=train.batch_tokens,
            micro_batch_tokens=train.micro_batch_tokens,
            num_workers=hardware.num_workers,
            rank=process_group.rank(),
            world_size=process_group.world_size(),
            pin_memory=hardware.device.type == "cuda",
            contiguous=parts.rows.contiguous,
        )
        if hardware.compile:
            self.training.capacity = self.stream.capacity(parts.rows.max_length)

    def has_validation(self, *, note: Callable[[str], None]) -> bool:
        """Whether the held-out text yields any rows; if it is too short, ``note`` receives the reason.

        Parts of a mixture whose held-out text yields no rows are excluded from validation.
        """
        if not isinstance(self.held_out, MixedStore):
            return self._has_rows(self.held_out, ", and so no best checkpoint", note)
        parts = {
            name: store for name, store in self.held_out.parts.items() if self._has_rows(store, f" on {name}", note)
        }
        self.held_out = MixedStore(parts, self.held_out.sampling)
        return bool(parts)

    def _has_rows(self, store: TokenStore, what: str, note: Callable[[str], None]) -> bool:
        try:
            return store.num_tokens > 0 and len(self._validation(store).plan(0).lengths) > 0
        except DataError as error:
            note(f"there is no validation{what}: {error}")
            return False

    def validate(self, learner: PretrainingLearner, *, most_tokens: int | None) -> dict[str, float]:
        """Compute the losses by name on at most ``most_tokens`` tokens of held-out text; None means all."""

        def measure(store: TokenStore, most_tokens: int | None) -> dict[str, float]:
            limit = min(self.stream.micro_batch_tokens or _EVALUATION_MICRO_BATCH, _EVALUATION_MICRO_BATCH)
            batches = evaluation_batches(
                self._validation(store),
                micro_batch_tokens=self.training.capacity or limit,
                max_tokens=most_tokens,
                rank=process_group.rank(),
                world_size=process_group.world_size(),
                num_streams=_EVALUATION_STREAMS if self.parts.rows.contiguous else None,
            )
            return evaluate_losses(learner, batches, device=self.hardware.device, precision=self.hardware.precision)

        return validate(measure, self.held_out, most_tokens=most_tokens)

    def _validation(self, store: TokenStore | MixedStore) -> PretrainingSource:
        source = self._source(store, seed=0)
        source.capacity = self.training.capacity
        return source

    def _source(self, store: TokenStore | MixedStore, *, seed: int) -> PretrainingSource:
        return PretrainingSource(
            store=store,
            rows=self.parts.rows,
            corruption=self.parts.corruption,
            seed=seed,
            output_positions=collect_output_positions(self.parts.objectives),
            characters=self.characters,
            few_shapes=self.hardware.device.type == "cpu",
        )


def validate(measure: Measure, held_out: TokenStore | MixedStore, *, most_tokens: int | None) -> dict[str, float]:
    """Compute the losses by name on held-out text.

    In a mixture, each part is measured separately, on an equal share of ``most_tokens``: ``mlm/fra`` is the loss
    ``mlm`` on the part ``fra``, and ``mlm`` is the mean over all parts, whatever their size.
    """
    if isinstance(held_out, TokenStore):
        return measure(held_out, most_tokens)
    share = None if most_tokens is None else max(most_tokens // len(held_out.parts), 1)
    losses_of = {name: measure(part, share) for name, part in held_out.parts.items()}
    names = list(dict.fromkeys(name for losses in losses_of.values() for name in losses))
    means: dict[str, float] = {}
    by_part: dict[str, float] = {}
    for name in names:
        values = {part: losses[name] for part, losses in losses_of.items() if name in losses}
        means[name] = sum(values.values()) / len(values)
        by_part |= {f"{name}/{part}": value for part, value in values.items()}
    return means | by_part

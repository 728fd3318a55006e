"""Messages during pretraining: whether the loss is below the unigram entropy, and how much the budget may help.

A budget in seconds gives a different number of tokens on every machine. ``TABLE`` was measured with masked language
modeling and Muon on the Python documentation, from random embeddings (``experiment=demo embeddings=null``, with
``tokenizer.vocab_size=4096``, and ``laptop``). Each entry is one pretraining run, followed by
``experiment=few_labels`` with three seeds: the accuracy after finetuning on 100 labeled docstrings, compared with the
same encoder without pretraining, on two AVX2 cores. ``scripts/bench/worth.py`` measures more such entries. These
messages are not shown if embeddings start from counts, because such embeddings help before the loss falls below the
unigram entropy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from lmtransfer.objectives.base import masked_loss
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.save_points import explain_unreached
from lmtransfer.training.callbacks import Callback, TokenForecast, UnigramPlateau, millions
from lmtransfer.training.optim.optimizers import Muon, Optimizer


def callbacks_of(
    learner: PretrainingLearner,
    *,
    seconds: float | None,
    entropy: float | None,
    from_scratch: bool,
    optimizer: Optimizer,
    save_at: Sequence[int] = (),
) -> list[Callback]:
    """Return the callbacks of a run: ``UnigramPlateau`` for masked tokens, ``TokenForecast`` for budgets in seconds.

    Args:
        entropy: entropy of the token frequencies in nats; None if no tokens are masked.
        from_scratch: whether all weights started at random, as in the measured runs.
    """
    masked = masked_loss(learner.objective_list())
    callbacks: list[Callback] = []
    if entropy is not None and masked is not None:
        remedies = () if isinstance(optimizer, Muon) else ("optimizer=muon",)
        callbacks.append(UnigramPlateau(entropy=entropy, loss=masked, warns=from_scratch, remedies=remedies))
    if seconds is None:
        return callbacks
    is_comparable = masked == "mlm" and from_scratch
    num_weights = block_weights(learner.encoder)

    def forecast(tokens: float, rate: float) -> list[str]:
        means = meaning(tokens, rate, num_weights=num_weights) if is_comparable else ()
        return [*means, *explain_unreached(save_at, tokens)]

    return [*callbacks, TokenForecast(seconds=seconds, meaning=forecast)]


@dataclass(frozen=True, slots=True)
class MeasuredBudget:
    """A budget with the accuracy gain over the control in points, and the standard error over finetuning seeds."""

    tokens: int
    points: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements with one encoder.

    Attributes:
        num_weights: number of weights in the matrices of the blocks.
        plateau_tokens: number of tokens after which the loss was below the entropy of the token frequencies.
    """

    encoder: str
    num_weights: int
    plateau_tokens: int
    budgets: tuple[MeasuredBudget, ...]


TABLE = (
    Measurements(
        encoder="BERT 3 x 192",
        num_weights=1_327_104,
        plateau_tokens=420_000,
        budgets=(
            MeasuredBudget(819_000, 10.5, 1.7),
            MeasuredBudget(1_000_000, 14.2, 2.0),
            MeasuredBudget(1_450_000, 17.2, 1.9),
        ),
    ),
    Measurements(
        encoder="BERT 4 x 256",
        num_weights=3_145_728,
        plateau_tokens=440_000,
        budgets=(MeasuredBudget(2_770_000, 30.0, 4.0),),
    ),
)

#: No message is shown if the number of block weights and that of the nearest measured encoder differ by more than this
#: factor.
_ALIKE = 4.0


def meaning(tokens: float, rate: float, *, num_weights: int) -> Sequence[str]:
    """Return lines that say what a budget achieved in the measurements; none for encoders of other sizes."""
    nearest = min(TABLE, key=lambda row: abs(math.log(row.num_weights / max(1, num_weights))))
    if not 1 / _ALIKE <= nearest.num_weights / max(1, num_weights) <= _ALIKE:
        return ()
    if tokens < nearest.plateau_tokens:
        seconds = nearest.plateau_tokens / rate
        return [
            f"warning: {millions(tokens)} tokens are too few: in our measurements, {nearest.encoder} needed "
            f"{millions(nearest.plateau_tokens)} to learn more than token frequencies, and hardly helped before that. "
            f"This takes about {seconds:,.0f} seconds on this machine; set a budget more than twice as large as that "
            f"(train.seconds={_round_up(2.5 * seconds)})"
        ]
    least = [row for row in nearest.budgets if row.tokens <= tokens]
    if not least:
        return ()
    best = least[-1]
    return [
        f"in our measurements, {millions(best.tokens)} tokens improved {nearest.encoder} by {best.points:+.0f} +- "
        f"{best.standard_error:.0f} points (100 labeled docstrings, compared with random weights); your text may differ"
    ]


def block_weights(encoder: nn.Module) -> int:
    """Count the weights in matrices, without embedding tables."""
    tables = {id(table.weight) for table in encoder.modules() if isinstance(table, nn.Embedding)}
    return sum(p.numel() for p in encoder.parameters() if p.ndim > 1 and id(p) not in tables)


def _round_up(seconds: float) -> int:
    unit: int = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit

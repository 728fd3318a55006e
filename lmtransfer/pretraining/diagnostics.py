"""What is said of a pretraining while it runs: whether it has left the unigrams, and what its tokens may be worth.

A budget in seconds is another number of tokens on every machine. The table is of masked language modelling with Muon on
the Python documentation from random embeddings (``experiment=demo embeddings=null``, ``laptop``), then
``experiment=few_labels``: the accuracy on 100 labelled docstrings against the same encoder without pretraining. One
pretraining run each, three seeds of finetuning, two cores shown as AVX2; ``scripts/measure_worth.py`` measures more
such rows. Where embeddings start from counts, none of it is said: they transfer before the loss leaves the unigrams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from lmtransfer.objectives.base import masked_loss
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.callbacks import Callback, TokenForecast, UnigramPlateau, millions


def watchers_of(
    learner: PretrainingLearner, *, seconds: float | None, entropy: float | None, from_scratch: bool
) -> list[Callback]:
    """What looks at every step: the unigram plateau where tokens are masked, a forecast where time is the budget.

    Args:
        learner: encoder and objectives.
        seconds: the budget, if it is one of time.
        entropy: of the token frequencies, in nats; None where no tokens are masked.
        from_scratch: whether its weights began as random ones, as those that were measured did.
    """
    masked = masked_loss(learner.listed())
    callbacks: list[Callback] = []
    if entropy is not None and masked is not None:
        callbacks.append(UnigramPlateau(entropy=entropy, loss=masked, warns=from_scratch))
    if seconds is None:
        return callbacks
    if masked != "mlm" or not from_scratch:
        return [*callbacks, TokenForecast(seconds=seconds)]
    num_weights = block_weights(learner.encoder)
    told = TokenForecast(seconds=seconds, meaning=lambda tokens, rate: meaning(tokens, rate, num_weights=num_weights))
    return [*callbacks, told]


@dataclass(frozen=True, slots=True)
class Measured:
    """One budget: tokens, points of accuracy against the control, and their standard error over finetuning seeds."""

    tokens: int
    points: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """One encoder.

    Attributes:
        encoder: its size, for the reader.
        num_weights: in the matrices of its blocks.
        plateau_tokens: after so many the loss had left the entropy of the token frequencies.
        budgets: by tokens, each a run of its own with its own schedule.
    """

    encoder: str
    num_weights: int
    plateau_tokens: int
    budgets: tuple[Measured, ...]


TABLE = (
    Measurements(
        encoder="BERT 3 x 192",
        num_weights=1_327_104,
        plateau_tokens=420_000,
        budgets=(Measured(819_000, 10.5, 1.7), Measured(1_000_000, 14.2, 2.0), Measured(1_450_000, 17.2, 1.9)),
    ),
    Measurements(
        encoder="BERT 4 x 256",
        num_weights=3_145_728,
        plateau_tokens=440_000,
        budgets=(Measured(2_770_000, 30.0, 4.0),),
    ),
)

#: Encoders whose blocks have more or fewer weights than the measured ones by more than this factor are left alone.
_ALIKE = 4.0


def meaning(tokens: float, rate: float, *, num_weights: int) -> Sequence[str]:
    """What is known of a budget, as lines for the user; none for encoders of other sizes.

    Args:
        tokens: that the run will see.
        rate: tokens a second.
        num_weights: in the matrices of the encoder's blocks.
    """
    nearest = min(TABLE, key=lambda row: abs(math.log(row.num_weights / max(1, num_weights))))
    if not 1 / _ALIKE <= nearest.num_weights / max(1, num_weights) <= _ALIKE:
        return ()
    if tokens < nearest.plateau_tokens:
        seconds = nearest.plateau_tokens / rate
        return [
            f"warning: {millions(tokens)} tokens are too few: {nearest.encoder} needed "
            f"{millions(nearest.plateau_tokens)} to know more than token frequencies, and hardly helps before. On this "
            f"machine that takes about {seconds:,.0f} seconds; give more than twice as many "
            f"(train.seconds={_rounded(2.5 * seconds)})"
        ]
    least = [row for row in nearest.budgets if row.tokens <= tokens]
    if not least:
        return ()
    best = least[-1]
    return [
        f"{millions(best.tokens)} tokens were worth {best.points:+.0f} +- {best.standard_error:.0f} points to "
        f"{nearest.encoder} (100 labelled docstrings, against random weights; measured by us, your text may differ)"
    ]


def block_weights(encoder: nn.Module) -> int:
    """Weights in matrices that every token passes through; embedding tables are looked up only."""
    tables = {id(table.weight) for table in encoder.modules() if isinstance(table, nn.Embedding)}
    return sum(p.numel() for p in encoder.parameters() if p.ndim > 1 and id(p) not in tables)


def _rounded(seconds: float) -> int:
    """Up to two figures."""
    unit = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit

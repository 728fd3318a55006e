"""A difference between two conditions, with its interval, its power and its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from lmtransfer.verdicts.intervals import (
    chance,
    degrees_in_the_tail,
    interval_around,
    reach,
    seeds_needed,
    smallest_detectable,
)
from lmtransfer.verdicts.pairing_and_variance import VariancePart

Verdict = Literal[
    "better",
    "better but below a baseline",
    "worse",
    "equivalent",
    "no difference shown",
    "one seed, no spread",
    "no examples",
    "seeds all alike",
    "collapsed",
    "control collapsed",
    "settings differ",
]
Scope = Literal["this checkpoint", "these checkpoints", "this recipe"]
#: Verdicts of comparisons that could be judged.
VERDICTS: tuple[Verdict, ...] = ("better", "better but below a baseline", "worse", "equivalent", "no difference shown")
#: Verdicts that the condition is better than its control.
BETTER: tuple[Verdict, ...] = ("better", "better but below a baseline")
#: Reasons for no verdict that another learning rate or more training might remove.
NO_VERDICT: tuple[Verdict, ...] = ("collapsed", "control collapsed", "seeds all alike")
#: The accepted rate of false findings, for one comparison or for all comparisons in a column together.
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a condition and its control.

    Attributes:
        delta: mean of the condition minus mean of the control, in the metric's unit.
        verdict: "better" or "worse" only if the corrected interval excludes 0 and no reason below prevents it; "better
            but below a baseline" if ``is_below``; "no difference shown" if the interval includes 0, or "equivalent" if
            the difference is also shown to be within the margin. The other values mean that there is no verdict: "one
            seed, no spread"; "collapsed" and "control collapsed" if every seed of a side predicts only one label or
            scores the same as the majority baseline; "no examples" if both sides are constant and their predictions
            are unknown; "seeds all alike" if a side, or the paired differences, do not vary; "settings differ" if
            anything but the weights differs.
        scope: what the verdict applies to: "this checkpoint" with one pretraining seed on a side, "these checkpoints"
            with two, "this recipe" with three or more.
        standard_error: standard error of ``delta``; None with one seed on a side.
        degrees_of_freedom: Satterthwaite's degrees of freedom of the standard error; None without a standard error.
        p_value: two-sided p value of this comparison alone; None if it cannot be computed.
        paired: whether the seeds of the two conditions were paired.
        num_seeds: number of seeds used from the condition and from the control, 0 for a constant side: pretraining
            seeds if each has its own finetuning seeds, otherwise finetuning seeds.
        num_pretrainings: number of checkpoints of the condition and of the control; 0 for random weights.
        parts: the sources of the variance of ``delta``: pretraining, finetuning, examples.
        notes: what could not be estimated or was left out, one line each.
        higher_is_better: the direction of the metric.
        is_below: whether the condition scores below the majority baseline or a word-count baseline.
        num_comparisons: number of comparisons in the column that were judged together.
        level: level at which this comparison was judged: 0.05 alone, less in a column (Holm).
        corrected_p_value: the p value with Holm's correction; ``p_value`` for a single comparison.
        margin: the size below which a difference does not matter, in the metric's unit; None if not set.
    """

    delta: float
    verdict: Verdict
    scope: Scope
    standard_error: float | None
    degrees_of_freedom: float | None
    p_value: float | None
    paired: bool
    num_seeds: tuple[int, int]
    num_pretrainings: tuple[int, int]
    parts: tuple[VariancePart, ...] = ()
    notes: tuple[str, ...] = ()
    higher_is_better: bool = True
    is_below: bool = False
    num_comparisons: int = 1
    level: float = LEVEL
    corrected_p_value: float | None = None
    margin: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The limits of the interval at ``1 - level``, which decides the verdict; None if it cannot be computed.

        It excludes 0 exactly if Holm's procedure finds a difference. For a single comparison it is the 95 % interval.
        """
        if self.num_comparisons > 1 and self.p_value is not None:
            half = reach(self.level, self._variances)
            return self.delta - half, self.delta + half
        return self.plain_interval

    @property
    def plain_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of this comparison alone, uncorrected."""
        if self.p_value is None:
            return None
        return interval_around(self.delta, self.standard_error, self.degrees_of_freedom, LEVEL)

    @property
    def counts_examples(self) -> bool:
        """Whether the interval includes the variance from the choice of examples."""
        return any(part.source == "examples" for part in self.parts)

    @property
    def detectable_difference(self) -> float | None:
        """The smallest true difference that this design finds with a power of 80 %, in the metric's unit."""
        if self.p_value is None or self.standard_error is None or self.degrees_of_freedom is None:
            return None
        df = self.degrees_of_freedom
        if self.num_comparisons > 1:
            df = degrees_in_the_tail(self.level, self._variances)
        return smallest_detectable(self.standard_error, df, level=self.level)

    @property
    def seeds_needed(self) -> int | None:
        """The number of seeds per side with which a true difference of the observed size is found with a power of 80 %.

        None if the number cannot be computed, or if even 1,000 seeds are too few because there are too few examples.
        """
        if self.p_value is None:
            return None
        num_seeds = min((num for num in self.num_seeds if num), default=0)
        if not num_seeds:
            return None
        seeds, examples = (
            [
                (part.variance, part.degrees_of_freedom)
                for part in self.parts
                if (part.source == "examples") == of_examples
            ]
            for of_examples in (False, True)
        )
        return seeds_needed(abs(self.delta), num_seeds, seeds, examples, level=self.level)

    @property
    def tail_probability(self) -> float | None:
        """The probability that such a difference arises by chance, as used for a whole column (see ``chance``)."""
        return None if self.p_value is None else chance(self.delta, self._variances)

    @property
    def equivalence_p_value(self) -> float:
        """The larger p value of two one-sided tests against both ends of the margin; 1 if they cannot be performed.

        The tests judge the difference alone or in a column, as ``p_value`` and ``tail_probability`` do. The value is
        the probability that a true difference as large as the margin yields one no larger than observed (Schuirmann
        1987).
        """
        if self.p_value is None or self.margin is None or abs(self.delta) >= self.margin:
            return 1.0
        return chance(self.margin - abs(self.delta), self._variances) / 2

    @property
    def _variances(self) -> tuple[tuple[float, float], ...]:
        return tuple((part.variance, part.degrees_of_freedom) for part in self.parts)

    @classmethod
    def from_values(cls, values: Mapping[str, Any] | None) -> Difference | None:
        """Read a difference that ``as_values`` wrote."""
        if values is None:
            return None
        names = {entry.name for entry in dataclasses.fields(cls)}
        own = {name: value for name, value in values.items() if name in names}
        return pydantic.TypeAdapter(cls).validate_python(own | {"delta": values["difference"]})

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values for ``result.json``, a table or ``report.json``, in the metric's unit."""
        values = {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }
        return {
            "difference": values.pop("delta"),
            **values,
            "interval": None if self.interval is None else list(self.interval),
            "detectable": self.detectable_difference,
            "seeds_needed": self.seeds_needed,
        }

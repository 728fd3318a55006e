"""The result of one run, and the table of all sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import condition
from lmtransfer.verdicts.spread import spread


@dataclass(frozen=True)
class Outcome:
    """The result of one training run.

    Attributes:
        accuracy: accuracy on the dev sentences, a fraction.
        tokens: real tokens trained on.
        seconds: duration of training, from before the first step to the end of the last.
    """

    accuracy: float
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Real tokens per second."""
        return self.tokens / self.seconds

    def __str__(self) -> str:
        return f"{100 * self.accuracy:6.2f} %  {self.rate:8,.0f} tokens/s  {self.seconds:7.1f} s"


def table(sides: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """The means over the seeds, then the lead of the first side over each other side, with its 95 % interval."""
    lines = [f"{'':40} {'accuracy':>9} {'deviation':>10} {'tokens/s':>9} {'seconds':>8}   seed by seed"]
    for name, outcomes in sides.items():
        accuracy, rate = spread([100 * o.accuracy for o in outcomes]), spread([o.rate for o in outcomes])
        seconds = spread([o.seconds for o in outcomes])
        shown = "-" if accuracy.deviation is None else f"{accuracy.deviation:.2f}"
        each = ", ".join(f"{100 * o.accuracy:.2f}" for o in outcomes)
        lines.append(f"{name:40} {accuracy.mean:9.2f} {shown:>10} {rate.mean:9,.0f} {seconds.mean:8.1f}   {each}")
    (_, ours), *others = sides.items()
    for name, theirs in others:
        found = compare_conditions(
            *(condition([100 * outcome.accuracy for outcome in side]) for side in (ours, theirs))
        )
        if found.interval is None:
            said = "one seed: no interval"
        else:
            low, high = found.interval
            said = f"95 % interval {low:+.2f} to {high:+.2f}: {found.verdict}"
        ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
        mean = sum(o.rate for o in ours) / sum(o.rate for o in theirs)
        lines.append(
            f"against {name}: {found.delta:+.2f} points ({said}); "
            f"speed {mean:.2f} x (turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    return lines

"""The search for a learning rate: each condition chooses its own by held-out examples; saved for ``resume``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json
from lmtransfer.training import distributed
from lmtransfer.training.progress import Progress
from lmtransfer.transfer.experiment.setting import Member
from lmtransfer.transfer.experiment.training_run import train_once


class _Try(TypedDict):
    """An entry of ``learning_rate_tries.json``."""

    arm: Literal["pretrained", "control"]
    seed: Whole
    learning_rate: float
    score: float


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The learning rates to try.

    Attributes:
        rates: at least one rate; a single rate is used without a search.
        path: file with the finished tries.
    """

    rates: Sequence[float]
    path: Path

    @property
    def are_searched(self) -> bool:
        """Whether there is more than one rate."""
        return len(self.rates) > 1

    def choose(self, members: Callable[[float], Sequence[Member]], say: Callable[[float, float], None]) -> float:
        """The rate with the best main metric on held-out examples, as the mean over a condition's runs.

        Args:
            members: gives the runs of the condition for a rate.
            say: called with each rate and its mean.
        """
        if not self.are_searched:
            return self.rates[0]
        means = {}
        for rate in self.rates:
            runs = members(rate)
            nested = len({member.pretraining_seed for member in runs}) > 1
            scores = [self._try(member, nested=nested) for member in runs]
            means[rate] = sum(scores) / len(scores)
            say(rate, means[rate])
        return max(means, key=lambda rate: means[rate])

    def tries(self) -> list[_Try]:
        """The finished tries."""
        if not self.path.exists():
            return []
        return read_json(self.path, list[_Try], error=RunDirectoryError)

    def _try(self, member: Member, *, nested: bool) -> float:
        """The main metric on held-out examples of a run that is not saved."""
        tries = self.tries()
        which: Any = {"arm": member.condition, "seed": member.seed, "learning_rate": member.learning_rate}
        if nested:
            which["pretraining_seed"] = member.pretraining_seed
        for tried in tries:
            if all(tried.get(key) == value for key, value in which.items()):
                return tried["score"]
        outcome = train_once(member, run=None, progress=Progress(quiet=True))
        assert outcome.choosing_score is not None
        which["score"] = outcome.choosing_score
        tries.append(which)
        if distributed.is_main():
            write_text(self.path, json.dumps(tries, indent=1) + "\n")
        distributed.barrier()
        return outcome.choosing_score

"""The learning-rate search: each condition chooses its own rate by its scores on held-out examples.

Each try of a rate is an unsaved run. Its score is written to a file, from which it is read if it has finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from typing_extensions import TypedDict

from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json
from lmtransfer.training import process_group
from lmtransfer.training.progress import ProgressLine
from lmtransfer.transfer.experiment.results import choice_data
from lmtransfer.transfer.experiment.settings import CONDITION_NAMES, Part
from lmtransfer.transfer.experiment.training_run import train_once


class RateTry(TypedDict, total=False):
    """The score of one run with one learning rate, as saved in its file."""

    arm: Literal["pretrained", "control"]
    seed: Whole
    learning_rate: float
    pretraining_seed: Whole
    score: float
    loss: float


@dataclass(frozen=True, slots=True)
class LearningRateSearch:
    """The search of one command.

    Attributes:
        directory: the command's directory, which contains the files of the tries.
        has_pretraining_seeds: whether the command's runs start from several pretraining seeds.
        say: prints a line.
    """

    directory: RunDirectory
    has_pretraining_seeds: bool
    say: Callable[[str], None]

    def choose(self, parts: Mapping[float, Sequence[Part]]) -> float:
        """Return the rate with the best mean score over a condition's runs.

        Among rates with the same score, the rate with the lowest mean loss is chosen; a non-finite loss counts as the
        highest.

        Args:
            parts: the runs of the condition with each rate.
        """
        means = {}
        for rate, runs in parts.items():
            tries = [self.score(part) for part in runs]
            score = fmean(attempt["score"] for attempt in tries)
            means[rate] = (score, -fmean(attempt.get("loss", math.inf) for attempt in tries))
            setting = runs[0].setting
            text = f"{setting.score_text(score)} on {choice_data(setting)}"
            self.say(f"{CONDITION_NAMES[runs[0].condition]}, learning rate {rate:g}: {text}")
        return max(means, key=lambda rate: means[rate])

    def score(self, part: Part) -> RateTry:
        """Score an unsaved run on held-out examples, or read its score if it has finished."""
        path = self._path(part)
        if path.exists():
            return read_json(path, RateTry, error=RunDirectoryError)
        outcome = train_once(part, run=None, progress=ProgressLine(quiet=True))
        assert outcome.choosing_score is not None
        attempt: RateTry = {"arm": part.condition, "seed": part.seed}
        attempt["learning_rate"] = part.rate
        if part.condition == "pretrained" and self.has_pretraining_seeds and part.pretraining_seed is not None:
            attempt["pretraining_seed"] = part.pretraining_seed
        attempt["score"] = outcome.choosing_score
        if outcome.choosing_loss is not None and math.isfinite(outcome.choosing_loss):
            attempt["loss"] = outcome.choosing_loss
        if process_group.is_main():
            path.parent.mkdir(exist_ok=True)
            write_text(path, json.dumps(attempt, indent=1) + "\n")
        process_group.barrier()
        return attempt

    def read_finished(self, parts: Iterable[Part]) -> Iterator[RateTry]:
        """Yield the finished tries among ``parts``."""
        for path in map(self._path, parts):
            if path.exists():
                yield read_json(path, RateTry, error=RunDirectoryError)

    def _path(self, part: Part) -> Path:
        return self.directory.path / f"{try_name(part)}.json"


def try_name(part: Part) -> str:
    """Return the name of a part that tries a learning rate: its file in the command's directory, without the ending."""
    folders = part.folder.replace("/", "-").removeprefix("control-") or f"seed-{part.seed}"
    return f"tries/{part.condition}-{folders}-rate-{part.rate:g}"

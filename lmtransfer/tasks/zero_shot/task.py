"""The base class of zero-shot tasks, in which a pretraining run scores texts by their log-probabilities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from lmtransfer.config.types import Folder
from lmtransfer.data.documents import Notes
from lmtransfer.data.files import explain_irregular, find_file
from lmtransfer.errors import DataError
from lmtransfer.tasks.base import TaskWithoutHead
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tasks.settings import TaskSettings

#: What is masked when a masked model predicts a token: only that token; also the later tokens of its word; or the
#: token and all text after it, which three masks replace.
Hidden = Literal["token", "rest_of_word", "following"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A text whose end is scored.

    Attributes:
        text: prefix and completion.
        start: index of the character at which the completion begins.
    """

    text: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class CompletionScores:
    """The log-probabilities of completions, per token.

    Attributes:
        tokens: the log-probability of each token of each completion, in nats, float64.
        ids: the ids of these tokens.
        spans: the characters [start, end) of these tokens in the text, int32, shape (n, 2) for each completion.
    """

    tokens: Sequence[np.ndarray]
    ids: Sequence[np.ndarray]
    spans: Sequence[np.ndarray]

    @property
    def log_probabilities(self) -> np.ndarray:
        """The log-probability of each completion, in nats, float64, shape (N,)."""
        return np.array([logs.sum() for logs in self.tokens], dtype=np.float64)

    def per_token(self) -> np.ndarray:
        """Return each completion's mean log-probability per token, in nats; 0 for a completion without tokens."""
        return np.array([logs.mean() if len(logs) else 0.0 for logs in self.tokens], dtype=np.float64)

    def part(self, first: int, last: int) -> CompletionScores:
        """Return the scores of the completions ``first`` to ``last`` (exclusive)."""
        return CompletionScores(self.tokens[first:last], self.ids[first:last], self.spans[first:last])


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a task, computed from the scores of its items.

    Attributes:
        metrics: values by name, the main metric first.
        examples: the prediction for each item.
        num_scored: number of items.
        chance: the main metric at chance level; None if there is none.
        baseline: the metrics of choosing by token frequencies; None if they are unknown or the task has no choices.
        more: additional entries of the result.
        shown: displayed name of each metric to print below the main one.
        notes: sentences to print after the scoring method.
        files: contents of additional files to write to the run directory, by file name.
    """

    metrics: dict[str, float]
    examples: ScoredExamples
    num_scored: int
    chance: float | None = None
    baseline: Mapping[str, float] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about the model that computed the scores.

    Attributes:
        vocab_size: number of tokens in the vocabulary.
        token_logs_V: logarithm of each token's frequency in the run's training text, shape (V,); None if unknown.
        words: number of words that each revision has read, if the task compares revisions.
    """

    vocab_size: int
    token_logs_V: np.ndarray | None = None
    words: Sequence[int] = ()


class CompletionTask(TaskWithoutHead):
    """A task whose items are scored by the log-probabilities of completions.

    Attributes:
        hidden: what is masked when a masked model predicts a token.
        needs_revisions: whether the task compares all revisions of a run instead of scoring one of them.
    """

    class Settings(TaskSettings):
        """The settings of a task without training."""

        data_root: Folder | None = None
        max_length: None = None
        num_train: None = None
        dev_from_train: None = None

    splits = ("test",)
    hidden: Hidden = "token"
    needs_revisions: ClassVar[bool] = False

    settings: Settings

    @abstractmethod
    def completions(self, item: Any) -> Sequence[Completion]:
        """Return the texts to score for an item."""

    @abstractmethod
    def evaluate(self, items: Sequence[Any], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        """Compute the result from the scores of each item's completions.

        If the task compares revisions, the scores of all items at the first revision come first.
        """

    def gain(
        self, items: Sequence[Any], scores: Sequence[CompletionScores], control: Sequence[CompletionScores]
    ) -> dict[str, Any] | None:
        """Return the gain over a control in the main metric and its 95 % interval; None if there is no interval."""
        return None

    def score(self, examples: Sequence[Any], answers: Iterable[Any]) -> dict[str, float]:
        """Raise the same error as ``head``: ``evaluate`` computes the metrics."""
        raise self._no_head()

    def describe(self, method: str) -> str:
        """Describe the values computed from log-probabilities; ``method`` describes the log-probabilities."""
        return method

    def paths(self, names: str | Sequence[str]) -> list[Path]:
        """Return the paths to search for files or folders: below ``data_root``, then below the working directory."""
        roots = [*([] if self.settings.data_root is None else [Path(self.settings.data_root)]), Path.cwd()]
        return [root / name for root in roots for name in ([names] if isinstance(names, str) else names)]

    def find_file(self, names: str | Sequence[str]) -> Path:
        """Return the first file that exists, plain or compressed.

        Args:
            names: the value of ``task.file``.

        Raises:
            DataError: none of the files exists.
        """
        paths = self.paths(names)
        path = next((path for path in map(find_file, paths) if path is not None), None)
        if path is None and (irregular := explain_irregular(paths)) is not None:
            raise DataError(f"task.file={names}: {irregular}")
        if path is None:
            raise DataError(f"task.file={names}: there is no file {' or '.join(map(str, paths))}")
        return path

    def check_split(self, split: str) -> None:
        """Raise DataError if the task has no such split; otherwise start its ``notes``."""
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has the splits {', '.join(self.splits)}")
        self.notes = {split: Notes()}


@dataclass(frozen=True, slots=True)
class Item:
    """The base class of items, which have no hidden gold answers, no classes and no groups."""

    id: str

    @property
    def has_gold(self) -> bool:
        """True: nothing is hidden."""
        return True

    @property
    def class_index(self) -> int:
        """Always 0, because there is only one class."""
        return 0

    @property
    def group(self) -> str:
        """The item itself."""
        return self.id

"""The interface of every downstream task, of its examples and of its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pydantic

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec
from lmtransfer.tasks.input_files import Reader
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples
from lmtransfer.tasks.settings import TaskSettings
from lmtransfer.tokenizers.base import Tokenizer


@runtime_checkable
class Example(Protocol):
    """An example of a task.

    Attributes:
        id: name for people and files (``train:17`` is row 17 of the split, from 0; or the id in the source).
        has_gold: whether its gold answer is known (published test sets hide it).
        class_index: class of the example, for subsets that keep the proportions; 0 if all examples are of one class.
        group: what it shares with other examples, such as a passage. Examples of one group are all in the held-out part
            or all in the training part. Examples of group "" share with several groups and are always trained on.
        content: the input texts; examples with the same content are the same example in every run.
    """

    @property
    def id(self) -> str: ...  # noqa: D102

    @property
    def has_gold(self) -> bool: ...  # noqa: D102

    @property
    def class_index(self) -> int: ...  # noqa: D102

    @property
    def group(self) -> str: ...  # noqa: D102

    @property
    def content(self) -> tuple[str, ...]: ...  # noqa: D102


@runtime_checkable
class Answer(Protocol):
    """An answer of a run to an example."""

    def plain(self) -> dict[str, Any]:
        """Return the answer as JSON, in the form that ``predict`` writes."""
        ...


class Task(ABC):
    """Labelled data with its splits, its label names and its official metrics.

    Features that only some tasks have are declared here with defaults, so that callers need not know the class.

    A task that is built from a config is constructed with the fields of its model ``Settings``; a subclass that has
    further settings derives a model from that of its base. A subclass may also have a constructor of its own, with one
    argument for each setting.

    Args:
        settings: the fields of ``Settings``.

    Raises:
        ConfigError: a field is missing, unknown or of the wrong type.

    Attributes:
        settings: the settings, checked.
        name: the task's name in tables and ``result.json``.
        labels: the label names in order, empty for regression; every run stores them, and other runs are matched to
            them by name.
        main_metric: name of the metric that decides; higher is better for all metrics.
        metric_names: names of the metrics that the user chose, the main one first; empty if the task has no choice.
        max_length: longest input in tokens, specials included; None: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; None: all of it.
        dev_from_train: fraction of the training examples in the held-out part, which chooses checkpoints and learning
            rates; None: the ``dev`` split chooses (the result says so if ``dev`` is also the reported split).
        folds: number of folds of the training split, each of which is scored by a run on the others; None: the run is
            scored on another split.
        splits: names of the available splits.
        notes: unusual input in the splits that were read, by split.
        zero_shot: the task scores pretraining runs as they are: it has no head, and nothing is trained.
        no_answer: whether "no answer" is a valid answer.
        baseline_name: name of the ``baseline``; None: the label that it gives to every example.
    """

    Settings: ClassVar[type[TaskSettings]] = TaskSettings
    zero_shot: ClassVar[bool] = False
    baseline_name: ClassVar[str | None] = None

    settings: TaskSettings
    name: str
    main_metric: str
    splits: tuple[str, ...]
    metric_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    num_train: int | None = None
    dev_from_train: float | None = None
    folds: int | None = None
    notes: Mapping[str, Notes] = MappingProxyType({})
    no_answer: bool = False

    def __init__(self, **settings: Any) -> None:
        try:
            self.settings = self.Settings(**settings)
        except pydantic.ValidationError as error:
            raise ConfigError([_problem(problem) for problem in error.errors()]) from None
        self.name, self.max_length = self.settings.name, self.settings.max_length
        self.num_train, self.dev_from_train = self.settings.num_train, self.settings.dev_from_train

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """Describe the head of the task.

        Raises:
            ConfigError: the task has no head to train.
        """

    @abstractmethod
    def examples(self, split: str) -> Sequence[Any]:
        """Read all examples of a split, in the order of the source.

        Raises:
            DataError: the split is missing or malformed; the message has ``file:line`` if there is one.
        """

    @abstractmethod
    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode examples as token ids with specials, in sequences of at most ``max_length`` tokens.

        Args:
            max_length: longest sequence in tokens, specials included.
            num_segments: number of segment ids of the encoder.
        """

    @abstractmethod
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[Any]:
        """Turn the head's outputs into one ``Answer`` an example, in the order of ``encoded.examples``.

        Args:
            outputs: outputs of the head, float32, shape (R, K): row r answers row r of ``encoded.targets``.
        """

    @abstractmethod
    def score(self, examples: Sequence[Any], answers: Iterable[Any]) -> dict[str, float]:
        """Compute the official metrics, the main one first.

        Args:
            examples: examples with gold answers.
            answers: one answer per example, in the same order.
        """

    def reader(self) -> Reader:
        """Return the reader that makes examples from the input of users.

        Raises:
            ConfigError: the task takes no input from users.
        """
        raise ConfigError(f"task {self.name} is scored on its own data only, and cannot answer other input")

    def texts(self, example: Any) -> tuple[str, ...]:
        """Return the running texts of an example, for a search in other text."""
        return tuple(example.content)

    def echo(self, example: Any) -> dict[str, Any]:
        """Return, as JSON, the text to show with the answer to an example, so that people can read it."""
        return {}

    def baseline(self, train: Sequence[Any], examples: Sequence[Any]) -> Sequence[Answer] | None:
        """Return the best answers that need no input, such as the majority label; None if there are no such answers."""
        return None

    def scored_examples(self, examples: Sequence[Any], answers: Sequence[Any]) -> ScoredExamples | None:
        """Return the answers and each example's share in the metrics of ``score``, to be kept and compared.

        Args:
            examples: examples with gold answers.
            answers: one answer per example, in the same order.

        Returns:
            None if answers cannot be kept example by example.
        """
        return None

    def calibration(self, encoded: EncodedExamples, outputs: np.ndarray) -> dict[str, Any] | None:
        """Return how well the probabilities of answers fit their accuracy, as plain values for a ``result.json``.

        Args:
            encoded: examples with gold answers.
            outputs: outputs of the head, float32, shape (R, K).

        Returns:
            None if answers have no probabilities that could be calibrated.
        """
        return None

    def check_windows(self, longest: int) -> None:  # noqa: B027 (most tasks have nothing to refuse)
        """Check, before anything is read, that the settings fit sequences of at most ``longest`` tokens.

        Raises:
            ConfigError: the settings do not fit.
        """


def _problem(problem: Mapping[str, Any]) -> str:
    """A problem of a setting in words."""
    key = ".".join(map(str, ("task", *problem["loc"])))
    return f"{key}: missing" if problem["type"] == "missing" else f"{key}={problem['input']!r:.60}: {problem['msg']}"

"""The interfaces of tasks, their examples and their answers (predictions)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol, runtime_checkable

import numpy as np
import pydantic

from lmtransfer.config.types import Folder, Name
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import join, locate
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
        id: the id in the source, or ``train:17`` for row 17 of the split, counted from 0.
        has_gold: whether the gold answer is known (published test sets hide it).
        class_index: class of the example, for subsets that preserve class proportions; 0 if the task has a single
            class.
        group: what the example shares with others, such as a passage. A group is never divided between training and
            held-out examples. Examples in group "" share something with several groups and are never held out.
        content: the input texts; examples with identical content are treated as the same example in all runs.
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
    """A run's prediction for an example."""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in the format that ``predict`` writes, ready for JSON."""
        ...


class Task(ABC):
    """Labeled data with its splits, label names and official metrics.

    Features that only some tasks have are declared here with defaults, so that callers need not know the class.

    The constructor's arguments are the fields of the class's ``Settings`` model. A subclass with further settings
    extends the model of its base class, or has its own constructor with one argument per setting.

    Attributes:
        labels: the label names in order, empty for regression; every run stores them, so that labels of different
            runs can be matched by name.
        main_metric: name of the metric that chooses checkpoints and decides comparisons; for all metrics, higher is
            better.
        metric_names: names of the metrics that the user chose, the main one first; empty if the task offers no choice.
        max_length: maximum input length in tokens, including special tokens; None for the encoder's maximum.
        num_train: number of training examples, sampled by seed; None for all.
        dev_from_train: fraction of the training examples to hold out for choosing checkpoints and learning rates; None
            to choose on the ``dev`` split (the result says so if ``dev`` is also the reported split).
        folds: number of folds of the training split, each scored by a run trained on the others; None to score another
            split.
        notes: unusual input in the splits read so far, keyed by split.
        zero_shot: whether the task scores pretraining runs as they are, without a head or training.
        baseline_name: name of the ``baseline``; None: the label that it predicts for every example.
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
            problems = error.errors(include_url=False, include_input=False)
            misfits = [locate(problem, settings, self.Settings) for problem in problems]
            messages = dict.fromkeys(f"{join('task', *misfit.where)}: {misfit}" for misfit in misfits)
            raise ConfigError(list(messages)) from None
        self.name, self.max_length = self.settings.name, self.settings.max_length
        self.num_train, self.dev_from_train = self.settings.num_train, self.settings.dev_from_train

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """Describe the task's head.

        Raises:
            ConfigError: the task has no head to train.
        """

    def origin(self, split: str) -> str:
        """Return the file or hub split from which a split is read; the task's name if it has neither."""
        return self.name

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
        """Encode examples as token ids, including special tokens, in sequences of at most ``max_length`` tokens."""

    @abstractmethod
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[Any]:
        """Turn outputs, float32 (R, K), ordered as ``encoded.targets``, into one ``Answer`` per example."""

    @abstractmethod
    def score(self, examples: Sequence[Any], answers: Iterable[Any]) -> dict[str, float]:
        """Compute the official metrics, the main one first."""

    def reader(self) -> Reader:
        """Return the reader that builds examples from user input.

        Raises:
            ConfigError: the task accepts no user input.
        """
        raise ConfigError(f"task {self.name} scores only its own data and cannot process other input")

    def texts(self, example: Any) -> tuple[str, ...]:
        """Return the example's texts, to search for them in a corpus."""
        return tuple(example.content)

    def echo(self, example: Any) -> dict[str, Any]:
        """Return the text to show next to an example's answer, ready for JSON."""
        return {}

    def baseline(self, train: Sequence[Any], examples: Sequence[Any]) -> Sequence[Answer] | None:
        """Return the majority baseline: the best answers that ignore the input; None if there are none."""
        return None

    def scored_examples(self, examples: Sequence[Any], answers: Sequence[Any]) -> ScoredExamples | None:
        """Return answers and each example's contribution to the metrics; None if these cannot be stored per example."""
        return None

    def capitals(self, examples: Sequence[Any]) -> tuple[str, float, float] | None:
        """Return the tag that capital letters tell best, and how many words have them: with this tag, and with others.

        The two shares are between 0 and 1; the result is None if the task has no tags.
        """
        return None

    def calibration(self, encoded: EncodedExamples, outputs: np.ndarray) -> dict[str, Any] | None:
        """Measure how well probabilities match accuracy, for ``result.json``; None if answers have no probabilities."""
        return None

    def check_windows(self, longest: int) -> None:  # noqa: B027 (most tasks have nothing to refuse)
        """Check that the settings suit sequences of at most ``longest`` tokens, before any data is read.

        Raises:
            ConfigError: the settings do not suit them.
        """


class TaskGroup:
    """A name for several tasks on the command line, not a task itself: ``task=<group>`` runs a sweep over the tasks.

    Args:
        tasks: names of files in ``conf/task``.
        data_root: unused; commands pass it to every task.
    """

    def __init__(self, *, name: Name, tasks: Sequence[str], data_root: Folder | None = None) -> None:
        raise ConfigError(
            f"task={name} is a group of tasks ({', '.join(tasks)}); use it on the command line of probe, finetune or "
            "evaluate, which then run a sweep over these tasks, or choose one of them"
        )


class TaskWithoutHead(Task):
    """A task without a head; every method that needs a head raises the same error."""

    zero_shot = True

    @property
    def head(self) -> NoReturn:
        """Raise a ConfigError, because the task has no head."""
        raise self._no_head()

    def encode(self, *_: object, **__: object) -> NoReturn:
        """Raise the same error as ``head``: there is no head to encode for."""
        raise self._no_head()

    def answers(self, *_: object) -> NoReturn:
        """Raise the same error as ``head``: there are no outputs."""
        raise self._no_head()

    def _no_head(self) -> ConfigError:
        return ConfigError(
            f"task={self.name} is scored without training and has no labels to train on: use lmtransfer evaluate "
            f"run=runs/pretrain/<name> task={self.name}"
        )

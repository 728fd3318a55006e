"""What every downstream task promises, and the words in which it is asked and answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError
from lmtransfer.kept_predictions.scored import ScoredExamples
from lmtransfer.tasks.asking import Reader
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec
from lmtransfer.tokenizers.base import Tokenizer


@runtime_checkable
class Example(Protocol):
    """Something to be answered.

    Attributes:
        id: names it for people and files (``train:17``: the 17th row of the split, from 0, or the id it came with).
        has_gold: whether its gold answer is known (in published test sets it is hidden).
        stratum: which kind of example it is, for subsets that keep the proportions; 0 where all are of one kind.
        group: what it shares with others, such as a passage: examples of one group are never on both sides when a part
            is held out to choose by. Those of the group "" share with several groups, and are always trained on.
        content: the texts that are asked about; examples of the same content are the same in every run.
    """

    @property
    def id(self) -> str: ...  # noqa: D102

    @property
    def has_gold(self) -> bool: ...  # noqa: D102

    @property
    def stratum(self) -> int: ...  # noqa: D102

    @property
    def group(self) -> str: ...  # noqa: D102

    @property
    def content(self) -> tuple[str, ...]: ...  # noqa: D102


@runtime_checkable
class Answer(Protocol):
    """What a run says about an example."""

    def plain(self) -> dict[str, Any]:
        """As JSON: what ``predict`` writes."""
        ...


class Task(ABC):
    """Labelled data with its splits, its label names and its official metrics.

    What not every task has is declared here with what holds for the others, so that nobody need ask which task it is.

    Attributes:
        name: the task's name in tables and ``result.json``.
        labels: the label names in order, none for regression; they travel with every run, and other runs are matched
            to them by name.
        main_metric: name of the metric that decides; higher is better in all of them.
        max_length: longest input in tokens, specials included; None: what the encoder can read.
        num_train: size of the seeded subset of the training split; None: all of it.
        dev_from_train: fraction of the training examples held out to choose checkpoints and learning rates by;
            None: the ``dev`` split chooses (and where it is also what is reported, the result says so).
        splits: names of the splits there are.
        notes: odd things met in the splits that were read, by split.
        zero_shot: it is asked of pretraining runs as they are: there is no head, and nothing to train.
        no_answer: "none at all" is an answer.
        baseline_name: what ``baseline`` is called; None: by the label that it gives to every example.
    """

    zero_shot: ClassVar[bool] = False
    baseline_name: ClassVar[str | None] = None

    name: str
    main_metric: str
    splits: tuple[str, ...]
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    num_train: int | None = None
    dev_from_train: float | None = None
    notes: Mapping[str, Notes] = MappingProxyType({})
    no_answer: bool = False

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """What answers it.

        Raises:
            ConfigError: nothing can be trained on it.
        """

    @abstractmethod
    def examples(self, split: str) -> Sequence[Any]:
        """All examples of a split, in the order of the source.

        Raises:
            DataError: the split is missing or malformed, with ``file:line`` where there is one.
        """

    @abstractmethod
    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Examples as token ids with specials, in sequences none longer than ``max_length`` tokens.

        Args:
            examples: what to encode.
            tokenizer: the run's tokenizer.
            max_length: longest sequence in tokens, specials included.
            num_segments: how many segment ids the encoder tells apart.
        """

    @abstractmethod
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[Any]:
        """What the head's outputs say, one ``Answer`` an example, in the order of ``encoded.examples``.

        Args:
            encoded: what was read.
            outputs: what the head gave, float32, shape (R, K): row r answers row r of ``encoded.targets``.
        """

    @abstractmethod
    def score(self, examples: Sequence[Any], answers: Iterable[Any]) -> dict[str, float]:
        """The official metrics, the main one first.

        Args:
            examples: with gold answers.
            answers: one an example, in the same order.
        """

    def reader(self) -> Reader:
        """What makes examples of what users ask.

        Raises:
            ConfigError: users do not ask it anything.
        """
        raise ConfigError(f"task {self.name} is scored on its own data, and answers nothing else")

    def echo(self, example: Any) -> dict[str, Any]:
        """What stands beside the answer to an example, so that people can read it; as JSON."""
        return {}

    def baseline(self, train: Sequence[Any], examples: Sequence[Any]) -> Sequence[Answer] | None:
        """The best answers that need no input, such as the majority label; None where there are no such answers.

        Args:
            train: the training examples.
            examples: what to answer.
        """
        return None

    def scored_examples(self, examples: Sequence[Any], answers: Sequence[Any]) -> ScoredExamples | None:
        """What the answers say, and what each example is worth in the metrics of ``score``, to be kept and compared.

        Args:
            examples: with gold answers.
            answers: one an example, in the same order.

        Returns:
            None where answers cannot be kept example by example.
        """
        return None

    def check_windows(self, longest: int) -> None:  # noqa: B027 (most tasks have nothing to refuse)
        """Refuse settings that do not fit sequences of so many tokens, before anything is read.

        Not part of encoding: older runs are read as they were trained.

        Raises:
            ConfigError: they do not.
        """

"""What every downstream task promises, and the words in which it is asked and answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from lmtransfer.kept_predictions.scored import ScoredExamples
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tokenizers.base import Tokenizer

HeadKind = Literal["classification", "regression", "tagging", "span"]


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head must give.

    Attributes:
        kind: one of C labels a sequence (classification) or a word (tagging), one number a sequence (regression), or
            the first and last token of an answer, and one of C other kinds of answer (span).
        num_labels: C; 0 for regression, and for spans where there is no other kind of answer.
        max_answer_tokens: longest legal answer (span).
    """

    kind: HeadKind
    num_labels: int = 0
    max_answer_tokens: int | None = None


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


@runtime_checkable
class Task(Protocol):
    """Labelled data with its splits, its label names and its official metrics.

    Attributes:
        name: the task's name in tables and ``result.json``.
        head: what answers it.
        labels: the label names in order, none for regression; they travel with every run, and other runs are matched
            to them by name.
        main_metric: name of the metric that decides; higher is better in all of them.
        max_length: longest input in tokens, specials included; None: what the encoder can read.
        num_train: size of the seeded subset of the training split; None: all of it.
        dev_from_train: fraction of the training examples held out to choose checkpoints and learning rates by;
            None: the ``dev`` split chooses (and where it is also what is reported, the result says so).
        splits: names of the splits there are.
    """

    name: str
    main_metric: str
    max_length: int | None
    num_train: int | None
    dev_from_train: float | None

    @property
    def labels(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def head(self) -> HeadSpec: ...  # noqa: D102

    @property
    def splits(self) -> tuple[str, ...]: ...  # noqa: D102

    def examples(self, split: str) -> Sequence[Example]:
        """All examples of a split, in the order of the source.

        Raises:
            DataError: the split is missing or malformed, with ``file:line`` where there is one.
        """
        ...

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
        ...

    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[Answer]:
        """What the head's outputs say, one answer an example, in the order of ``encoded.examples``.

        Args:
            encoded: what was read.
            outputs: what the head gave, float32, shape (R, K): row r answers ``encoded.targets`` row r.
        """
        ...

    def score(self, examples: Sequence[Any], answers: Iterable[Any]) -> dict[str, float]:
        """The official metrics, the main one first.

        Args:
            examples: with gold answers.
            answers: one an example, in the same order.
        """
        ...

    def baseline(self, train: Sequence[Any], examples: Sequence[Any]) -> Sequence[Answer] | None:
        """The best answers that need no input, such as the majority label; None where there are no such answers.

        Args:
            train: the training examples.
            examples: what to answer.
        """
        ...


@runtime_checkable
class KeepsAnswers(Protocol):
    """A task whose answers can be kept example by example, and compared; a task need not be one."""

    def scored_examples(self, examples: Sequence[Any], answers: Sequence[Any]) -> ScoredExamples:
        """What the answers say, and what each example is worth in the metrics of ``Task.score``.

        Args:
            examples: with gold answers.
            answers: one an example, in the same order.
        """
        ...

"""What every downstream task promises, and the examples that it deals in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from lmtransfer.metrics.base import Metric
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tokenizers.base import Tokenizer

#: What a head must give: one logit a label and example, one number an example, ...
HeadKind = Literal["classification"]


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text or pair of texts.

    Attributes:
        id: names it for people and files (``train:17``: the 17th row of the split, from 0, or the id it came with).
        text: the text, or the first of a pair.
        text_pair: the second of a pair, or None.
        label: index into the task's ``labels``; None where the gold label is hidden (published test sets).
    """

    id: str
    text: str
    text_pair: str | None = None
    label: int | None = None


@runtime_checkable
class Task(Protocol):
    """Labelled data with its splits, its label names and its official metric.

    Attributes:
        name: the task's name in tables and ``result.json``.
        head: which kind of head answers it.
        labels: the label names in order; they travel with every run, and other runs are matched to them by name.
        main_metric: name of the metric that decides.
        max_length: longest input in tokens, specials included; None: what the encoder can read.
        num_train: size of the seeded subset of the training split; None: all of it.
        dev_from_train: fraction of the training examples held out to choose checkpoints and learning rates by;
            None: the ``dev`` split chooses (and where it is also what is reported, the result says so).
        splits: names of the splits there are.
    """

    name: str
    head: HeadKind
    labels: tuple[str, ...]
    main_metric: str
    max_length: int | None
    num_train: int | None
    dev_from_train: float | None
    splits: tuple[str, ...]

    def examples(self, split: str) -> list[Example]:
        """All examples of a split, in the order of the source.

        Raises:
            DataError: the split is missing or malformed, with ``file:line`` where there is one.
        """
        ...

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Examples as token ids with specials, none longer than ``max_length`` tokens.

        Args:
            examples: what to encode.
            tokenizer: the run's tokenizer.
            max_length: longest input in tokens, specials included.
            num_segments: how many segment ids the encoder tells apart.
        """
        ...

    def metrics(self) -> list[Metric]:
        """Fresh metrics, the main one first."""
        ...

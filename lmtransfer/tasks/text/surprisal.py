"""The surprisal of each word of a text, without training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Folder
from lmtransfer.data.files import find_file, read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.base import TaskWithoutHead
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import TaskSettings

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text whose words are scored, each after the words before it.

    Attributes:
        id: file and line.
        text: the line.
    """

    id: str
    text: str

    @property
    def words(self) -> list[tuple[int, int]]:
        """The characters [start, end) of each word; white space separates words."""
        return [match.span() for match in _WORD.finditer(self.text)]

    @property
    def has_gold(self) -> bool:
        """True: the words themselves are the gold answers."""
        return True

    @property
    def content(self) -> tuple[str, ...]:
        """The text."""
        return (self.text,)

    @property
    def class_index(self) -> int:
        """0, because there is a single class."""
        return 0

    @property
    def group(self) -> str:
        """The text itself."""
        return self.id


class Surprisal(TaskWithoutHead):
    """The surprisal of each word in bits: -log2 of its probability in context (Hale 2001; Levy 2008).

    For a language model the context is what comes before the word in its line; for a masked model it is the rest of the
    line, and the value is a pseudo-surprisal. The surprisal of a word is the sum over its tokens. Each line is a text
    of its own. ``words.tsv`` in the run directory has a row for each word.
    """

    main_metric = "log2_probability"
    splits = ("test",)

    class Settings(TaskSettings):
        """The settings of surprisals; there is no training.

        Attributes:
            file: text file, one text per line, below ``data_root`` or the working directory.
            hidden: for a masked model, the positions that are masked with a token: ``token``, only that token, or
                ``rest_of_word``, also the tokens after it in its word.
            data_root: folder that holds the data folders.
        """

        file: str
        hidden: Literal["token", "rest_of_word"] = "token"
        data_root: Folder | None = None
        max_length: None = None
        num_train: None = None
        dev_from_train: None = None

    settings: Settings

    @override
    def examples(self, split: str) -> list[Passage]:
        """Read the lines that are not blank."""
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has the splits {', '.join(self.splits)}")
        roots = [*([] if self.settings.data_root is None else [Path(self.settings.data_root)]), Path.cwd()]
        paths = [root / self.settings.file for root in roots]
        path = next((path for path in map(find_file, paths) if path is not None), None)
        if path is None:
            raise DataError(f"task.file={self.settings.file}: there is no file {' or '.join(map(str, paths))}")
        passages = [Passage(f"{path.name}:{number}", line) for number, line in read_lines(path) if line.strip()]
        if not passages:
            raise DataError(f"task.file={self.settings.file}: the file has no text")
        return passages

    def score(self, examples: Sequence[Passage], answers: Iterable[np.ndarray]) -> dict[str, float]:
        """Compute means over words.

        Args:
            answers: surprisal of each word of each text, in bits.
        """
        mean = float(np.concatenate(list(answers)).mean())
        return {"log2_probability": -mean, "surprisal": mean}

    def scored_examples(self, examples: Sequence[Passage], answers: Sequence[np.ndarray]) -> ScoredExamples:
        """Return the log2-probability of each text, and its number of words."""
        totals = np.array([-surprisals.sum() for surprisals in answers], dtype=np.float64)
        counts = np.array([len(surprisals) for surprisals in answers], dtype=np.float64)
        ratios = {self.main_metric: Ratio(totals, counts)}
        return scored_examples(examples, kind="pairs", ratios=ratios)

"""Minimal pairs: which of two sentences a language model prefers, without any training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Folder
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.blimp import MinimalPair, paradigm_files, read_hub_pairs, read_pairs
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import TaskSettings
from lmtransfer.tasks.without_head import TaskWithoutHead

#: Accuracy of random answers.
CHANCE = 0.5


class MinimalPairs(TaskWithoutHead):
    """Sentence pairs that score a pretraining run as it is, without a head, training or labels.

    A pair is correct if the good sentence has the higher log-probability. The log-probability is not divided by the
    length, and a tie counts as wrong (Warstadt et al. 2020, section 4, "simple LM method", and their
    result_processing). The accuracy is the mean over paradigms; the accuracy of a phenomenon is the mean over its
    paradigms.

    Raises:
        ConfigError: ``pairs_each`` is less than 1, or ``paradigms`` is empty.
    """

    main_metric = "accuracy"
    splits = ("test",)

    class Settings(TaskSettings):
        """The settings of minimal pairs; there is no training.

        Attributes:
            folder: folder with one file per paradigm, below ``data_root`` or the working directory.
            hub: ``datasets`` name if there are no files; null: files only.
            paradigms: names of the paradigms to score; null: all paradigms in the source.
            pairs_each: number of pairs per paradigm, from the first; null: all pairs.
            hidden: for a masked model, the positions that are masked with a token: ``token``, only that token (Salazar
                et al. 2020), or ``rest_of_word``, also the tokens after it in its word (Kauf and Ivanova 2023).
            data_root: folder that holds the data folders.
        """

        folder: str
        hub: str | None = None
        paradigms: Sequence[str] | None = None
        pairs_each: int | None = None
        hidden: Literal["token", "rest_of_word"] = "token"
        data_root: Folder | None = None
        max_length: None = None
        num_train: None = None
        dev_from_train: None = None

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        asked = self.settings
        if asked.pairs_each is not None and asked.pairs_each < 1:
            raise ConfigError(f"task.pairs_each={asked.pairs_each} is not allowed: use 1 or more, or null for all")
        if asked.paradigms is not None and not asked.paradigms:
            raise ConfigError("task.paradigms=[] is not allowed: list paradigms, or set null for all")
        roots = [*([] if asked.data_root is None else [Path(asked.data_root)]), Path.cwd()]
        self._folders = [root / asked.folder for root in roots]

    @override
    def examples(self, split: str) -> list[MinimalPair]:
        """Read the pairs, paradigm by paradigm."""
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has the splits {', '.join(self.splits)}")
        candidates = map(paradigm_files, self._folders)
        files = next((files for files in candidates if files), None)
        if files is None and self.settings.hub is None:
            raise DataError(
                f"task {self.name}: no .jsonl files in {self._places()}. Set data_root= or LMTRANSFER_DATA to the "
                f"folder that contains {self.settings.folder}, or task.folder= to the folder itself"
            )
        most = self.settings.pairs_each
        if files is None:
            assert self.settings.hub is not None
            everything = read_hub_pairs(self.settings.hub, self.settings.paradigms, places=f"in {self._places()}")
            groups = groupby(everything, key=lambda pair: pair.paradigm)
            pairs = [pair for _, group in groups for pair in islice(group, most)]
        else:
            pairs = [pair for path in self._chosen(files) for pair in islice(read_pairs(path), most)]
        if not pairs:
            raise DataError(f"task {self.name}: the files in {self._places()} contain no pairs")
        _check_unique(pairs)
        return pairs

    def score(self, examples: Sequence[MinimalPair], answers: Iterable[tuple[float, float]]) -> dict[str, float]:
        """Compute accuracies overall, per phenomenon and per paradigm.

        Args:
            answers: log-probabilities of the good and of the bad sentence of each pair.
        """
        right: dict[str, list[bool]] = {}
        phenomenon_of: dict[str, str] = {}
        for pair, (good, bad) in zip(examples, answers, strict=True):
            right.setdefault(pair.paradigm, []).append(bool(good > bad))
            phenomenon_of[pair.paradigm] = pair.phenomenon
        accuracy = {paradigm: float(np.mean(answers)) for paradigm, answers in right.items()}
        by_phenomenon: dict[str, list[float]] = {}
        for paradigm, phenomenon in phenomenon_of.items():
            by_phenomenon.setdefault(phenomenon, []).append(accuracy[paradigm])
        return {
            "accuracy": float(np.mean(list(accuracy.values()))),
            **{f"phenomenon/{name}/accuracy": float(np.mean(by_phenomenon[name])) for name in sorted(by_phenomenon)},
            **{f"paradigm/{name}/accuracy": value for name, value in accuracy.items()},
        }

    def scored_examples(
        self, examples: Sequence[MinimalPair], answers: Sequence[tuple[float, float]]
    ) -> ScoredExamples:
        """Return which pairs are correct, each weighted by the size of its paradigm, as in ``score``."""
        right = np.array([good > bad for good, bad in answers], dtype=np.float64)
        _, paradigms, sizes = np.unique([pair.paradigm for pair in examples], return_inverse=True, return_counts=True)
        phenomena, classes = np.unique([pair.phenomenon for pair in examples], return_inverse=True)
        counts = 1 / sizes[paradigms]
        return scored_examples(
            examples,
            kind="pairs",
            ratios={"accuracy": Ratio(right * counts, counts)},
            classes=classes,
            class_names=phenomena.tolist(),
        )

    def _chosen(self, files: dict[str, Path]) -> Iterator[Path]:
        missing = [name for name in self.settings.paradigms or () if name not in files]
        if missing:
            raise DataError(
                f"task.paradigms: no file of {', '.join(missing)} in {self._places()}; there are files of "
                f"{', '.join(files)}"
            )
        yield from (files[name] for name in self.settings.paradigms or files)

    def _places(self) -> str:
        return " or ".join(map(str, self._folders))


def _check_unique(pairs: Sequence[MinimalPair]) -> None:
    seen: set[str] = set()
    for pair in pairs:
        if pair.id in seen:
            raise DataError(
                f"pair {pair.id} occurs twice: two files have the same UID, {pair.paradigm}; remove one of them"
            )
        seen.add(pair.id)

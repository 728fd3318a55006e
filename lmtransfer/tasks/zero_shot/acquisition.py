"""Age of acquisition: whether a model learns words in the same order as children."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import curve_fit
from typing_extensions import TypedDict, override

from lmtransfer.config.types import DataFolder
from lmtransfer.errors import DataError
from lmtransfer.system.safe_files import read_json
from lmtransfer.tasks.metrics.scored_examples import Ratio, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Item, ModelFacts

#: Name of a file in the run directory: one JSON line for each word in each context at each revision.
ACQUISITION_FILE = "acquisition.jsonl"
_AGES = range(16, 31)  # months
_FEWEST_POINTS = 3
_FEWEST_WORDS = 3
_CHALLENGE_P = 0.1  # above this p value the BabyLM challenge counts the correlation as 0


@dataclass(frozen=True, slots=True)
class WordInContext(Item):
    """A word at the end of a context; the id is the word with the index of the context, from 0."""

    word: str
    context_number: int
    context: str

    @property
    def content(self) -> tuple[str, ...]:
        """Context and word."""
        return self.context, self.word


class AgeOfAcquisition(CompletionTask):
    """The correlation, over words, between the ages at which children and the model acquire them.

    Children: the age in months at which half of them say the word, on a logistic curve fitted to the share of children
    at each age (MacArthur-Bates inventories). Model: the logarithm of the number of words read when the mean surprisal
    of the word is halfway between its minimum and that of a uniform distribution, on a logistic curve fitted to the
    revisions (Chang and Bergen 2022, https://doi.org/10.1162/tacl_a_00444). Words whose curves do not cross these
    levels are left out. ``challenge_score`` is the same correlation, or 0 if its p value is above 0.1, as in BabyLM.
    """

    main_metric = "correlation"
    needs_revisions = True

    class Settings(CompletionTask.Settings):
        """The settings of age of acquisition; there is no training.

        Attributes:
            folder: folder with ``cdi_childes.json`` (contexts of each word) and ``cdi_human.csv`` (share of children
                who say each word, by age), below ``data_root`` or the working directory; of several names, the first
                that contains the files is used.
        """

        folder: DataFolder | Sequence[DataFolder]

    settings: Settings

    @override
    def examples(self, split: str) -> list[WordInContext]:
        self.check_split(split)
        contexts = read_json(self._file("cdi_childes.json"), dict[str, list[_Context]], error=DataError)
        return [
            WordInContext(f"{word}:{number}", word.strip(), number, place["context"].strip())
            for word, places in contexts.items()
            if len(word) > 1
            for number, place in enumerate(places)
        ]

    @override
    def completions(self, item: WordInContext) -> list[Completion]:
        return [Completion(f"{item.context} {item.word}", len(item.context) + 1)]

    @override
    def describe(self, method: str) -> str:
        return f"surprisal at each revision, {method}"

    @override
    def evaluate(
        self, items: Sequence[WordInContext], scores: Sequence[CompletionScores], model: ModelFacts
    ) -> Findings:
        num_revisions, words = len(model.words), np.array([item.word for item in items])
        surprisals = np.array([-part.log_probabilities[0] for part in scores]).reshape(num_revisions, len(items))
        num_tokens = np.array([len(part.ids[0]) for part in scores[: len(items)]])
        ages = self._children()
        pairs = {}
        for word in dict.fromkeys(words.tolist()):
            rows = words == word
            uniform = float(num_tokens[rows].mean()) * float(np.log(model.vocab_size))
            learned = point_of_learning(np.array(model.words), surprisals[:, rows].mean(axis=1), uniform)
            if learned is not None and ages.get(word) is not None:
                pairs[word] = (learned, ages[word])
        found = stats.pearsonr(*zip(*pairs.values(), strict=True)) if len(pairs) >= _FEWEST_WORDS else None
        correlation = 0.0 if found is None else float(np.nan_to_num(found.statistic))
        is_counted = found is not None and found.pvalue <= _CHALLENGE_P
        lines = [
            {
                "words_read": read,
                "word": item.word,
                "context_id": item.context_number,
                "context": item.context,
                "surprisal": value,
            }
            for read, row in zip(model.words, surprisals.tolist(), strict=True)
            for item, value in zip(items, row, strict=True)
        ]
        return Findings(
            metrics={"correlation": correlation, "challenge_score": correlation if is_counted else 0.0},
            examples=scored_examples(
                items, kind="pairs", ratios={"surprisal": Ratio(surprisals[-1], np.ones(len(items)))}
            ),
            num_scored=len(items),
            chance=0.0,
            more={"num_words": len(pairs), "p_value": None if found is None else float(found.pvalue)},
            notes=[
                f"{len(pairs)} of {len(set(words.tolist()))} words have an age for both children and model"
                + ("" if found is None else f"; p = {found.pvalue:.3f}")
            ],
            files={ACQUISITION_FILE: "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)},
        )

    def _children(self) -> dict[str, float | None]:
        """Return the age in months at which half of the children say each word; None if they never do."""
        path = self._file("cdi_human.csv")
        try:
            table = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: not a comma-separated table ({error})") from None
        columns = [str(age) for age in _AGES if str(age) in table]
        if "word" not in table or not columns:
            raise DataError(f"{path}: the file must have the column word and the columns 16 to 30 (ages in months)")
        ages = np.array(columns, dtype=np.float64)
        shares = table[columns].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
        first_row = {str(word): row for row, word in reversed(list(enumerate(table["word"])))}
        return {word: age_of_half(ages, shares[row]) for word, row in first_row.items()}

    def _file(self, name: str) -> Path:
        paths = [folder / name for folder in self.paths(self.settings.folder)]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise DataError(f"task {self.name}: there is no file {' or '.join(map(str, paths))}")
        return path


class _Context(TypedDict):
    context: str


def _logistic(x: np.ndarray, height: float, slope: float, middle: float, base: float) -> np.ndarray:
    return height / (1 + np.exp(-slope * (x - middle))) + base


def _crossing(x: np.ndarray, y: np.ndarray, level: float, start: Sequence[float], bounds: Any) -> float | None:
    """Return where a logistic curve fitted to the points crosses a level; None if it does not within their range."""
    try:
        fit, _ = curve_fit(_logistic, x, y, p0=start, bounds=bounds, maxfev=20_000)
    except (RuntimeError, ValueError):
        return None
    height, slope, middle, base = fit
    if min(height, slope) <= 1e-6 or not base < level < base + height:
        return None
    place = float(middle - np.log(height / (level - base) - 1) / slope)
    return place if x[0] <= place <= x[-1] else None


def age_of_half(ages: np.ndarray, shares: np.ndarray) -> float | None:
    """Return the age at which half of the children say a word; None if there is no such age.

    Args:
        ages: ages in months, ascending.
        shares: share of children who say the word at each age; NaN where it is unknown.
    """
    rows = np.isfinite(shares)
    if rows.sum() < _FEWEST_POINTS:
        return None
    x, y = ages[rows], shares[rows]
    bounds = ([0, 0, x[0], -0.5], [2.0, 1.0, x[-1], 0.5])
    return _crossing(x, y, 0.5, [1.0, 0.1, float(x.mean()), 0.0], bounds)


def point_of_learning(words_read: np.ndarray, surprisals: np.ndarray, uniform: float) -> float | None:
    """Return log10(1 + words read) at which a word is half learned; None if there is no such point.

    Args:
        words_read: number of words read at each revision, ascending.
        surprisals: mean surprisal of the word at each revision, in nats.
        uniform: surprisal under a uniform distribution over tokens, in nats.
    """
    if len(words_read) < _FEWEST_POINTS:
        return None
    x, y = np.log10(words_read + 1.0), -surprisals
    span, level = float(np.ptp(y)), -(uniform + float(surprisals.min())) / 2
    lower = [0.0, 0.0, x[0] - 1, y.min() - 2 * span - 1]
    upper = [10 * span + 1, 100.0, x[-1] + 1, y.max() + 1]
    return _crossing(x, y, level, [span, 1.0, float(x.mean()), float(y.min())], (lower, upper))

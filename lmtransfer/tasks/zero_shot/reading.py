"""Reading times: how much of their variance a model's surprisals explain beyond word length and frequency."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import DataFile
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, parse_number, read_rows
from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.scored_examples import Ratio, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Item, ModelFacts

_EYE_TRACKING = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
_SELF_PACED = "self_paced_reading_time"
_COVARIATES = ("Subtlex_log10", "length", "context_length")
_TEXTS = ("item", "word", "prev_item", "prev_word")
_NUMBERS = (*_COVARIATES, "prev_length", *_EYE_TRACKING, _SELF_PACED)

#: Share of the variance that counts as rounding of a perfect fit.
_EXACT = 1e-12

#: Name of a file in the run directory: one JSON line for each word.
READING_FILE = "reading.jsonl"


@dataclass(frozen=True, slots=True)
class ReadWord(Item):
    """A word that people read after a context; its id is its row, from 0.

    Attributes:
        previous: the context of the previous word, and that word; None for the first word of a text.
        numbers: the values of the columns ``_NUMBERS``; NaN where the file has no value.
    """

    context: str
    word: str
    previous: tuple[str, str] | None
    numbers: tuple[float, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """Context and word."""
        return self.context, self.word


class Reading(CompletionTask):
    """The share of the variance of reading times that surprisal explains beyond word length and frequency.

    A word's surprisal is the surprisal of its tokens after the context; for a masked model, three masks replace the
    predicted token and all text after it (Samuel 2024, https://arxiv.org/abs/2406.04823). The baseline is a linear
    regression on frequency, length and context length with all pairwise products; the value is (R2 - R2 of the
    baseline) / (1 - R2 of the baseline). ``eye_tracking`` is the mean over four measures. ``self_paced`` has two more
    covariates: the length and the surprisal of the previous word. Data: de Varda et al. 2023
    (https://doi.org/10.3758/s13428-023-02261-8), in BabyLM's format.
    """

    main_metric = "eye_tracking"
    hidden = "following"

    class Settings(CompletionTask.Settings):
        """The settings of reading times; there is no training.

        Attributes:
            file: table with one row per word, below ``data_root`` or the working directory; of several names, the first
                that exists is used.
        """

        file: DataFile | Sequence[DataFile]

    settings: Settings

    @override
    def examples(self, split: str) -> list[ReadWord]:
        self.check_split(split)
        path = self.find_file(self.settings.file)
        words = _read(path, self.notes[split])
        _check_numbers(words, path)
        return words

    @override
    def completions(self, item: ReadWord) -> list[Completion]:
        return [_completion(*place) for place in ((item.context, item.word), item.previous) if place is not None]

    @override
    def describe(self, method: str) -> str:
        return f"surprisal, {method}"

    @override
    def evaluate(self, items: Sequence[ReadWord], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        values = [-part.log_probabilities for part in scores]
        surprisal = np.array([value[0] for value in values])
        previous = np.array([value[1] if len(value) > 1 else np.nan for value in values])
        columns = dict(zip(_NUMBERS, np.array([item.numbers for item in items]).T, strict=True))
        covariates = [columns[name] for name in _COVARIATES]
        eye_tracking = [variance_explained(columns[name], covariates, surprisal) for name in _EYE_TRACKING]
        spillover = [*covariates, columns["prev_length"], previous]
        metrics = {
            "eye_tracking": float(np.mean(eye_tracking)),
            "self_paced": variance_explained(columns[_SELF_PACED], spillover, surprisal),
        }
        rows = [
            {
                "id": int(item.id),
                "word": item.word,
                "surprisal": value[0],
                "previous": value[1] if len(value) > 1 else None,
            }
            for item, value in zip(items, values, strict=True)
        ]
        return Findings(
            metrics=metrics,
            examples=scored_examples(
                items, kind="pairs", ratios={"surprisal": Ratio(surprisal, np.ones_like(surprisal))}
            ),
            num_scored=len(items),
            shown={"self_paced": "self-paced reading"},
            notes=["share of the variance that surprisal explains beyond length and frequency"],
            files={READING_FILE: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)},
        )


def _read(path: Path, notes: Notes) -> list[ReadWord]:
    columns = [ColumnSpec((name,), "", advice="Choose another file") for name in (*_TEXTS, *_NUMBERS)]
    bad_rows = BadRows("refuse", notes, "or remove it")
    words: list[ReadWord] = []
    for row in read_rows(path, columns, layout=TableLayout(), bad_rows=bad_rows):
        context, word, before, word_before = (text or "" for text in row.values[: len(_TEXTS)])
        if not word.strip():
            bad_rows.report("rows without a word", row.where, "the word is missing")
        numbers = []
        for name, text in zip(_NUMBERS, row.values[len(_TEXTS) :], strict=True):
            try:
                numbers.append(parse_number(text))
            except ValueError as problem:
                bad_rows.report("rows without numbers", row.where, f"{name}: {problem}")
        previous = (before, word_before) if before and word_before else None
        words.append(ReadWord(str(row.number), context, word, previous, tuple(numbers)))
    return words


def _check_numbers(words: Sequence[ReadWord], path: Path) -> None:
    """Check, before texts are scored, that the regressions have enough rows and that the times differ."""
    numbers = dict(zip(_NUMBERS, np.array([word.numbers for word in words]).reshape(-1, len(_NUMBERS)).T, strict=True))
    has_previous = np.array([word.previous is not None for word in words], dtype=bool)
    for name in (*_EYE_TRACKING, _SELF_PACED):
        names = [name, *_COVARIATES, *(["prev_length"] if name == _SELF_PACED else [])]
        rows = np.isfinite(np.array([numbers[column] for column in names])).all(axis=0)
        if name == _SELF_PACED:
            rows &= has_previous
        num_covariates = len(names) - 1 + (name == _SELF_PACED)
        least = 3 + num_covariates + num_covariates * (num_covariates - 1) // 2  # one more than the coefficients
        if rows.sum() < least:
            raise DataError(
                f"{path}: the regression for {name} needs at least {least} rows with numbers in {', '.join(names)}"
                f"{' and a previous word' * (name == _SELF_PACED)}, but the file has {int(rows.sum())} such rows"
            )
        if np.ptp(numbers[name][rows]) == 0:
            raise DataError(f"{path}: all values in the column {name} are equal, so there is no variance to explain")


def _completion(context: str, word: str) -> Completion:
    space = "" if not context or context[-1].isspace() or word[:1].isspace() else " "
    return Completion(f"{context}{space}{word}", len(context))


def variance_explained(times: np.ndarray, covariates: Sequence[np.ndarray], surprisal: np.ndarray) -> float:
    """Return how much of the variance that the baseline leaves unexplained is explained by surprisal, as a share.

    Args:
        times: reading times, shape (N,); rows with a NaN in any column are left out.
        covariates: columns of the baseline, a linear regression that also has their pairwise products and a constant.

    Returns:
        0 if the baseline explains all variance.
    """
    rows = np.isfinite(np.column_stack([times, *covariates, surprisal])).all(axis=1)
    columns = [column[rows] for column in (*covariates, surprisal)]
    columns = [(column - column.mean()) / (column.std() or 1.0) for column in columns]
    products = [left * right for left, right in itertools.combinations(columns[:-1], 2)]
    baseline = np.column_stack([np.ones(rows.sum()), *columns[:-1], *products])
    left, right = (_residual(times[rows], design) for design in (baseline, np.column_stack([baseline, columns[-1]])))
    total = float(((times[rows] - times[rows].mean()) ** 2).sum())
    return 1 - right / left if left > _EXACT * total else 0.0


def _residual(target: np.ndarray, design: np.ndarray) -> float:
    """Return the sum of the squared residuals of a least-squares fit."""
    fit = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(((target - design @ fit) ** 2).sum())

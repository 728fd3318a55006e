"""Reading times: how much of their variance a model's surprisals explain beyond word length and frequency."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from typing_extensions import override

from lmtransfer.config.types import DataFile
from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.scored_examples import Ratio, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Item, ModelFacts

_EYE_TRACKING = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
_SELF_PACED = "self_paced_reading_time"
_COVARIATES = ("Subtlex_log10", "length", "context_length")
_TEXTS = ("item", "word", "prev_item", "prev_word")
_NUMBERS = (*_COVARIATES, "prev_length", *_EYE_TRACKING, _SELF_PACED)

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
        return _read(self.find_file(self.settings.file))

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


def _read(path: Path) -> list[ReadWord]:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a comma-separated table ({error})") from None
    missing = [name for name in (*_TEXTS, *_NUMBERS) if name not in table]
    if missing:
        raise DataError(f"{path}: no column named {' or '.join(missing)}; the columns are {', '.join(table)}")
    numbers = table[list(_NUMBERS)].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    texts = table[list(_TEXTS)].to_numpy()
    return [
        ReadWord(str(row), context, word, (before, word_before) if before and word_before else None, tuple(values))
        for row, ((context, word, before, word_before), values) in enumerate(zip(texts, numbers, strict=True))
    ]


def _completion(context: str, word: str) -> Completion:
    space = "" if not context or context[-1].isspace() or word[:1].isspace() else " "
    return Completion(f"{context}{space}{word}", len(context))


def variance_explained(times: np.ndarray, covariates: Sequence[np.ndarray], surprisal: np.ndarray) -> float:
    """Return how much of the variance that the baseline leaves unexplained is explained by surprisal, as a share.

    Args:
        times: reading times, shape (N,); rows with a NaN in any column are left out.
        covariates: columns of the baseline, a linear regression that also has their pairwise products and a constant.
    """
    rows = np.isfinite(np.column_stack([times, *covariates, surprisal])).all(axis=1)
    columns = [column[rows] for column in (*covariates, surprisal)]
    columns = [(column - column.mean()) / (column.std() or 1.0) for column in columns]
    products = [left * right for left, right in itertools.combinations(columns[:-1], 2)]
    baseline = np.column_stack([np.ones(rows.sum()), *columns[:-1], *products])
    left, right = (_residual(times[rows], design) for design in (baseline, np.column_stack([baseline, columns[-1]])))
    return float(1 - right / left)


def _residual(target: np.ndarray, design: np.ndarray) -> float:
    """Return the sum of the squared residuals of a least-squares fit."""
    fit = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(((target - design @ fit) ** 2).sum())

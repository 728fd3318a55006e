"""The accuracy of BLiMP, EWoK, COMPS and other sets: which of several texts a model prefers, without training."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, DataFolder, HubName
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.blimp import (
    FORMATS,
    Choice,
    ChoiceFormat,
    FormatName,
    choice_files,
    read_choices,
    read_hub_choices,
)
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, ModelFacts

#: The file in the run directory with a JSON line for each item.
CHOICES_FILE = "choices.jsonl"


class CompletionChoice(CompletionTask):
    """Choices between completions: the run chooses the alternative whose completion has the highest log-probability.

    The accuracy is the mean over subsets; the accuracy of a category is the mean over its subsets. If alternatives tie
    for the highest score (for example because their tokens are identical) and the correct one is among them, the item
    counts as one divided by the number of tied alternatives, so that a model that cannot distinguish them scores at
    chance level. With ``ties=wrong``, a tie counts as wrong (BLiMP: Warstadt et al. 2020, section 4, and their
    result_processing).

    Raises:
        ConfigError: ``subsets`` is empty.
    """

    main_metric = "accuracy"

    class Settings(CompletionTask.Settings):
        """The settings of a choice between completions; there is no training.

        Attributes:
            format: format of the files; see ``file_formats.blimp``.
            folder: folder with the ``.jsonl`` files, or a single file, below ``data_root`` or the working directory;
                of several names, the first that exists is used.
            hub: name of the data set on the hub, used if there are no files; null: files only.
            subsets: names of the files to score; null: all files.
            items_each: number of items to score from the start of each file; null: all.
            hidden: what is masked when a masked model predicts a token: ``token``, only that token (Salazar et al.
                2020), or ``rest_of_word``, also the later tokens of its word (Kauf and Ivanova 2023).
            normalize: ``tokens`` divides a completion's log-probability by its number of tokens; null: no division.
            ties: whether a tie for the best alternative counts in part (``shared``) or as wrong (``wrong``).
        """

        format: FormatName
        folder: DataFolder | Sequence[DataFolder]
        hub: HubName | None = None
        subsets: Sequence[str] | None = None
        items_each: Count | None = None
        hidden: Literal["token", "rest_of_word"] = "token"
        normalize: Literal["tokens"] | None = None
        ties: Literal["shared", "wrong"] = "shared"

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings.subsets is not None and not self.settings.subsets:
            raise ConfigError("task.subsets=[]: list at least one subset, or set null for all")
        self._folders = self.paths(self.settings.folder)
        self.hidden = self.settings.hidden

    @property
    def kind(self) -> ChoiceFormat:
        """The format of the files."""
        return FORMATS[self.settings.format]

    @override
    def examples(self, split: str) -> list[Choice]:
        """Read the items, file by file."""
        self.check_split(split)
        files, most = choice_files(self._folders), self.settings.items_each
        if files:
            choices = [choice for path in self._chosen(files) for choice in islice(read_choices(path, self.kind), most)]
        elif self.settings.hub is not None:
            places = f"in {self._places()}"
            everything = read_hub_choices(self.settings.hub, self.kind, self.settings.subsets, places=places)
            groups = groupby(everything, key=lambda choice: choice.subset)
            choices = [choice for _, group in groups for choice in islice(group, most)]
        else:
            raise DataError(
                f"task {self.name}: no .jsonl files in {self._places()}. Choose the folder that contains "
                f"{self._folders[0].name} with data_root=<folder> or LMTRANSFER_DATA, or set task.folder=<folder>"
            )
        if not choices:
            raise DataError(f"task {self.name}: the files in {self._places()} contain no items")
        _check_unique(choices)
        return choices

    @override
    def completions(self, item: Choice) -> list[Completion]:
        return [Completion(text, len(prefix)) for text, prefix in zip(item.texts, item.prefixes, strict=True)]

    @override
    def describe(self, method: str) -> str:
        return method.replace(" by ", " per token by ", 1) if self.settings.normalize == "tokens" else method

    @override
    def evaluate(self, items: Sequence[Choice], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        answers = [self._values(part.tokens) for part in scores]
        metrics, rights = self.score(items, answers), self.rights(items, answers)
        low, high = self.interval(items, rights)
        subsets = {item.subset for item in items}
        num_ties = sum(values.count(max(values)) > 1 for values in answers)
        more: dict[str, Any] = {
            "num_sentences": sum(map(len, answers)),
            "num_subsets": len(subsets),
            "num_ties": num_ties,
            "interval": [low, high],
        }
        notes = [f"{len(subsets)} {self.kind.subset}s", f"95 % interval {100 * low:.1f} to {100 * high:.1f} over items"]
        baseline = None
        if model.token_logs_V is not None:
            logs_V = model.token_logs_V
            by_frequency = [self._values([logs_V[ids] for ids in part.ids]) for part in scores]
            baseline = self.score(items, by_frequency)
            gain = self._gain(items, rights, self.rights(items, by_frequency))
            more["minus_token_frequencies"] = gain
            notes.append(f"minus token frequencies {gain_text(gain)}")
        if num_ties:
            counted = {"shared": "which count in part", "wrong": "which count as wrong"}[self.settings.ties]
            notes.append(f"{num_ties:,} ties, {counted}")
        category = f"{self.kind.category}/"
        return Findings(
            metrics=metrics,
            examples=self.scored_examples(items, answers),
            num_scored=len(items),
            chance=self.chance(items),
            baseline=baseline,
            more=more,
            shown={name: name.split("/")[1] for name in metrics if name.startswith(category)},
            notes=notes,
            files={CHOICES_FILE: "".join(map(_choice_line, items, answers))},
        )

    @override
    def gain(
        self, items: Sequence[Choice], scores: Sequence[CompletionScores], control: Sequence[CompletionScores]
    ) -> dict[str, Any]:
        own, other = (self.rights(items, [self._values(part.tokens) for part in side]) for side in (scores, control))
        return self._gain(items, own, other)

    def _gain(self, items: Sequence[Choice], rights: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
        """Return the difference of two accuracies on the same items, and its 95 % interval."""
        differences = np.subtract(rights, others)
        accuracy = float(np.average(differences, weights=self._weights(items)))
        return {"accuracy": accuracy, "interval": list(self.interval(items, differences))}

    def _values(self, tokens: Sequence[np.ndarray]) -> list[float]:
        """Return the sum, or the mean, of the log-probabilities of each alternative's tokens."""
        total = np.mean if self.settings.normalize == "tokens" else np.sum
        return [float(total(logs)) if len(logs) else 0.0 for logs in tokens]

    def score(self, examples: Sequence[Choice], answers: Iterable[Sequence[float]]) -> dict[str, float]:
        """Compute accuracies overall, per category and per subset.

        Args:
            answers: the score of each alternative of each item.
        """
        rights: dict[str, list[float]] = {}
        for choice, right in zip(examples, self.rights(examples, answers), strict=True):
            rights.setdefault(choice.subset, []).append(right)
        subsets = {subset: float(np.mean(values)) for subset, values in rights.items()}
        by_category: dict[str, list[float]] = {}
        for subset, category in {choice.subset: choice.category for choice in examples}.items():
            by_category.setdefault(category, []).append(subsets[subset])
        categories = {category: float(np.mean(values)) for category, values in sorted(by_category.items())}
        averaged = categories if self.kind.averages == "categories" else subsets
        shown = categories if self.kind.category is not None else {}
        return {
            "accuracy": float(np.mean(list(averaged.values()))),
            **{f"{self.kind.category}/{category}/accuracy": value for category, value in shown.items()},
            **{f"{self.kind.subset}/{subset}/accuracy": value for subset, value in subsets.items()},
        }

    def rights(self, examples: Sequence[Choice], answers: Iterable[Sequence[float]]) -> list[float]:
        """Return the credit for each item: 1 if the correct alternative is chosen, 0 if not, a share for a tie."""
        return [self._credit(choice.label, scores) for choice, scores in zip(examples, answers, strict=True)]

    def interval(self, examples: Sequence[Choice], values: Sequence[float] | np.ndarray) -> tuple[float, float]:
        """Return the 95 % interval of a weighted mean over items, weighted as in ``score``.

        The items of each subset are a sample, and the subsets are fixed (stratified sampling, normal approximation).

        Args:
            values: one value per item, such as ``rights``, or the difference between two models' ``rights``.
        """
        weights, column = self._weights(examples), np.asarray(values, dtype=np.float64)
        subsets = np.unique([choice.subset for choice in examples], return_inverse=True)[1]
        variance = 0.0
        for subset in range(subsets.max() + 1):
            rows = subsets == subset
            count = int(rows.sum())
            if count > 1:
                variance += float(weights[rows].sum() / weights.sum()) ** 2 * float(column[rows].var(ddof=1)) / count
        mean, reach = float(np.average(column, weights=weights)), NormalDist().inv_cdf(0.975) * math.sqrt(variance)
        return mean - reach, mean + reach

    def chance(self, examples: Sequence[Choice]) -> float:
        """Return the accuracy of guessing."""
        shares = [1 / len(choice.completions) for choice in examples]
        return float(np.average(shares, weights=self._weights(examples)))

    def scored_examples(self, examples: Sequence[Choice], answers: Sequence[Sequence[float]]) -> ScoredExamples:
        """Return the credit for each item, weighted as in ``score``."""
        weights = self._weights(examples)
        names = [choice.category or choice.subset for choice in examples]
        classes, indices = np.unique(names, return_inverse=True)
        return scored_examples(
            examples,
            kind="pairs",
            ratios={"accuracy": Ratio(np.array(self.rights(examples, answers)) * weights, weights)},
            classes=indices,
            class_names=classes.tolist(),
        )

    def _credit(self, label: int, scores: Sequence[float]) -> float:
        best = [number for number, score in enumerate(scores) if score == max(scores)]
        if len(best) > 1 and self.settings.ties == "wrong":
            return 0.0
        return float(label in best) / len(best)

    def _weights(self, examples: Sequence[Choice]) -> np.ndarray:
        """Return the weight of each item in the accuracy, float64, shape (N,)."""
        subsets, rows, sizes = np.unique(
            [choice.subset for choice in examples], return_inverse=True, return_counts=True
        )
        if self.kind.averages == "subsets":
            return 1 / sizes[rows]
        category_of: Mapping[str, str] = {choice.subset: choice.category for choice in examples}
        categories = [category_of[subset] for subset in subsets.tolist()]
        num_subsets = np.array([categories.count(category) for category in categories])
        return 1 / (sizes * num_subsets)[rows]

    def _chosen(self, files: dict[str, Path]) -> Iterator[Path]:
        missing = [name for name in self.settings.subsets or () if name not in files]
        if missing:
            raise DataError(
                f"task.subsets: no file for {', '.join(missing)} in {self._places()}; there are files for "
                f"{', '.join(files)}"
            )
        yield from (files[name] for name in self.settings.subsets or files)

    def _places(self) -> str:
        return " or ".join(map(str, self._folders))


def gain_text(gain: Mapping[str, Any]) -> str:
    """Format a gain in accuracy and its interval, in points."""
    low, high = gain["interval"]
    return f"{100 * gain['accuracy']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _choice_line(item: Choice, values: Sequence[float]) -> str:
    """Return the JSON line of an item: its alternatives with their values, and the chosen one.

    Ties are broken by a hash of the item's id, because the first alternative is correct too often.
    """
    best = np.flatnonzero(np.array(values) == max(values))
    line = {
        "id": item.id,
        "subset": item.subset,
        "label": item.label,
        "chosen": int(best[zlib.crc32(item.id.encode()) % len(best)]),
        "values": values,
        "completions": item.completions,
        "texts": item.texts,
    }
    return json.dumps(line, ensure_ascii=False) + "\n"


def _check_unique(choices: Sequence[Choice]) -> None:
    seen: set[str] = set()
    for choice in choices:
        if choice.id in seen:
            raise DataError(
                f"item {choice.id} occurs twice: two files have items of {choice.subset}; remove one of the files"
            )
        seen.add(choice.id)

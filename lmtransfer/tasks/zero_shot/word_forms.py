"""Forms of invented words: how well a model's preferences correlate with those of people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit
from typing_extensions import override

from lmtransfer.config.types import DataFolder
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.blimp import choice_files, read_objects
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.metrics.scored_examples import Ratio, scored_examples
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, CompletionTask, Findings, Item, ModelFacts


@dataclass(frozen=True, slots=True)
class WordForms(Item):
    """Two sentences that differ in the form of an invented word; the id is the file with the item's index, from 0.

    Attributes:
        ratio: share of people who prefer the first sentence.
        subset: name of the file.
    """

    sentences: tuple[str, str]
    ratio: float
    subset: str

    @property
    def content(self) -> tuple[str, ...]:
        """The sentences."""
        return self.sentences


class WordFormPreference(CompletionTask):
    """Spearman's correlation between a model's and people's preferences for forms of invented words.

    The model's preference is the probability of the first sentence divided by the sum for both (BabyLM 2025; words by
    Hofmann et al. 2025, https://arxiv.org/abs/2411.07990, and Weissweiler et al. 2023). The metric is the mean over
    files.
    """

    main_metric = "spearman"

    class Settings(CompletionTask.Settings):
        """The settings of preferences for word forms; there is no training.

        Attributes:
            folder: folder with the ``.jsonl`` files, or one file, below ``data_root`` or the working directory; of
                several names, the first that exists is used.
        """

        folder: DataFolder | Sequence[DataFolder]

    settings: Settings

    @override
    def examples(self, split: str) -> list[WordForms]:
        self.check_split(split)
        paths = self.paths(self.settings.folder)
        files = choice_files(paths)
        if not files:
            raise DataError(f"task {self.name}: no .jsonl files in {' or '.join(map(str, paths))}")
        items = [
            _item(row, name, number)
            for name, path in files.items()
            for number, row in read_objects(path, self.notes[split])
        ]
        if not items:
            raise DataError(f"task {self.name}: {', '.join(map(str, files.values()))}: the files contain no items")
        return items

    @override
    def completions(self, item: WordForms) -> list[Completion]:
        return [Completion(sentence) for sentence in item.sentences]

    @override
    def evaluate(self, items: Sequence[WordForms], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        logs = np.array([part.log_probabilities for part in scores])
        preferences = expit(logs[:, 0] - logs[:, 1])
        ratios, subsets = np.array([item.ratio for item in items]), np.array([item.subset for item in items])
        correlations: dict[str, float] = {}
        notes: list[str] = []
        for subset in dict.fromkeys(subsets.tolist()):
            sides = [values[subsets == subset] for values in (preferences, ratios)]
            if min(len(np.unique(side)) for side in sides) > 1:
                correlations[subset] = float(stats.spearmanr(*sides).statistic)
            else:
                correlations[subset] = 0.0
                notes.append(f"the correlation of {subset} is undefined (too few different values) and counts as 0")
        return Findings(
            metrics={
                "spearman": float(np.mean(list(correlations.values()))),
                **{f"file/{subset}/spearman": value for subset, value in correlations.items()},
            },
            examples=scored_examples(
                items, kind="pairs", ratios={"preference": Ratio(preferences, np.ones(len(items)))}
            ),
            num_scored=len(items),
            chance=0.0,
            notes=[f"{len(correlations)} files", *notes],
        )


def _item(row: JsonNode, subset: str, number: int) -> WordForms:
    sentences = row.field("sentences").text().split("\t")
    if len(sentences) != 2 or not all(sentence.strip() for sentence in sentences):
        raise DataError(f"{row.where}: the field sentences must contain two sentences with a tab between them")
    return WordForms(f"{subset}:{number}", (sentences[0], sentences[1]), row.field("ratio").finite(), subset)

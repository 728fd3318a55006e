"""Forms of invented words: how well a model's preferences correlate with those of people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit
from typing_extensions import TypedDict, override

from lmtransfer.config.types import DataFolder
from lmtransfer.data.files import read_lines
from lmtransfer.errors import DataError
from lmtransfer.system.safe_files import parse_json
from lmtransfer.tasks.file_formats.blimp import choice_files
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
        return [
            _item(line, f"{path}:{number}", name, number - 1)
            for name, path in files.items()
            for number, line in read_lines(path)
        ]

    @override
    def completions(self, item: WordForms) -> list[Completion]:
        return [Completion(sentence) for sentence in item.sentences]

    @override
    def evaluate(self, items: Sequence[WordForms], scores: Sequence[CompletionScores], model: ModelFacts) -> Findings:
        logs = np.array([part.log_probabilities for part in scores])
        preferences = expit(logs[:, 0] - logs[:, 1])
        ratios, subsets = np.array([item.ratio for item in items]), np.array([item.subset for item in items])
        correlations = {
            f"file/{subset}/spearman": float(
                np.nan_to_num(stats.spearmanr(preferences[subsets == subset], ratios[subsets == subset]).statistic)
            )
            for subset in dict.fromkeys(subsets.tolist())
        }
        return Findings(
            metrics={"spearman": float(np.mean(list(correlations.values()))), **correlations},
            examples=scored_examples(
                items, kind="pairs", ratios={"preference": Ratio(preferences, np.ones(len(items)))}
            ),
            num_scored=len(items),
            chance=0.0,
            notes=[f"{len(correlations)} files"],
        )


class _Line(TypedDict):
    sentences: str
    ratio: float


def _item(line: str, where: str, subset: str, number: int) -> WordForms:
    fields = parse_json(line.encode(), _Line, source=where, error=DataError)
    sentences = fields["sentences"].split("\t")
    if len(sentences) != 2:
        raise DataError(f"{where}: the field sentences must contain two sentences with a tab between them")
    return WordForms(f"{subset}:{number}", (sentences[0], sentences[1]), fields["ratio"], subset)

"""Tasks trained in one language and scored in several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.system.safe_files import is_file_name
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples

#: The placeholder for a language code in the name of a file.
PLACE = "{language}"


def check_languages(languages: Sequence[str]) -> tuple[str, ...]:
    """Return the codes of the scored languages as a tuple; raise a ConfigError if there are none, or duplicates."""
    if not languages or len(set(languages)) != len(languages):
        raise ConfigError(
            f"task.languages=[{', '.join(languages)}]: list at least one language, each only once, as in [en, de]"
        )
    return tuple(languages)


def in_language(file: str, code: str, *, key: str) -> str:
    """Return the name of a language's own file; ``key`` is the setting with the code, which must be a file name."""
    if PLACE in file and not is_file_name(code):
        raise ConfigError(f"{key}: {code[:60]!r} is put into the name of a file: set a language code, such as en")
    return file.replace(PLACE, code)


def scores_by_language(
    score: Callable[[Sequence[Any], list[Any]], dict[str, float]],
    examples: Sequence[Any],
    answers: Iterable[Any],
    languages: Sequence[str | None],
    *,
    metric: str,
) -> dict[str, float]:
    """Compute all metrics over all examples, and the main metric for each language, as ``language/de/accuracy``.

    Args:
        score: computes all metrics.
        languages: language of each example; None if unknown.
        metric: the main metric.
    """
    answer_list = list(answers)
    scores = score(examples, answer_list)
    for code in dict.fromkeys(languages):
        if code is not None:
            rows = [row for row, own in enumerate(languages) if own == code]
            own_scores = score([examples[row] for row in rows], [answer_list[row] for row in rows])
            scores[f"language/{code}/{metric}"] = own_scores[metric]
    return scores


def with_languages(
    predictions: ScoredExamples, languages: Sequence[str | None], items: Sequence[Hashable]
) -> ScoredExamples:
    """Return predictions whose classes are the languages, so that two runs are also compared language by language.

    All translations of an example are in one group, because they do not vary independently. If a language is unknown,
    nothing changes.

    Args:
        items: identifier of each example's original, such as a question id, which its translations share.
    """
    names = list(dict.fromkeys(languages))
    if None in names:
        return predictions
    first: dict[Hashable, int] = {}
    groups = zip(items, predictions.clusters.tolist(), strict=True)
    return replace(
        predictions,
        clusters=np.array([first.setdefault(item, group) for item, group in groups], dtype=np.int64),
        classes=np.array([names.index(language) for language in languages], dtype=np.int64),
        class_names=tuple(map(str, names)),
    )


def places_in_languages(languages: Sequence[str | None], gold: Sequence[object]) -> list[Hashable]:
    """Return each example's index within its language, which identifies translations in parallel files.

    If the gold answers differ between languages, the files are not parallel, and each example gets its own index.
    """
    columns: dict[str | None, list[object]] = {}
    places: list[Hashable] = []
    for language, answer in zip(languages, gold, strict=True):
        column = columns.setdefault(language, [])
        places.append(len(column))
        column.append(answer)
    answers = list(columns.values())
    return places if all(column == answers[0] for column in answers[1:]) else list(range(len(places)))


def file_lists(files: Mapping[str, str | Sequence[str] | None]) -> dict[str, list[str]]:
    """Return each split's file names as a list."""
    return {split: [names] if isinstance(names, str) else list(names or ()) for split, names in files.items()}

"""Tasks trained in one language and scored in several: names of files and metrics, and checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from lmtransfer.errors import ConfigError, DataError

#: Stands for a language code in the name of a file.
PLACE = "{language}"


def check_languages(languages: Sequence[str]) -> tuple[str, ...]:
    """Check the codes of the scored languages, and return them."""
    if not languages or len(set(languages)) != len(languages):
        raise ConfigError(f"task.languages=[{', '.join(languages)}]: list each language once, such as [en, de]")
    return tuple(languages)


def check_all_present(languages: Sequence[str], present: set[str], *, origin: str) -> None:
    """Check that a file has examples in all scored languages."""
    missing = [language for language in languages if language not in present]
    if missing:
        raise DataError(
            f"{origin}: no rows in {', '.join(missing)} (task.languages), only in {', '.join(sorted(present))}; use a "
            "file with all languages, or correct task.languages"
        )


def metric_name(language: str, metric: str) -> str:
    """Return the name of a metric over the examples of one language, such as ``language/de/accuracy``."""
    return f"language/{language}/{metric}"


def scores_by_language(
    languages: Sequence[str | None], metric: str, score: Callable[[Sequence[int]], Mapping[str, float]]
) -> dict[str, float]:
    """Score the examples of each language; empty if no language is known.

    Args:
        score: scores the examples with these numbers.
    """
    return {
        metric_name(code, metric): score([row for row, own in enumerate(languages) if own == code])[metric]
        for code in dict.fromkeys(languages)
        if code is not None
    }


def language_classes(languages: Sequence[str | None]) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Return the languages as classes of examples, so that two runs are also compared language by language.

    Returns:
        The class of each example, int64, and the names of the classes; None if a language is unknown.
    """
    names = tuple(dict.fromkeys(language for language in languages if language is not None))
    if None in languages:
        return None
    return np.array([names.index(language) for language in languages if language is not None], dtype=np.int64), names


def groups_of_translations(groups: np.ndarray, items: Sequence[Hashable]) -> np.ndarray:
    """Put all translations of an example into one group, because they do not vary independently.

    Args:
        items: identity of the original of each example, such as its question number; equal for all its translations.
    """
    first: dict[Hashable, int] = {}
    return np.array([first.setdefault(item, group) for item, group in zip(items, groups.tolist(), strict=True)],
                    dtype=np.int64)  # fmt: skip


def places_in_languages(languages: Sequence[str | None], gold: Sequence[object]) -> list[Hashable]:
    """Return each example's index within its language, which identifies translations in parallel files.

    Args:
        gold: gold answer of each example. If these differ between languages, the files are not parallel.

    Returns:
        The indices; if the files are not parallel, a distinct number for each example.
    """
    columns: dict[str | None, list[object]] = {}
    places = []
    for language, answer in zip(languages, gold, strict=True):
        column = columns.setdefault(language, [])
        places.append(len(column))
        column.append(answer)
    answers = list(columns.values())
    parallel = all(column == answers[0] for column in answers[1:])
    return list(places) if parallel else list(range(len(places)))

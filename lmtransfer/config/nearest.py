"""Finding the nearest name to a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 24


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name in ``names`` that ``word`` most likely stands for; None if there is none.

    For dotted keys the last part alone is also compared, so ``mask_porb`` finds ``objective.mask_prob``.
    """
    names = list(names)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if found:
        return found[0]
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    found = difflib.get_close_matches(word.rpartition(".")[2], by_last, n=1, cutoff=0.75)
    return by_last[found[0]] if found else None


def listed(names: Iterable[str]) -> str:
    """The names, separated by commas, at most two dozen of them."""
    names = list(names)
    more = f", ... ({len(names) - _SHOWN} more)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def hint(word: str, names: Iterable[str], *, what: str) -> str:
    """One or two sentences with the nearest name and the existing names.

    Args:
        word: the word that the user wrote.
        names: the existing names.
        what: what the names are, in the plural ("keys of train").
    """
    names = list(names)
    found = nearest(word, names)
    suggestion = f"did you mean '{found}'? " if found else ""
    exists = f"{what}: {listed(names)}" if names else f"there are no {what}"
    return suggestion + exists

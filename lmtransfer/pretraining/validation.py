"""Validation of a run on one corpus, or on each part of a mixture."""

from __future__ import annotations

from collections.abc import Callable

from lmtransfer.data.store.store import MixedStore, TokenStore

#: Losses on a store, of at most so many tokens.
Measure = Callable[[TokenStore, int | None], dict[str, float]]


def validate(measure: Measure, held_out: TokenStore | MixedStore, *, most_tokens: int | None) -> dict[str, float]:
    """The losses on held-out text by name.

    Of a mixture each part is measured by itself, on an equal share of ``most_tokens``: ``mlm/fra`` is the loss ``mlm``
    on the part ``fra``, and ``mlm`` the mean over the parts, which count alike whatever their size.

    Args:
        measure: measures one store.
        held_out: the validation part.
        most_tokens: tokens of all parts together, at most; None takes all.
    """
    if isinstance(held_out, TokenStore):
        return measure(held_out, most_tokens)
    share = None if most_tokens is None else max(most_tokens // len(held_out.parts), 1)
    measured = {name: measure(part, share) for name, part in held_out.parts.items()}
    names = list(dict.fromkeys(name for losses in measured.values() for name in losses))
    means: dict[str, float] = {}
    alone: dict[str, float] = {}
    for name in names:
        values = {part: losses[name] for part, losses in measured.items() if name in losses}
        means[name] = sum(values.values()) / len(values)
        alone |= {f"{name}/{part}": value for part, value in values.items()}
    return means | alone

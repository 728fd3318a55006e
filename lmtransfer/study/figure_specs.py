"""The figures in a study's YAML file: the quantities on their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from lmtransfer.config.nearest import hint

YAxis = Literal["score", "loss", "layer_weights"]
Lines = Literal["transfer", "recipe", "task", "method", "model"]

#: Names for the x axis that are not configuration keys.
PLACES = ("recipe", "transfer", "task", "num_train", "layer", "parameters", "tokens", "seconds", "flops")

_KEYS = ("title", "x", "y", "lines", "against", "recipes", "transfers")


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """One figure of a study.

    Attributes:
        name: file name without suffix.
        title: what the figure shows; by default the study's question.
        x: one of ``PLACES``, or a dotted key in the configuration of the pretraining or the transfer.
        y: ``score`` of the transfers, validation ``loss`` of pretraining, or ``layer_weights`` of a scalar mix.
        lines: what each line stands for; ``method`` is the way of transfer (frozen, finetuned, ...), ``model`` the
            family and size of the encoder.
        against: the place on the x axis with which all others are compared, as text; None for the first.
        recipes: the recipes to show; empty for all.
        transfers: the transfers to show; empty for all.
    """

    name: str
    title: str
    x: str = "recipe"
    y: YAxis = "score"
    lines: Lines = "transfer"
    against: str | None = None
    recipes: tuple[str, ...] = ()
    transfers: tuple[str, ...] = ()


def figure_specs(
    content: Mapping[str, Any], recipes: Sequence[str], transfers: Sequence[str], problems: list[str]
) -> tuple[FigureSpec, ...]:
    """Read ``figures`` of a study.

    Args:
        content: the study's settings.
        recipes: names of its recipes, including those that ``only`` leaves out.
        problems: receives every problem, one line each.
    """
    figures = content.get("figures") or {}
    if not isinstance(figures, Mapping):
        problems.append(
            f"figures={figures}: must be a mapping from names to mappings with some of the keys {', '.join(_KEYS)}"
        )
        return ()
    title = str(content.get("question") or content.get("name"))
    specs = [_spec(str(name), node, title, recipes, transfers, problems) for name, node in figures.items() if node]
    return tuple(spec for spec in specs if spec is not None)


def _spec(
    name: str,
    node: Any,
    title: str,
    recipes: Sequence[str],
    transfers: Sequence[str],
    problems: list[str],
) -> FigureSpec | None:
    where = f"figures.{name}"
    if not isinstance(node, Mapping):
        problems.append(f"{where}={node}: must be a mapping with some of the keys {', '.join(_KEYS)}")
        return None
    unknown = [key for key in node if key not in _KEYS]
    own_problems = [f"{where}.{key}: there is no such key; {hint(key, _KEYS, what='keys')}" for key in unknown]
    for key, allowed, default in (("y", get_args(YAxis), "score"), ("lines", get_args(Lines), "transfer")):
        if node.get(key, default) not in allowed:
            own_problems.append(f"{where}.{key}={node[key]}: must be one of {', '.join(allowed)}")
    choices = {}
    for key, names in (("recipes", recipes), ("transfers", transfers)):
        choices[key] = tuple(map(str, node.get(key) or ()))
        missing = [name for name in choices[key] if name not in names]
        own_problems += [f"{where}.{key}: there is no {name!r}; {hint(name, names, what=key)}" for name in missing]
    problems += own_problems
    if own_problems:
        return None
    against = node.get("against")
    return FigureSpec(
        name=name,
        title=str(node.get("title") or title),
        x=str(node.get("x", "recipe")),
        y=cast("YAxis", node.get("y", "score")),
        lines=cast("Lines", node.get("lines", "transfer")),
        against=None if against is None else str(against),
        recipes=choices["recipes"],
        transfers=choices["transfers"],
    )

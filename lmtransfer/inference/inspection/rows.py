"""Training rows in readable form, with colors on a terminal and marks that also work without colors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich.text import Text

from lmtransfer.objectives.views import RowView
from lmtransfer.tokenizers.base import Tokenizer

_META = "\u2581"
_STYLES = {"masked": "bold red", "replaced": "bold yellow", "kept": "bold cyan", "special": "dim", "plain": ""}

#: The meaning of the marks.
LEGEND = Text.assemble(
    ("{film}", _STYLES["masked"]),
    " masked, shown as [MASK]  ",
    ("{film>dog}", _STYLES["replaced"]),
    " masked, replaced by another token  ",
    ("{film=}", _STYLES["kept"]),
    " masked, unchanged  film|s one word of two tokens",
)
#: The same for rows without masked positions.
PLAIN_LEGEND = Text("film|s one word of two tokens")
#: The meaning of the characters in a strip.
STRIP_LEGEND = Text.assemble(
    "one character per token: . visible  ",
    ("#", _STYLES["masked"]),
    " masked  ",
    ("|", _STYLES["special"]),
    " special",
)


def render_row(view: RowView, tokenizer: Tokenizer) -> Text:
    """Render the tokens of a row with marks; the texts of a pair are two paragraphs."""
    lines = Text()
    for part in _parts(view, tokenizer):
        if lines:
            lines.append("\n")
        for place in part:
            token = int(view.original[place])
            if place > part[0] and not _continues(token, tokenizer):
                lines.append(" ")
            elif place > part[0]:
                lines.append("|", style="dim")
            lines.append_text(_token(view, place, tokenizer))
    return lines


def render_strip(view: RowView, tokenizer: Tokenizer) -> Text:
    """Render a row as a strip: one character per token."""
    text = Text()
    for token, is_hidden in zip(view.original.tolist(), view.is_hidden.tolist(), strict=True):
        if is_hidden:
            text.append("#", style=_STYLES["masked"])
        elif tokenizer.is_special[token]:
            text.append("|", style=_STYLES["special"])
        else:
            text.append(".")
    return text


def describe_labels(view: RowView, names: Mapping[str, tuple[str, ...]]) -> str:
    """Describe labels: ``nsp 1: B is from another document``."""
    return ", ".join(f"{name} {value}: {names[name][value]}" for name, value in view.labels.items() if name in names)


def _parts(view: RowView, tokenizer: Tokenizer) -> Iterator[range]:
    """Yield the ranges of positions with the same segment id."""
    edges = [0, *(np.flatnonzero(np.diff(view.segments)) + 1).tolist(), len(view.original)]
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        yield range(first, last)


def _continues(token: int, tokenizer: Tokenizer) -> bool:
    return not tokenizer.starts_word[token] and not tokenizer.is_special[token]


def _token(view: RowView, place: int, tokenizer: Tokenizer) -> Text:
    original, input_token = int(view.original[place]), int(view.inputs[place])
    name = _piece(original, tokenizer)
    if not view.is_hidden[place]:
        return Text(name, style=_STYLES["special" if tokenizer.is_special[original] else "plain"])
    if input_token == tokenizer.mask_id:
        return Text(f"{{{name}}}", style=_STYLES["masked"])
    if input_token == original:
        return Text(f"{{{name}=}}", style=_STYLES["kept"])
    return Text(f"{{{name}>{_piece(input_token, tokenizer)}}}", style=_STYLES["replaced"])


def _piece(token: int, tokenizer: Tokenizer) -> str:
    """Return the piece without its mark for the start of a word; the mark alone becomes an underscore."""
    return tokenizer.piece(token).removeprefix(_META) or "_"

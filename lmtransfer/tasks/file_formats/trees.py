"""Read labelled trees in brackets, one sentence per line: ``(3 (2 It) (4 (2 's) (3 lovely)))``.

Source: the Stanford Sentiment Treebank in the format of the Penn Treebank (Socher et al. 2013,
https://nlp.stanford.edu/sentiment/, trainDevTestTrees_PTB.zip).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError

_Piece = Literal["nothing", "(", "label", "word", ")"]

#: Only plain white space separates words: the treebank has "8 1/2", with a no-break space, as one word.
_PIECES = re.compile(r"[()]|[^ \t\r\n()]+")
#: For each kind of piece, the kinds that may come before it.
_AFTER: dict[_Piece, tuple[_Piece, ...]] = {
    "(": ("nothing", "label", ")"),
    "label": ("(",),
    "word": ("label",),
    ")": ("word", ")"),
}
#: The Penn Treebank's codes for brackets and quotation marks.
_CHARACTERS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}


@dataclass(frozen=True, slots=True)
class Phrase:
    """A labelled part of a sentence.

    Attributes:
        label: its label.
        start: its first word.
        stop: one past its last word.
    """

    label: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A sentence with a label at each of its phrases.

    Attributes:
        words: its words as the file writes them.
        phrases: the whole sentence first, then the others, depth first from the left.
    """

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...]


def read_trees(path: Path, *, num_labels: int) -> Iterator[LabelledTree]:
    """Read the trees of a file, one per line; blank lines are skipped.

    Args:
        path: the file, plain or compressed.
        num_labels: labels are 0 to ``num_labels - 1``.

    Raises:
        DataError: a line is not such a tree; the message has ``file:line``.
    """
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield parse_tree(line, num_labels=num_labels)
            except ValueError as error:
                raise DataError(f"{path}:{number}: not a labelled tree such as (3 (2 It) (4 works)): {error}") from None


def parse_tree(text: str, *, num_labels: int) -> LabelledTree:
    """Parse one tree; its depth is not limited.

    Args:
        text: the tree in brackets.
        num_labels: labels are 0 to ``num_labels - 1``.

    Raises:
        ValueError: brackets do not match, a label is invalid, or a word is at a wrong place.
    """
    allowed = {str(label) for label in range(num_labels)}
    words: list[str] = []
    labels: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    open_phrases: list[int] = []
    before: _Piece = "nothing"
    for match in _PIECES.finditer(text):
        piece = match.group()
        kind: _Piece = "(" if piece == "(" else ")" if piece == ")" else "label" if before == "(" else "word"
        if before not in _AFTER[kind] or (before == ")" and not open_phrases):
            raise ValueError(f"{piece[:40]!r} at character {match.start()} is not expected there")
        if kind == "(":
            open_phrases.append(len(starts))
            starts.append(len(words))
            stops.append(-1)
        elif kind == "label":
            if piece not in allowed:
                raise ValueError(
                    f"label {piece[:40]!r} at character {match.start()} is not one of 0 to {num_labels - 1}"
                )
            labels.append(int(piece))
        elif kind == "word":
            words.append(piece)
        else:
            stops[open_phrases.pop()] = len(words)
        before = kind
    if open_phrases or before == "nothing":
        raise ValueError(f"{len(open_phrases)} brackets are not closed" if open_phrases else "the line has no tree")
    return LabelledTree(tuple(words), tuple(map(Phrase, labels, starts, stops)))


def plain_word(word: str) -> str:
    """Convert a word of the treebank to usual spelling: brackets, quotation marks, no escapes, no no-break space."""
    return _CHARACTERS.get(word) or word.replace("\\/", "/").replace("\\*", "*").replace("\u00a0", " ")

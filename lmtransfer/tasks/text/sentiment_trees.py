"""The sentiment of sentences and their phrases, from the trees of the Stanford Sentiment Treebank.

Source: Socher et al. 2013, https://nlp.stanford.edu/sentiment/, trainDevTestTrees_PTB.zip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.data.files import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.text.classification import Classification
from lmtransfer.tasks.text.example import TextExample, with_sentences
from lmtransfer.tasks.text.task import FileTask

_Piece = Literal["nothing", "(", "label", "word", ")"]

#: Only plain white space separates words: the treebank has "8 1/2", with a no-break space, as one word.
_PIECES = re.compile(r"[()]|[^ \t\r\n()]+")
#: The kinds of piece that may precede each kind of piece.
_AFTER: dict[_Piece, tuple[_Piece, ...]] = {
    "(": ("nothing", "label", ")"),
    "label": ("(",),
    "word": ("label",),
    ")": ("word", ")"),
}
#: The Penn Treebank's codes for brackets and quotation marks.
_CHARACTERS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}

FIVE_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
TWO_LABELS = ("negative", "positive")
NEUTRAL = 2


@dataclass(frozen=True, slots=True)
class Phrase:
    """A labeled part of a sentence."""

    label: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LabeledTree:
    """A sentence with a label for each of its phrases."""

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...]  # the whole sentence first, then the others, depth first from the left


def read_trees(path: Path, *, num_labels: int) -> Iterator[LabeledTree]:
    """Yield the trees of a file, one per line, skipping blank lines."""
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield parse_tree(line, num_labels=num_labels)
            except ValueError as error:
                raise DataError(f"{path}:{number}: not a labeled tree such as (3 (2 It) (4 works)): {error}") from None


def parse_tree(text: str, *, num_labels: int) -> LabeledTree:
    """Parse a tree of any depth; raise ValueError if the text is not a tree."""
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
    return LabeledTree(tuple(words), tuple(map(Phrase, labels, starts, stops)))


def plain_word(word: str) -> str:
    """Convert a treebank word to its usual spelling: brackets, quotation marks, no escapes, no no-break spaces."""
    return _CHARACTERS.get(word) or word.replace("\\/", "/").replace("\\*", "*").replace("\u00a0", " ")


class SentimentTrees(FileTask, Classification):
    """Sentences from film reviews in five classes, or in two without the neutral class (Socher et al. 2013).

    A sentence has the label of its whole tree. With ``phrases``, the training split contains every phrase of the trees;
    dev and test are always sentences. Words are converted to their usual spelling: ``-LRB-`` becomes a bracket, and two
    backticks become a quotation mark. Examples are in file order, with each sentence before its phrases.
    """

    class Settings(Classification.Settings, FileTask.Settings):
        """The settings of the treebank.

        Attributes:
            phrases: whether the training split contains all phrases rather than only sentences.
            deduplicate: whether to keep only the first of several phrases with the same text and label, as in GLUE's
                SST-2; if false, each occurrence counts, as in the published training of tree models.
            binary: whether to use two classes, without neutral examples.
        """

        labels: None = None
        phrases: bool = False
        deduplicate: bool = True
        binary: bool = False

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.labels = self._check(TWO_LABELS if self.settings.binary else FIVE_LABELS)

    @override
    def examples(self, split: str) -> list[TextExample]:
        """Return the sentences of a split, or their phrases.

        Phrase k of tree n is ``train:n.k``; the sentence itself is ``train:n``.
        """
        path = Path(self.origin(split))
        examples: list[TextExample] = []
        seen: set[tuple[str, int]] = set()
        phrases = self.settings.phrases and split == "train"
        for number, tree in enumerate(read_trees(path, num_labels=len(FIVE_LABELS))):
            for example in self._of_tree(tree, f"{split}:{number}", with_phrases=phrases):
                is_repeated = (example.text, example.class_index) in seen
                if phrases and self.settings.deduplicate and not is_repeated:
                    seen.add((example.text, example.class_index))
                if not is_repeated:
                    examples.append(example)
        if not examples:
            raise DataError(f"{path}: there are no examples")
        return with_sentences(examples) if phrases else examples

    def _of_tree(self, tree: LabeledTree, name: str, *, with_phrases: bool) -> Iterator[TextExample]:
        words = [plain_word(word) for word in tree.words]
        for number, phrase in enumerate(tree.phrases if with_phrases else tree.phrases[:1]):
            if self.settings.binary and phrase.label == NEUTRAL:
                continue
            yield TextExample(
                id=f"{name}.{number}" if number else name,
                text=" ".join(words[phrase.start : phrase.stop]),
                label=int(phrase.label > NEUTRAL) if self.settings.binary else phrase.label,
            )

"""A rule-based sentence splitter: fast, without a model, and accurate enough for sentence pairs and row boundaries.

A line end is always a boundary. Inside a line, a sentence ends at ``. ! ?`` (or the corresponding marks of other
scripts), including closing quotes and brackets, if white space follows and the next character can begin a sentence. A
lower-case letter or a mark such as a comma cannot. A full stop after an abbreviation, an initial or a list item's
number does not end a sentence. Full-width marks (as in Chinese and Japanese) end a sentence without white space. A
sentence longer than ``MAX_CHARACTERS`` is cut at white space, so that a 10 MB line does not become one sentence.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 4000

_CLOSERS = "\"'\u2019\u201d\u201c\u00bb\u203a)\\]}"
_CONTINUES = frozenset(".,;:!?)]}%/\u2026")
_MARKS = r".!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362\u17d4\u104b"
_FULL_WIDTH_MARKS = "\u3002\uff01\uff1f\uff61"
#: Where a sentence may end: at a line end, at marks before white space, or at full-width marks. The expression begins
#: with one class of characters, because the search for a class is several times as fast as for alternatives. A run of
#: marks is tried only from its first character, and without backtracking, so that a long run takes linear time.
_CANDIDATE = re.compile(
    rf"[\n{_MARKS}{_FULL_WIDTH_MARKS}](?:"
    r"(?<=\n)\s*"
    rf"|(?<=[{_MARKS}])(?<![{_MARKS}]{{2}})[{_MARKS}]*+[{_CLOSERS}]*+(?:[^\S\n]\u00bb)?\s+"
    rf"|(?<=[{_FULL_WIDTH_MARKS}])[{_FULL_WIDTH_MARKS}]*[\u300d\u300f\u201d\u2019\uff09\u3011]*\s*)"
)
_LAST_WORD = re.compile(r"[^\s()\[\]{}\"'\u2018\u201c\u00ab\u2014/]*+$")
_INNER_STOP = re.compile(r"\w\.\w")
_ROMAN_DIGITS = frozenset("ivxlcIVXLC")
_LIST_NUMBER = re.compile(r"(?:^|\n)[^\S\n]*(?:\d{1,3}|[ivxlc]{1,5}|[IVXLC]{2,5})$")


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_ABBREVIATIONS = _words(
    "mr mrs ms dr prof rev hon st mt gen col capt lt sgt cpl maj gov sen rep pres messrs mme mlle sr sra srta hr fr",
    "e.g i.e viz cf vs al ca approx resp incl esp ibid op dept univ assn bros",
    "fig figs eq eqs sec ch chap vol vols no nos nr pp art par ed eds cap num",
    "jan feb mar apr jun jul aug sep sept oct nov dec bzw bspw vgl ggf sog",
)
_ONLY_BEFORE_NUMBERS = _words("no nos nr fig figs pp art par mar ed al cap num ch sec op")
_FIRST_WORDS = _words(
    "the a an in on at he she it we they i you this that these those but and so if when while after before as for to",
    "there his her its our their my one some many most no not",
)


def _is_ordinary(word: str) -> bool:
    """Whether a word is neither an abbreviation nor the number of a list item."""
    return word.isalpha() and len(word) > 1 and word[-1] not in _ROMAN_DIGITS and word.lower() not in _ABBREVIATIONS


def _is_abbreviation(text: str, stop: int, following: int) -> bool:
    """Whether the full stop at ``stop`` belongs to the preceding word; the next word starts at ``following``."""
    words = text[max(0, stop - 24) : stop].split()
    if words and _is_ordinary(words[-1]):  # nearly always, so the searches below are rare
        return False
    match = _LAST_WORD.search(text, max(0, stop - 24), stop)
    word = match.group() if match else ""
    folded = word.lower()
    next_word = text[following : following + 8].split(None, 1)[0].rstrip(",").lower()
    if len(word) == 1 and word.isalpha():
        return word != "I" and next_word not in _FIRST_WORDS
    if folded in _ABBREVIATIONS:
        return folded not in _ONLY_BEFORE_NUMBERS or text[following].isdigit()
    if _INNER_STOP.search(word):
        return word[0].isalpha() and len(word) <= 7 and next_word not in _FIRST_WORDS
    return bool(word[-1:].isalnum() and len(word) <= 5 and _LIST_NUMBER.search(text, max(0, stop - 12), stop))


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Whether the candidate from ``start`` to ``end`` ends a sentence, judging by its marks and the following text."""
    if end == len(text):
        return True
    mark, following = text[start], text[end]
    if mark in _FULL_WIDTH_MARKS or "\n" in text[start:end]:
        return True
    if following.islower() or following in _CONTINUES:
        return False
    if mark == "." and (end - start < 2 or text[start + 1] != "."):
        return not _is_abbreviation(text, start, end)
    return True


def _append(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    """Append a span, cut at white space if it is longer than ``MAX_CHARACTERS``."""
    while end - start > MAX_CHARACTERS:
        space = max(text.rfind(" ", start, start + MAX_CHARACTERS), text.rfind("\t", start, start + MAX_CHARACTERS))
        cut = space + 1 if space > start else start + MAX_CHARACTERS
        spans.append((start, cut))
        start = cut
    if start < end:
        spans.append((start, end))


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the character spans [start, end) of a text's sentences.

    The spans are contiguous and cover the text exactly: white space after a sentence belongs to it. A text consisting
    only of white space is one span. An empty text has no span.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    first = len(text) - len(text.lstrip())
    for match in _CANDIDATE.finditer(text, first):
        end = match.end()
        if _ends_sentence(text, match.start(), end):
            _append(spans, text, start, end)
            start = end
    _append(spans, text, start, len(text))
    return spans

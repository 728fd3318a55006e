"""Extract the prose of docstrings: without code, tables and markup, one paragraph per line.

It handles the conventions of reStructuredText, numpydoc, Google style, Sphinx fields and Markdown, as far as they
separate English text from other text. It reads line by line and never raises. Unclear text is kept if it consists of
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_PARAGRAPH_WORDS = 3
MIN_PROSE_SHARE = 0.5

_FENCE = re.compile(r"\s*(```+|~~~+)")
# Start of a block that ends at the next blank line: a doctest with its output, or a table with rulers of several parts.
_TO_BLANK_LINE = re.compile(r"\s*(?:>>>|In \[\d*\]:|\$ |=+(?:\s+=+)+\s*$)")
_DIRECTIVE = re.compile(r"\.\.\s+([\w:-]+?)::\s*(.*)")
_PROSE_DIRECTIVES = frozenset(
    ("note", "warning", "tip", "hint", "important", "caution", "attention", "danger", "error", "seealso", "admonition",
     "topic", "todo", "rubric", "versionadded", "versionchanged", "deprecated", "describe", "function", "method",
     "class", "attribute", "data", "exception", "module", "option")
)  # fmt: skip
_RULER = re.compile(r"[^\w\s]{3,}(?:[\s|+]+[^\w\s]+)*\s*|[^\w]+")
_TAG_LINE = re.compile(r"</?[A-Za-z][^<>]*>|\[\[?[\w.-]+\]?\]")
_TYPE = re.compile(r"[*\w\\`., ]{1,60} : .{0,120}(?<![.])")  # numpydoc's ``name : type``
_TABLE = re.compile(r"[|+].*[|+]|\S.*\s{3,}\S.*\s{3,}\S.*")
_COMMENT = re.compile(r"\.\.\s+(?:_[^:]*:.*|\|[^|]*\|.*)|\.\.")
_DROPPED_LINES = (_RULER, _TABLE, _TYPE, _TAG_LINE, _COMMENT)
_CITATION = re.compile(r"\.\.\s+\[[^\]]+\]\s*")
_ITEM = re.compile(r"(?:[-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)]|#\.)\s+")
_FIELD = re.compile(r"[:@](?:param|parameter|arg|argument|keyword|kwarg|type|raises?|returns?|rtype|var|ivar|cvar)\b")
_FIELD_NAME = re.compile(r"[:@]\w+\s*((?:[^:]|:(?=\S))*):\s*")
_GOOGLE_ITEM = re.compile(r"[*\w.`]+(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?:(?:\s|$)")
_SECTION = re.compile(
    r"(?:(?:keyword |other |key word )?(?:args?|arguments?|parameters?|params)|returns?|yields?|raises?|warns|examples?"
    r"|notes?|attributes|methods|usage|see also|references|shape|inputs?|outputs?|variables|options|todo):?",
    re.IGNORECASE,
)

# Markup inside a line: a mark that must occur in the line (most lines have none), a pattern and its replacement.
_INLINE = (
    ("http", re.compile(r"https?://[^\s<>)\]`]+"), ""),
    ("`", re.compile(r":[\w:.+-]+:`~?\.?([^`<]*?)(?:\s*<[^>`]*>)?`"), r"\1"),  # :role:`title <target>`
    ("`", re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}"), r"\1"),  # `title <target>`_
    ("](", re.compile(r"\[([^\]\[]+)\]\([^()\s]*\)"), r"\1"),  # [title](target)
    ("]_", re.compile(r"\s*\[[\w#*-]{1,12}\]_"), ""),  # [1]_
    ("`", re.compile(r"`+~?\.?([^`]*)`+_{0,2}"), r"\1"),
    ("*", re.compile(r"(?<![\w*])\*{1,2}(?=[^\s*])([^*]*[^\s*])\*{1,2}(?!\w)"), r"\1"),
    ("`", re.compile(r"`"), ""),
    ("\\", re.compile(r"\\"), ""),
    ("(", re.compile(r"\(\s*\)"), ""),
    ("<>", re.compile(r"<>"), ""),
)
_SPACE_BEFORE_MARK = re.compile(r" (?=[.,;:!?)](?:\s|$))")
_EDGES = "\"'()[]{}<>,.;:!?*-\u2013\u2014\u2018\u2019\u201c\u201d"


def prose(docstring: str) -> str:
    """The English text of a docstring without indentation, one paragraph per line; empty if there is none."""
    paragraphs = (_plain(" ".join(lines)) for lines in _paragraphs(_without_code(docstring.expandtabs().split("\n"))))
    return "\n".join(paragraph for paragraph in paragraphs if is_prose(paragraph))


def is_prose(paragraph: str) -> bool:
    """Whether at least half of a paragraph's tokens are words, and at least three of them."""
    tokens = paragraph.split()
    words = sum(map(_is_word, tokens))
    return words >= MIN_PARAGRAPH_WORDS and words >= MIN_PROSE_SHARE * len(tokens)


def _is_word(token: str) -> bool:
    if not token.isalpha():
        token = token.strip(_EDGES)
        if not token.isalpha():
            token = token.replace("-", "").replace("'", "")
    return token.isalpha() and (len(token) > 1 or token in "aAI")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_code(lines: list[str]) -> Iterator[str]:
    """The lines without doctests, fenced and literal blocks, tables, rulers, and directives without prose."""
    fence = ""
    dropping = False
    block: int | None = None  # lines with a larger indentation belong to a dropped block
    for line in lines:
        text = line.strip()
        if fence:
            fence = "" if text.startswith(fence) else fence
            continue
        if not text:
            dropping = False
            yield ""
            continue
        if block is not None and _indent(line) > block:
            continue
        block = None
        if dropping or _TO_BLANK_LINE.match(line):
            dropping = True
            continue
        if mark := _FENCE.match(line):
            fence = mark[1]
            yield ""
            continue
        if directive := _DIRECTIVE.match(text):
            if directive[1].split(":")[-1].lower() in _PROSE_DIRECTIVES:
                yield ""
                yield " " * _indent(line) + re.sub(r"^[\d.]+\s*", "", directive[2])
            else:
                block = _indent(line)
            continue
        if any(pattern.fullmatch(text) for pattern in _DROPPED_LINES):
            yield ""
            continue
        if text.endswith("::"):
            block = _indent(line)
            line = line.rstrip()[:-1]
        yield _CITATION.sub("", line)


def _paragraphs(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines grouped by paragraph: a blank line, a list item, a field or another indentation starts a new paragraph."""
    paragraph: list[str] = []
    indent = 0
    hanging = False
    for line in lines:
        text = line.strip()
        begins = not text
        item = _ITEM.match(text) if text else None
        if text and (item or _FIELD.match(text)):
            begins = True
        elif text and paragraph and _indent(line) != indent:
            # The first continuation of an item may be indented; any other change begins a paragraph.
            begins = not (hanging and len(paragraph) == 1 and _indent(line) > indent and not _GOOGLE_ITEM.match(text))
            indent = indent if begins else _indent(line)
        elif text and _GOOGLE_ITEM.match(text) and _indent(line) > 0:
            begins = True
        if begins and paragraph:
            yield paragraph
            paragraph = []
        if not text:
            continue
        if not paragraph:
            indent = _indent(line)
            hanging = bool(item or _FIELD.match(text) or _GOOGLE_ITEM.match(text)) and not _SECTION.fullmatch(text)
        if item:
            text = text[item.end() :]
        elif _FIELD.match(text) and (name := _FIELD_NAME.match(text)):
            text = f"{name[1].strip()}: {text[name.end() :]}" if name[1].strip() else text[name.end() :]
        paragraph.append(text)
    if paragraph:
        yield paragraph


def _plain(text: str) -> str:
    for mark, pattern, replacement in _INLINE:
        if mark in text:
            text = pattern.sub(replacement, text)
    return _SPACE_BEFORE_MARK.sub("", " ".join(text.split()))

"""Blanking the names of libraries out of a text, so that a classifier has to read the rest of it."""

from __future__ import annotations

import re
from functools import cache

BLANK = "_"

# Names that no other English word contains are blanked wherever they stand; short aliases only where they are a whole
# run of letters, so as a word or as a part of an identifier such as hf_hub_download.
_NAME = re.compile(
    r"[ci]?python(?:ic)?\d*|(?:py)?torch|numpy|pandas|sympy|networkx|huggingface|datasets?", re.IGNORECASE
)
_ALIASES = frozenset(("np", "pd", "nx", "hf", "hub", "stdlib"))
_OF_TWO_WORDS = re.compile(
    r"hugging[\s_-]+face|data[\s_-]sets?|std[\s_-]lib|standard[\s_-]+librar(?:y|ies)", re.IGNORECASE
)
_RUN = re.compile(r"[^\W_]+")
_CAMEL_ALIAS = re.compile(r"Hf(?=[A-Z])")
_MARK = "\x00"  # stands for a blank until neighbouring ones have become one
_NEIGHBOURS = re.compile(rf"{_MARK}(?:[\s_.-]*{_MARK})+")


def blank_names(text: str) -> str:
    """``text`` with the names and aliases of the eight libraries of ``python_docs`` replaced by ``_``.

    Blanked are python, torch, numpy, pandas, sympy, networkx, hugging face and dataset(s), alone or within longer
    names; np, pd, nx, hf, hub, stdlib and standard library as words or parts of identifiers. Blanks next to one
    another become one.
    """
    text = _OF_TWO_WORDS.sub(_MARK, text.replace(_MARK, " "))
    text = _RUN.sub(lambda match: _blank_run(match[0]), text)
    return _NEIGHBOURS.sub(_MARK, text).replace(_MARK, BLANK)


@cache
def _blank_run(run: str) -> str:
    if run.lower() in _ALIASES:
        return _MARK
    return _CAMEL_ALIAS.sub(_MARK, _NAME.sub(_MARK, run))

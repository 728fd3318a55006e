"""The beginning of a very long text, when only its first tokens are needed."""

from __future__ import annotations

import re

from lmtransfer.tokenizers.base import Tokenizer

#: Characters of the first beginning that is tried, for each token that is needed.
_CHARACTERS_A_TOKEN = 32
_GROWTH = 4
_SPACE = re.compile(r"[ \t\r\n]")


def beginning(text: str, tokenizer: Tokenizer, *, num_tokens: int) -> str:
    """A beginning of the text with the same first tokens and more than ``num_tokens`` of them, else the whole text.

    The beginning ends before white space, because no token goes over it. So a text of ten million characters costs
    hardly more than a page.

    Args:
        text: the text.
        tokenizer: gives the tokens.
        num_tokens: how many of the first tokens are needed.
    """
    size = _CHARACTERS_A_TOKEN * num_tokens
    while size < len(text):
        space = _SPACE.search(text, size)
        if space is None:
            return text
        prefix = text[: space.start()].rstrip(" \t\r\n")
        if len(tokenizer.encode_ids([prefix])[0]) > num_tokens:
            return prefix
        size = space.start() * _GROWTH
    return text

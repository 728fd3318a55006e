"""Loads a saved tokenizer of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import DESCRIPTION_FILE, Tokenizer, read_description
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.extended import BASE_FOLDER, ExtendedTokenizer
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer
from lmtransfer.tokenizers.words import WordTokenizer

#: Maximum number of tokenizers with added words that extend one another.
_DEEPEST: Final = 16

#: The loader for each ``kind`` in ``tokenizer.json``.
_LOADERS: Mapping[str, Callable[[Path], Tokenizer]] = {
    **{
        tokenizer.kind: tokenizer.load
        for tokenizer in (
            ByteBpeTokenizer,
            PublishedTokenizer,
            SentencePieceTokenizer,
            WordPieceTokenizer,
            WordTokenizer,
        )
    },
    ExtendedTokenizer.kind: lambda folder: ExtendedTokenizer.load(folder, load_base=load_tokenizer),
}


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer saved in ``folder`` (such as ``tokenizer/`` in a run directory)."""
    folder = Path(folder)
    kind = read_description(folder)["kind"]
    if kind not in _LOADERS:
        raise CheckpointError(
            f"{folder / DESCRIPTION_FILE}: kind={kind!r} is not supported; this version of lmtransfer reads "
            f"{', '.join(_LOADERS)}"
        )
    if len(list(takewhile(lambda above: above.name == BASE_FOLDER, (folder, *folder.parents)))) > _DEEPEST:
        raise CheckpointError(
            f"{folder}: more than {_DEEPEST} tokenizers with added words extend one another; copy the tokenizer again"
        )
    try:
        return _LOADERS[kind](folder)
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if message.startswith(str(folder)) else f"{folder}: {message}") from error

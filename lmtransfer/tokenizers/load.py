"""Load a tokenizer from a folder, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers import byte_bpe, extended, published, sentencepiece, wordpiece, words
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.saved import DESCRIPTION_FILE, read_description

#: How each ``kind`` of ``tokenizer.json`` is read: a further kind is one entry.
_LOADERS: Mapping[str, Callable[[Path], Tokenizer]] = {
    byte_bpe.KIND: byte_bpe.ByteBpeTokenizer.load,
    extended.KIND: lambda folder: extended.ExtendedTokenizer.load(folder, load_base=load_tokenizer),
    published.KIND: published.PublishedTokenizer.load,
    sentencepiece.KIND: sentencepiece.SentencePieceTokenizer.load,
    wordpiece.KIND: wordpiece.WordPieceTokenizer.load,
    words.KIND: words.WordTokenizer.load,
}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer saved in ``folder`` (such as ``tokenizer/`` in a run directory).

    Raises:
        CheckpointError: ``folder`` holds no tokenizer, a torn one, or one of a kind that this version cannot read.
    """
    kind = read_description(folder).get("kind")
    if not isinstance(kind, str) or kind not in _LOADERS:
        raise CheckpointError(
            f"{Path(folder) / DESCRIPTION_FILE}: kind is {kind!r}; this version can read {', '.join(_LOADERS)}"
        )
    return _LOADERS[kind](folder)

"""Convert our tokenizers to the ``tokenizers`` library, by kind and without special tokens."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_library import Prefix, library_tokenizer
from lmtransfer.interop.tokenizers.sentencepiece_model import read_sentencepiece_model
from lmtransfer.tokenizers.added_tokens import is_between_chinese
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.saved import SPECIALS
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer, library_of

_PAD: Final = "[PAD]"
_LONGEST_WORD = 100  # in characters; the same as in ``tokenizers.wordpiece``


@dataclass(frozen=True, slots=True)
class LibraryTokenizer:
    """The content of a ``tokenizer.json``.

    Attributes:
        content: content in the format of the library; its added tokens may lack the special ones.
        specials: the token of each role ("unk", "cls", "sep", "mask", "pad") that has its own token.
        pad_id: id of the padding token, if there is one.
        ties: whether two ways to cut a text can be equally likely, so that rounding decides between them.
    """

    content: dict[str, Any]
    specials: Mapping[str, str]
    pad_id: int | None = None
    ties: bool = False


def as_library(tokenizer: Tokenizer, *, prefix: Prefix = "first") -> LibraryTokenizer:
    """Convert one of our tokenizers to the library's format.

    Args:
        tokenizer: our tokenizer.
        prefix: for kinds that put a space before a text: "first" puts it before the text only, "always" also after an
            added or special token.

    Raises:
        CheckpointError: the library has no equivalent.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        model = read_sentencepiece_model(tokenizer.model_bytes(), source=tokenizer.model_file)
        content = _content(library_tokenizer(model, prefix=prefix))
        return LibraryTokenizer(content, _OURS, ties=model.algorithm == "unigram")
    if isinstance(tokenizer, ByteBpeTokenizer):
        return LibraryTokenizer(_byte_bpe(tokenizer.model_bytes(), prefix), _OURS)
    if isinstance(tokenizer, WordPieceTokenizer):
        content = _content(_wordpiece(tokenizer))
        if _PAD not in tokenizer.pieces:
            return LibraryTokenizer(content, _OURS)
        return LibraryTokenizer(content, {**_OURS, "pad": _PAD}, pad_id=tokenizer.pieces.index(_PAD))
    if isinstance(tokenizer, PublishedTokenizer):
        return LibraryTokenizer(json.loads(tokenizer.model), tokenizer.specials, pad_id=tokenizer.pad_id)
    if isinstance(tokenizer, ExtendedTokenizer):
        return _extended(tokenizer)
    raise CheckpointError(
        f"a tokenizer of the class {type(tokenizer).__name__} cannot be written as Hugging Face's files: these support "
        "WordPiece, byte-level BPE, and sentencepiece's BPE and unigram, but not whole words read as characters"
    )


_OURS: Final = dict(zip(("unk", "cls", "sep", "mask"), SPECIALS, strict=True))


def _extended(tokenizer: ExtendedTokenizer) -> LibraryTokenizer:
    """Make each word an added token: it is searched in normalised text, and includes the white space before it.

    If several words begin at one place, the library takes the longest or none; our tokenizer takes the longest that is
    not inside another word.
    """
    base = as_library(tokenizer.base, prefix="always")  # text between added words is encoded like a separate text
    words = [
        {
            "id": token_id,
            "content": word,
            "single_word": not (tokenizer.splits_chinese and is_between_chinese(word)),
            "lstrip": True,
            "rstrip": False,
            "normalized": True,
            "special": False,
        }
        for token_id, word in enumerate(tokenizer.words, start=tokenizer.base.num_pieces)
    ]
    content = {**base.content, "added_tokens": [*(base.content.get("added_tokens") or []), *words]}
    return replace(base, content=content)


def _content(library: tokenizers.Tokenizer) -> dict[str, Any]:
    return dict(json.loads(library.to_str()))


def _byte_bpe(model: bytes, prefix: Prefix) -> dict[str, Any]:
    """Put a space before a text and make any white space one space, which marks the start of a word as ours does."""
    library = tokenizers.Tokenizer.from_buffer(model)
    blanks = "".join(character for character in map(chr, range(sys.maxunicode)) if character.isspace())
    spaces = [normalizers.Replace(Regex(f"[{blanks}]+"), " "), normalizers.Replace(Regex(r" \z"), "")]
    after = [] if library.normalizer is None else [library.normalizer]
    library.normalizer = normalizers.Sequence([*spaces, *after])
    # Only this pre-tokenizer can add a space to the first word without adding one after a special token.
    first = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=prefix, split=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([first, library.pre_tokenizer])
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return _content(library)


def _wordpiece(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    model = models.WordPiece(ids, unk_token=_OURS["unk"], max_input_chars_per_word=_LONGEST_WORD)
    library = library_of(model, lowercase=tokenizer.lowercase)
    if tokenizer.reads_as_bert:
        library.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=tokenizer.lowercase,
            lowercase=tokenizer.lowercase,
        )
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return library

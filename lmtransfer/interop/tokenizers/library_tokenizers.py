"""Our tokenizers as the ``tokenizers`` library writes them, kind by kind, without special tokens."""

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
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.saved import SPECIALS
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer

_PAD: Final = "[PAD]"
_LONGEST_WORD = 100  # characters; as in ``tokenizers.wordpiece``


@dataclass(frozen=True, slots=True)
class LibraryTokenizer:
    """The content of a ``tokenizer.json``.

    Attributes:
        content: as the library writes it; its added tokens may lack the special ones.
        specials: the token of each role ("unk", "cls", "sep", "mask", "pad") that has one of its own.
        pad_id: id of the one for padding, if there is one.
        ties: whether two ways to cut a text can be equally likely, and which is taken hangs on rounding.
    """

    content: dict[str, Any]
    specials: Mapping[str, str]
    pad_id: int | None = None
    ties: bool = False


def as_library(tokenizer: Tokenizer, *, prefix: Prefix = "first") -> LibraryTokenizer:
    """A tokenizer of ours as the library's.

    Args:
        tokenizer: ours.
        prefix: where its kind lets a text begin with a space, what gets one: a text, or also what follows an added
            token or a special one.

    Raises:
        CheckpointError: the library has nothing like it.
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
        f"a tokenizer of the class {type(tokenizer).__name__} cannot be written as Hugging Face's files: they hold "
        "WordPiece, byte-level BPE, and sentencepiece's BPE and unigram, not whole words that are spelt by characters"
    )


_OURS: Final = dict(zip(("unk", "cls", "sep", "mask"), SPECIALS, strict=True))


def _extended(tokenizer: ExtendedTokenizer) -> LibraryTokenizer:
    """Each word is looked for in normalised text, and takes the white space before it along.

    Of several words that begin at one place the library takes the longest or none, ours the longest that is not inside
    another word.
    """
    base = as_library(tokenizer.base, prefix="always")  # what stands between them is encoded as a text by itself
    words = [
        {
            "id": token_id,
            "content": word,
            "single_word": True,
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
    """A text begins with a space, and any white space is one space: a mark of where words begin, as ours see it."""
    library = tokenizers.Tokenizer.from_buffer(model)
    blanks = "".join(character for character in map(chr, range(sys.maxunicode)) if character.isspace())
    spaces = [normalizers.Replace(Regex(f"[{blanks}]+"), " "), normalizers.Replace(Regex(r" \z"), "")]
    after = [] if library.normalizer is None else [library.normalizer]
    library.normalizer = normalizers.Sequence([*spaces, *after])
    # Of what gives a space to the first word, this alone can give none to text after a special token.
    first = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=prefix, split=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([first, library.pre_tokenizer])
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return _content(library)


def _wordpiece(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    library = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token=_OURS["unk"], max_input_chars_per_word=_LONGEST_WORD)
    )
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=tokenizer.lowercase,
        lowercase=tokenizer.lowercase,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return library

"""Write a tokenizer as files that ``transformers.AutoTokenizer`` loads without code of this package.

``tokenizer.json`` holds the whole tokenizer in the format of the ``tokenizers`` library. ``tokenizer_config.json`` and
``special_tokens_map.json`` give the roles of its special tokens. Ids are those of ``encode_ids``. Texts are framed as
in our tasks, ``[CLS] x [SEP]`` and ``[CLS] a [SEP] b [SEP]``, even if the family's own frame differs.

There are two intended differences. First, a special token that is written out in a text becomes that token, so that
users can type "[MASK]" for a model to fill in; our tokenizers encode it like any other text. Second,
``truncation=True`` cuts a pair by the rule of the library, which removes a token of the first text where ours
removes one of the second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_model import Prefix, library_tokenizer
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

_OURS: Final = dict(zip(("unk", "cls", "sep", "mask"), SPECIALS, strict=True))
TOKENIZER_FILE: Final = "tokenizer.json"


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
        library = library_tokenizer(tokenizer.model_bytes(), source=tokenizer.model_file, prefix=prefix)
        return LibraryTokenizer(_content(library), _OURS, ties=isinstance(library.model, models.Unigram))
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


@dataclass(frozen=True, slots=True)
class WrittenTokenizer:
    """Facts about a written tokenizer that the rest of the export needs.

    Attributes:
        pad_id: id of the padding token; the tokenizer's ``vocab_size`` if the model has no spare row for it.
        specials: ids by role: "cls", "sep", "mask" and "unk".
        notes: notes for the user on differences from our tokenizer.
    """

    pad_id: int
    specials: dict[str, int]
    notes: tuple[str, ...]


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    max_length: int,
    num_segments: int,
    continues: bool = False,
    pads_left: bool = False,
) -> WrittenTokenizer:
    """Write the three files into ``folder``, which must exist.

    A vocabulary without a padding token gets "[PAD]" at its first unused id, or else at ``vocab_size``. WordPiece is
    also written as BERT's ``vocab.txt``, for programs that read only that file.

    Args:
        tokenizer: a tokenizer of any kind except whole words.
        folder: the folder.
        max_length: longest input of the model in tokens, specials included.
        num_segments: number of segment ids of the model.
        continues: the family continues text: its files have their own names for the tokens that begin and end it.
        pads_left: whether padding is on the left.

    Raises:
        CheckpointError: these files cannot express the tokenizer.
    """
    written = as_library(tokenizer)
    specials, notes = dict(written.specials), []
    content = written.content
    pad_id = written.pad_id
    if pad_id is None:
        pad_id = tokenizer.num_pieces
        specials["pad"] = _unused_name(content, tokenizer)
        missing = "" if tokenizer.num_pieces < tokenizer.vocab_size else ", for which the model needs one more row"
        notes.append(f"{specials['pad']} (id {pad_id}) was added for padding{missing}")
    notes += _notes(specials, ties=written.ties)
    roles = {
        "cls": int(tokenizer.cls_id),
        "sep": int(tokenizer.sep_id),
        "mask": int(tokenizer.mask_id),
        "unk": int(tokenizer.unk_id),
    }
    ids = {**roles, "pad": pad_id}
    content["added_tokens"] = _added_tokens(content.get("added_tokens") or [], specials, ids)
    cls, sep = tokenizer.piece(tokenizer.cls_id), tokenizer.piece(tokenizer.sep_id)
    content["post_processor"] = _frame(
        (cls, tokenizer.cls_id), (sep, tokenizer.sep_id), second=min(1, num_segments - 1)
    )
    content["truncation"] = content["padding"] = None
    text = json.dumps(content, ensure_ascii=False)
    _check(content, text)
    names = {f"{role}_token": token for role, token in specials.items()}
    if continues:
        names |= {"bos_token": cls, "eos_token": sep}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if num_segments > 1 else []), "attention_mask"],
        "padding_side": "left" if pads_left else "right",
        "clean_up_tokenization_spaces": False,
        **names,
    }
    prefix = (content.get("pre_tokenizer") or {}).get("add_prefix_space")
    if prefix is not None:  # otherwise transformers 4 would override tokenizer.json
        settings["add_prefix_space"] = prefix
    # BERT's class frames pairs with two segments, and lower-cases by its own rule.
    if isinstance(tokenizer, WordPieceTokenizer) and num_segments > 1 and tokenizer.reads_as_bert:
        settings |= _as_bert(tokenizer)
        pieces = [*tokenizer.pieces, *([specials["pad"]] if written.pad_id is None else [])]
        (folder / tokenizer.model_file).write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    (folder / TOKENIZER_FILE).write_text(text, encoding="utf-8")
    for file, value in (("tokenizer_config.json", settings), ("special_tokens_map.json", names)):
        (folder / file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return WrittenTokenizer(pad_id, roles, tuple(notes))


def _notes(specials: Mapping[str, str], *, ties: bool) -> list[str]:
    """Differences between the written tokenizer and ours."""
    notes = []
    if "mask" in specials:
        notes.append(f"{specials['mask']} in a text becomes the special token; lmtransfer encodes it like other text")
    if ties:
        notes.append(
            "if two ways to split a word are equally likely, such as '...', '.' and '.', '...', transformers may "
            "choose the other one, because it rounds the scores differently"
        )
    return notes


def _as_bert(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """The settings of a WordPiece tokenizer as BERT's class reads them."""
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.lowercase,
        "tokenize_chinese_chars": True,
    }


def _unused_name(content: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """A name for the padding token that no other piece has."""
    taken = {tokenizer.piece(i) for i in range(tokenizer.num_pieces)} | {
        entry["content"] for entry in content.get("added_tokens") or []
    }
    names = ["[PAD]", "<pad>", *(f"[PAD{number}]" for number in range(len(taken)))]
    return next(name for name in names if name not in taken)


def _added_tokens(
    added: list[dict[str, Any]], specials: Mapping[str, str], ids: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the added tokens and the special ones, which are searched in the text before normalisation."""
    entries = {entry["content"]: dict(entry) for entry in added}
    for role, token in specials.items():
        fresh = {"id": ids[role], "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        entries.setdefault(token, {**fresh, "normalized": False})["special"] = True
    return sorted(entries.values(), key=lambda entry: int(entry["id"]))


def _frame(cls: tuple[str, int], sep: tuple[str, int], *, second: int) -> dict[str, Any]:
    """Frames ``cls a sep`` and ``cls a sep b sep``, with segment id ``second`` for the second text."""

    def special(token: tuple[str, int], segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token[0], "type_id": segment}}

    first = [special(cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": second}}, special(sep, second)],
        "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]} for name, token_id in (cls, sep)},
    }


def _check(content: Mapping[str, Any], text: str) -> None:
    library = tokenizers.Tokenizer.from_str(text)
    ids = {entry["content"]: int(entry["id"]) for entry in content["added_tokens"]}
    for token, token_id in ids.items():
        if library.token_to_id(token) != token_id:
            raise CheckpointError(
                f"the token {token} has the id {token_id}, but {TOKENIZER_FILE} would give it "
                f"{library.token_to_id(token)}: another token has the same name, or lower ids are not in use"
            )

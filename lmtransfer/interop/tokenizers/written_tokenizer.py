"""Writes a tokenizer as files that ``transformers.AutoTokenizer`` loads without lmtransfer.

``tokenizer.json`` holds the whole tokenizer in the format of the ``tokenizers`` library. ``tokenizer_config.json`` and
``special_tokens_map.json`` hold the roles of its special tokens. The ids are those of ``encode_ids``. Special tokens
are added as in our tasks, ``[CLS] x [SEP]`` and ``[CLS] a [SEP] b [SEP]``, even if the family's own format differs.

There are two intended differences. First, the name of a special token in a text becomes that token, so that users can
type "[MASK]" for a model to fill in, whereas our tokenizers encode the name like any other text. Second,
``truncation=True`` truncates pairs by the library's rule, which may remove a token from the first text where our rule
removes one from the second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_model import Prefix, library_tokenizer
from lmtransfer.tokenizers.base import SPECIALS, Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer, is_between_chinese
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer, library_of

_PAD: Final = "[PAD]"
_LONGEST_WORD = 100  # in characters; the same as in ``tokenizers.wordpiece``

_OURS: Final = dict(zip(("unk", "cls", "sep", "mask"), SPECIALS, strict=True))
TOKENIZER_FILE: Final = "tokenizer.json"

_BLOCK = 256
_SINGLE_ROUNDING = 2.0**-24  # relative error of one float32 operation


@dataclass(frozen=True, slots=True)
class LibraryTokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    library: tokenizers.Tokenizer
    specials: Mapping[str, str]  #: the token of each role ("unk", "cls", "sep", "mask", "pad") that has its own token
    pad_id: int | None = None
    ties: bool = False  #: whether two ways to split a text can be equally likely, so that rounding decides


def to_library(tokenizer: Tokenizer, *, prefix: Prefix = "first") -> LibraryTokenizer:
    """Convert one of our tokenizers to the library's format.

    Args:
        prefix: where a tokenizer that puts a space before a text does so: "first" means before the text, "always"
            means before the text and after each added or special token.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        library = library_tokenizer(tokenizer.model_bytes(), source=tokenizer.model_file, prefix=prefix)
        return LibraryTokenizer(library, _OURS, ties=isinstance(library.model, models.Unigram))
    if isinstance(tokenizer, ByteBpeTokenizer):
        return LibraryTokenizer(_byte_bpe(tokenizer.model_bytes(), prefix), _OURS)
    if isinstance(tokenizer, WordPieceTokenizer):
        library = _wordpiece(tokenizer)
        if _PAD not in tokenizer.pieces:
            return LibraryTokenizer(library, _OURS)
        return LibraryTokenizer(library, {**_OURS, "pad": _PAD}, pad_id=tokenizer.pieces.index(_PAD))
    if isinstance(tokenizer, PublishedTokenizer):
        library = tokenizers.Tokenizer.from_buffer(tokenizer.model)
        return LibraryTokenizer(library, tokenizer.specials, pad_id=tokenizer.pad_id)
    if isinstance(tokenizer, ExtendedTokenizer):
        return _extended(tokenizer)
    raise CheckpointError(
        f"{type(tokenizer).__name__} cannot be written in Hugging Face's format, which supports WordPiece, byte-level "
        "BPE, and sentencepiece's BPE and unigram, but not whole words that are read as characters"
    )


def _extended(tokenizer: ExtendedTokenizer) -> LibraryTokenizer:
    """Make each word an added token, which is matched in normalized text and includes the white space before it.

    If several words match at the same position, the library uses the longest, or none if this one is inside another
    word; our tokenizer uses the longest that is not inside another word.
    """
    base = to_library(tokenizer.base, prefix="always")  # the text between added words is encoded like a separate text
    base.library.add_tokens(
        [
            AddedToken(word, single_word=not (tokenizer.splits_chinese and is_between_chinese(word)), lstrip=True)
            for word in tokenizer.words
        ]
    )
    _check_ids(base.library, {word: tokenizer.base.num_pieces + place for place, word in enumerate(tokenizer.words)})
    return base


def _byte_bpe(model: bytes, prefix: Prefix) -> tokenizers.Tokenizer:
    """Build a library tokenizer that, like ours, puts a space before a text and collapses white space."""
    library = tokenizers.Tokenizer.from_buffer(model)
    blanks = "".join(character for character in map(chr, range(sys.maxunicode)) if character.isspace())
    spaces = [normalizers.Replace(Regex(f"[{blanks}]+"), " "), normalizers.Replace(Regex(r" \z"), "")]
    after = [] if library.normalizer is None else [library.normalizer]
    library.normalizer = normalizers.Sequence([*spaces, *after])
    # Only this pre-tokenizer can add a space to the first word without adding one after a special token.
    first = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=prefix, split=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([first, library.pre_tokenizer])
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return library


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
    """Facts about a written tokenizer that the rest of the export needs."""

    pad_id: int  #: id of the padding token; the tokenizer's ``vocab_size`` if the model has no unused row
    specials: dict[str, int]
    notes: tuple[str, ...]


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    max_length: int,
    num_segments: int,
    continues_text: bool = False,
    pads_left: bool = False,
) -> WrittenTokenizer:
    """Write the three files to ``folder``, which must exist.

    A vocabulary without a padding token gets "[PAD]" as its first unused id, or as ``vocab_size`` if there is none.
    WordPiece is also written as BERT's ``vocab.txt``, for programs that read only that file.
    """
    written = to_library(tokenizer)
    library, specials, notes = written.library, dict(written.specials), []
    pad_id = written.pad_id
    if pad_id is None:
        pad_id = tokenizer.num_pieces
        specials["pad"] = _unused_name(library, tokenizer)
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
    _add_specials(library, {token: ids[role] for role, token in specials.items()})
    cls, sep = tokenizer.piece(tokenizer.cls_id), tokenizer.piece(tokenizer.sep_id)
    second = min(1, num_segments - 1)
    # An id in a template is its token's text, which is what transformers.js takes it for.
    single = [f"{cls}:0", "$A:0", f"{sep}:0"]
    library.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, f"$B:{second}", f"{sep}:{second}"],
        special_tokens=[(cls, roles["cls"]), (sep, roles["sep"])],
    )
    library.no_truncation()
    library.no_padding()
    names = {f"{role}_token": token for role, token in specials.items()}
    if continues_text:
        names |= {"bos_token": cls, "eos_token": sep}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *(["token_type_ids"] if num_segments > 1 else []), "attention_mask"],
        "padding_side": "left" if pads_left else "right",
        "clean_up_tokenization_spaces": False,
        **names,
    }
    if isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel):  # else transformers 4 overrides tokenizer.json
        settings["add_prefix_space"] = library.pre_tokenizer.add_prefix_space
    # BERT's class needs two segments for pairs, and lower-cases by its own rule.
    if isinstance(tokenizer, WordPieceTokenizer) and num_segments > 1 and tokenizer.reads_as_bert:
        settings |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": tokenizer.lowercase,
            "tokenize_chinese_chars": True,
        }
        pieces = [*tokenizer.pieces, *([specials["pad"]] if written.pad_id is None else [])]
        (folder / tokenizer.model_file).write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    library.save(str(folder / TOKENIZER_FILE), pretty=False)
    for file, value in (("tokenizer_config.json", settings), ("special_tokens_map.json", names)):
        (folder / file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return WrittenTokenizer(pad_id, roles, tuple(notes))


def _notes(specials: Mapping[str, str], *, ties: bool) -> list[str]:
    notes = []
    if "mask" in specials:
        notes.append(
            f"transformers reads {specials['mask']} in a text as the special token; lmtransfer encodes it like any "
            "other text"
        )
    if ties:
        notes.append(
            "if two ways to split a word are equally likely, such as '...' + '.' and '.' + '...', transformers may "
            "choose the other one, because it rounds the scores differently"
        )
    return notes


def _unused_name(library: tokenizers.Tokenizer, tokenizer: Tokenizer) -> str:
    pieces = {*library.get_vocab(), *(tokenizer.piece(i) for i in range(tokenizer.num_pieces))}
    names = ["[PAD]", "<pad>", *(f"[PAD{number}]" for number in range(len(pieces)))]
    return next(name for name in names if name not in pieces)


def _add_specials(library: tokenizers.Tokenizer, ids: Mapping[str, int]) -> None:
    """Make tokens special, so that they are matched before the text is normalized."""
    tokens = {token.content: token for token in library.get_added_tokens_decoder().values()}
    for name in sorted(ids, key=ids.__getitem__):
        token = tokens.get(name) or AddedToken(name, normalized=False)
        token.special = True
        library.add_special_tokens([token])
    _check_ids(library, ids)


def _check_ids(library: tokenizers.Tokenizer, ids: Mapping[str, int]) -> None:
    for token, token_id in ids.items():
        if library.token_to_id(token) != token_id:
            raise CheckpointError(
                f"the token {token} has the id {token_id}, but would have {library.token_to_id(token)} in "
                f"{TOKENIZER_FILE}: another token has the same name, or some lower ids are unused"
            )


def find_token_difference(tokenizer: Tokenizer, folder: Path, lines: Iterable[str]) -> str | None:
    """Describe the first text for which the written files give other ids than our tokenizer; None if there is none.

    Texts that contain a special token or cannot be encoded as UTF-8 are skipped. With a unigram vocabulary, a different
    split of a text is accepted if it is equally likely up to float32 rounding.
    """
    path = Path(folder) / TOKENIZER_FILE
    try:
        text = path.read_text(encoding="utf-8")
        library, content = tokenizers.Tokenizer.from_str(text), json.loads(text)
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: the file cannot be read ({error})") from None
    specials = [entry["content"] for entry in content["added_tokens"] if entry["special"]]
    model = content["model"]
    is_unigram = model["type"] == "Unigram"
    scores = [0.0 if piece in specials else score for piece, score in model["vocab"]] if is_unigram else []
    remaining = (line for line in lines if _is_comparable(line, specials))
    while block := list(islice(remaining, _BLOCK)):
        encodings = library.encode_batch(block)
        for line, ids, encoding in zip(block, tokenizer.encode_ids(block), encodings, strict=True):
            ours, theirs = (tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id), tuple(encoding.ids)
            if ours != theirs and not (scores and _are_tied(library, scores, ours, theirs)):
                return _describe_difference(line, ours, theirs)
    return None


def _describe_difference(line: str, ours: Sequence[int], theirs: Sequence[int]) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    place = sum(1 for _ in same)
    around = slice(max(0, place - 2), place + 4)
    return (
        f"{line[:80]!r}: token {place} differs: the run's tokenizer gives {list(ours[around])}, "
        f"{TOKENIZER_FILE} gives {list(theirs[around])}"
    )


def _is_comparable(line: str, specials: Iterable[str]) -> bool:
    if any(special in line for special in specials):
        return False
    return line.isascii() or not any("\ud800" <= character <= "\udfff" for character in line)


def _are_tied(
    library: tokenizers.Tokenizer, scores: list[float], ours: tuple[int, ...], theirs: tuple[int, ...]
) -> bool:
    """Whether two lists of ids give the same text, with scores that differ only by rounding."""
    joined_pieces, again = ("".join(library.id_to_token(i) or "" for i in ids) for ids in (ours, theirs))
    total, other = (sum(scores[i] for i in ids if i < len(scores)) for ids in (ours, theirs))
    return joined_pieces == again and abs(total - other) <= _SINGLE_ROUNDING * len(ours) * abs(total)

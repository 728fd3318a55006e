"""The tokenizer of a published checkpoint, through the ``tokenizers`` library.

Supported are WordPiece (a piece inside a word is written like ``##ing``), WordLevel, byte-level BPE (GPT-2, RoBERTa),
and BPE or Unigram with Metaspace (ALBERT, XLNet, XLM-R). All ids, including those of special tokens, are those of the
published file. Text is never encoded as a special token.

A byte-level vocabulary may have different ids for the first word of a text and for the same word after a space. Text is
encoded unchanged, so that predictions are those of the published model. A text that continues another text begins with
a space.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import tokenizers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import (
    Encoding,
    Tokenizer,
    extend_spans,
    read_model,
    replace_surrogates,
    split_flat,
    trim_spans,
)
from lmtransfer.tokenizers.byte_bpe import META, byte_letters, byte_memo, format_piece
from lmtransfer.tokenizers.charsmap import check_charsmap
from lmtransfer.tokenizers.word_memo import WordMemo
from lmtransfer.tokenizers.wordpiece import bert_memo

#: The kind of pieces: ``##`` inside words, whole words, bytes as characters, or U+2581 at the beginning of words.
PieceKind = Literal["wordpiece", "words", "bytes", "meta"]

#: Maximum number of tokens in a vocabulary; the largest published vocabularies have a quarter of a million.
MAX_PIECES: Final = 1 << 24
#: Prefix that hides the names of special tokens from text, because no other piece contains a space.
_UNSPELLABLE: Final = " "
#: A text that is encoded at load time to detect broken tokenizers: letters, an accent, white space, unknown characters.
_PROBE: Final = "a e\u0301 \u4e2d\u00a0\U0001f9ff\ufffd\x01\n."
#: Maximum factor by which replacements may lengthen a text; the factor of published tokenizers is at most 3.
_MOST_GROWTH: Final = 100
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")

_LETTERS = byte_letters()
ROLES: Final = ("cls", "sep", "mask", "unk", "pad")
_VERSION = 1  # increase it when the same file would give other ids or word starts
_RESERVED = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]|<unused\d+>|<extra_id_\d+>|madeupword\d+")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A library tokenizer that adds no special tokens, never truncates or pads, and encodes no text as a special token.

    Attributes:
        texts: the UTF-8 text of each token that is not special; a token that begins a word has a leading space.
    """

    library: tokenizers.Tokenizer
    piece_kind: PieceKind
    pieces: dict[int, str]  #: the token of each id, as in the file; ids may be missing
    texts: dict[int, bytes]
    unk: str | None
    added_ids: frozenset[int]  #: ids of ordinary tokens that are matched before text is split
    has_normalizer: bool


def read_published_model(model: bytes, specials: Iterable[str]) -> PublishedModel:
    """Read the bytes of a ``tokenizer.json``.

    Its truncation, padding and post-processor (which adds ``[CLS]`` and ``[SEP]``) are removed.

    Args:
        specials: tokens that no text may encode to, in addition to the file's special tokens.
    """
    try:
        described = json.loads(model)
        described["added_tokens"] = described.get("added_tokens") or []
        piece_kind = _piece_kind(described)
        unk = _unknown(described["model"])
        special_names = {entry["content"] for entry in described["added_tokens"] if entry.get("special")}
        hidden = {
            name: _UNSPELLABLE + name for name in special_names | set(specials) | ({unk} if unk is not None else set())
        }
        added = {entry["content"] for entry in described["added_tokens"]} - set(hidden)
        for step in _steps(described.get("normalizer")):
            if step.get("type") == "Precompiled" and step["precompiled_charsmap"]:
                check_charsmap(b64decode(step["precompiled_charsmap"]))
        growth = _growth(described.get("normalizer"))
        if growth > _MOST_GROWTH:
            raise CheckpointError(
                f"tokenizer.json: the normalizer can make a text {growth:.3g} times as long, which could exhaust the "
                f"memory; at most {_MOST_GROWTH} times is allowed: download the tokenizer from its publisher"
            )
        library = tokenizers.Tokenizer.from_str(json.dumps(_rename_tokens(described, hidden)))
        library.encode_special_tokens = True
        library.encode(_PROBE)
        replacements = {name: token for token, name in hidden.items()}
        pieces = {token_id: replacements.get(piece, piece) for piece, token_id in library.get_vocab().items()}
        added_ids = frozenset(token_id for token_id, piece in pieces.items() if piece in added)
    except CheckpointError:
        raise
    except BaseException as error:  # the library raises plain Exception, and its panics are BaseException
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            raise
        raise CheckpointError(
            f"not a tokenizer of the `tokenizers` library, or damaged ({_first_line(error)}): download or copy it again"
        ) from None
    if not pieces or max(pieces) >= MAX_PIECES:
        raise CheckpointError(
            f"the tokenizer has {len(pieces)} tokens, with ids up to {max(pieces, default=-1)}, but the ids must be "
            f"from 0 to {MAX_PIECES - 1}; download or copy tokenizer.json again"
        )
    inside = described["model"].get("continuing_subword_prefix") or ""
    falls_back = bool(described["model"].get("byte_fallback"))
    texts = {
        token_id: piece.encode("utf-8", "replace")
        if token_id in added_ids
        else _text(piece, piece_kind, inside=inside, byte_pieces=falls_back)
        for token_id, piece in pieces.items()
        if piece not in hidden
    }
    return PublishedModel(library, piece_kind, pieces, texts, unk, added_ids, described.get("normalizer") is not None)


def _piece_kind(described: Mapping[str, Any]) -> PieceKind:
    model = described["model"]
    kind = model.get("type")
    if kind == "WordPiece":
        return "wordpiece"
    if kind == "WordLevel":
        return "words"
    parts = [*_types(described.get("pre_tokenizer")), *_types(described.get("normalizer"))]
    if kind == "BPE" and "ByteLevel" in parts:
        return "bytes"
    vocabulary = model["vocab"]
    pieces = vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary)
    if kind in ("BPE", "Unigram") and any(piece.startswith(META) for piece in pieces):
        return "meta"
    raise CheckpointError(
        f"tokenizer.json: the model type {kind} with {', '.join(parts) or 'no pre-tokenizer'} does not mark where "
        "words begin: lmtransfer supports WordPiece, WordLevel, byte-level BPE, and BPE or Unigram with Metaspace"
    )


def _types(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return []
    inner = part.get("pretokenizers") or part.get("normalizers") or []
    return [str(part.get("type")), *(name for entry in inner for name in _types(entry))]


def _growth(normalizer: Any) -> float:
    """Return the maximum number of characters that a normalizer can make of one character.

    The steps are read from the last to the first; ``weight`` is the number of characters that a character becomes from
    the current step on. The characters of a replaced text share the weight of the replacement. A regular expression may
    match between any characters. Growth by a Unicode form counts only for text that an earlier step has written, not
    for the user's text.
    """
    steps = list(_steps(normalizer))
    weight = {one: 1.0 for step in steps for one in str(step.get("content", ""))}
    other = 1.0

    def total(text: str) -> float:
        return sum(weight.get(one, other) for one in text)

    for step in reversed(steps):
        kind = step.get("type")
        if kind == "Replace":
            content, pattern = total(step["content"]), step["pattern"].get("String")
            if not pattern:
                weight, other = {one: before + content for one, before in weight.items()}, other + content
            elif len(pattern) == 1:
                weight[pattern] = content
            else:
                weight |= {one: max(weight.get(one, other), content / len(pattern)) for one in pattern}
        elif kind == "Prepend":  # once for each text
            other = max(other, total(step["prepend"]))
        elif kind == "Precompiled" and step["precompiled_charsmap"]:
            rules = b64decode(step["precompiled_charsmap"])
            replacements = rules[4 + int.from_bytes(rules[:4], "little") :].split(b"\0")
            longest = max(total(text.decode("utf-8", "replace")) for text in replacements)
            normalize = tokenizers.normalizers.Precompiled(rules).normalize_str
            weight, other = {one: total(normalize(one)) for one in weight}, max(other, longest)
        elif kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer"):
            form: Any = kind if kind.startswith("NF") else "NFD"
            spaces = 2 * other if kind == "BertNormalizer" else 0  # around Chinese characters
            weight = {one: total(unicodedata.normalize(form, one).lower()) + spaces for one in weight}
        elif kind == "ByteLevel":
            other = 4 * max([other, *weight.values()])
            weight = dict.fromkeys(weight, other)
    return max([other, *weight.values()])


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict) and part.get("type") == "Sequence":
        for entry in part["normalizers"]:
            yield from _steps(entry)
    elif isinstance(part, dict):
        yield part


def _unknown(model: Mapping[str, Any]) -> str | None:
    if model["type"] != "Unigram":
        return model.get("unk_token")
    return None if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]


def _rename_tokens(described: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename special tokens in a ``tokenizer.json``, and remove its post-processor, truncation and padding."""
    model = dict(described["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names[model["unk_token"]]
    added = [
        {**entry, "content": names[entry["content"]], "special": True} if entry["content"] in names else entry
        for entry in described["added_tokens"]
    ]
    nothing = {"truncation": None, "padding": None, "post_processor": None}
    return {**described, **nothing, "model": model, "added_tokens": added}


def _text(piece: str, piece_kind: PieceKind, *, inside: str, byte_pieces: bool) -> bytes:
    if piece_kind == "words":
        return b" " + piece.encode("utf-8", "replace")
    if piece_kind == "wordpiece":
        begins = not (inside and piece.startswith(inside))
        return (" " + piece if begins else piece.removeprefix(inside)).encode("utf-8", "replace")
    if piece_kind == "bytes":
        letters = _LETTERS
        return b"".join(
            bytes([letters[letter]]) if letter in letters else letter.encode("utf-8", "replace") for letter in piece
        )
    if byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece.replace(META, " ").encode("utf-8", "replace")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}" if isinstance(error, (KeyError, TypeError)) else lines[0][:200]


def _word_memo(model: PublishedModel) -> WordMemo | None:
    """Return a memo if the tokenizer encodes each word on its own, as those of BERT, GPT-2 and RoBERTa do."""
    if model.added_ids:  # such a token may contain white space
        return None
    normalizer, splitter = model.library.normalizer, model.library.pre_tokenizer
    if model.piece_kind in ("wordpiece", "words"):
        is_bert = isinstance(normalizer, BertNormalizer) and isinstance(splitter, BertPreTokenizer)
        return bert_memo(model.library, lowercase=normalizer.lowercase) if is_bert else None
    parts = byte_memo(model.library)
    if parts is None:
        return None
    return WordMemo(
        split=_split_at_spaces,
        encode_words=lambda words: parts.encode([w[1:] if w.startswith("\n") else " " + w for w in words]),
    )


def _split_at_spaces(text: str) -> list[str]:
    """Split a text into words with a space before each, except for the first, which is marked by a line feed.

    A text with other white space is a single word.
    """
    words = text.split()
    if not words or " ".join(words) != text.removeprefix(" "):
        return ["\n" + text]
    if not text.startswith(" "):
        words[0] = "\n" + words[0]
    return words


class PublishedTokenizer(Tokenizer):
    """A published tokenizer, which the ``tokenizers`` library runs.

    Roles in ``missing_roles`` use the token of another role: GPT-2 has only ``<|endoftext|>`` for all four.

    Args:
        specials: the token of each role that has one: "cls", "sep", "mask", "unk", "pad". Roles may share a token.
        vocab_size: number of embedding rows; None means the number of ids. The number is not rounded up, so that
            exported tensors have the published shapes.
    """

    kind = "published"
    model_file = "published.json"
    is_exact = True

    def __init__(
        self,
        model: bytes,
        *,
        specials: Mapping[str, str],
        vocab_size: int | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.training = model, dict(training or {})
        # Otherwise the library starts one thread per core in each worker process that prepares corpora.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.specials = _check_roles(specials)
        model_parts = read_published_model(model, self.specials.values())
        if "unk" not in self.specials and model_parts.unk is not None:
            self.specials["unk"] = model_parts.unk
        self._library, self._piece_kind = model_parts.library, model_parts.piece_kind
        normalizer = self._library.normalizer
        self.splits_chinese = normalizer is not None and normalizer.normalize_str("a\u6771a").count(" ") == 2
        self.num_pieces = max(model_parts.pieces) + 1
        self.vocab_size = self.num_pieces if vocab_size is None else vocab_size
        if not self.num_pieces <= self.vocab_size <= MAX_PIECES:
            raise CheckpointError(
                f"the tokenizer has ids up to {self.num_pieces - 1}, but the model has {self.vocab_size} embedding "
                "rows: the two do not belong together; copy both from the same checkpoint"
            )
        self._set_roles({piece: token_id for token_id, piece in model_parts.pieces.items()})
        self._pieces = [model_parts.pieces.get(i, f"[unused{i}]") for i in range(self.num_pieces)]
        self._texts = [model_parts.texts.get(i) for i in range(self.num_pieces)]
        self.is_special = np.ones(self.vocab_size, dtype=bool)
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        for i, (piece, text) in enumerate(zip(self._pieces, self._texts, strict=True)):
            self.is_special[i] = text is None or _RESERVED.fullmatch(piece) is not None
            self.starts_word[i] = text is None or text[:1].isspace() or i in model_parts.added_ids
        if model_parts.piece_kind == "meta" and "unk" in self.specials:
            # The unknown token replaces a sequence of unknown characters; U+2581 before it is a separate token.
            self.starts_word[self.unk_id] = False
        self._marks = self.starts_word & np.array(
            [text is not None and not text.strip() for text in self._texts]
            + [False] * (self.vocab_size - self.num_pieces)
        )
        described = b"%s %d %d %r " % (self.kind.encode(), _VERSION, self.vocab_size, sorted(self.specials.items()))
        self.fingerprint: str = sha256(described + model).hexdigest()
        self._memo = _word_memo(model_parts)
        self._has_normalizer = model_parts.has_normalizer
        self._blank: dict[str, bool] = {META: model_parts.piece_kind == "meta"}

    def _set_roles(self, ids: Mapping[str, int]) -> None:
        absent = [f"{role} {token!r}" for role, token in self.specials.items() if token not in ids]
        if absent:
            raise CheckpointError(
                f"the vocabulary lacks these special tokens: {', '.join(absent)}; copy all files of the tokenizer from "
                "the same checkpoint"
            )
        own = {role: ids[token] for role, token in self.specials.items()}
        spare = next((own[role] for role in ("sep", "cls", "unk", "mask") if role in own), None)
        if spare is None:
            raise CheckpointError(
                "the tokenizer has no special token to put before and after a text: name such tokens in "
                "special_tokens_map.json (cls_token, sep_token, mask_token, unk_token)"
            )
        self.cls_id, self.sep_id = own.get("cls", spare), own.get("sep", spare)
        self.mask_id, self.unk_id = own.get("mask", spare), own.get("unk", spare)
        self.pad_id = own.get("pad")
        self.missing_roles = tuple(role for role in ROLES[:4] if role not in own)

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {"specials": self.specials, "vocab_size": self.vocab_size, "training": self.training}
        return partial(type(self), **settings), (self.model,)

    @classmethod
    def load(cls, folder: Path) -> PublishedTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        specials, size = description.get("specials"), description.get("vocab_size")
        if not isinstance(specials, dict) or not isinstance(size, int):
            raise CheckpointError(f"{folder}: tokenizer.json has no specials or no vocab_size; copy it again")
        return cls(model, specials=specials, vocab_size=size, training=description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets; the first token always begins a word, whatever its id.

        If a character is split into several tokens, each of them has the span of the whole character. Characters that
        normalization drops or turns into white space count as white space, but an accent belongs to the token before
        it. A token that only marks the beginning of a word has an empty span at that position.
        """
        with _naming_panics():
            encoding = self._library.encode(replace_surrogates(text), add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        spans: list[tuple[int, int]] = encoding.offsets
        if self._piece_kind in ("meta", "bytes"):
            is_mark = self._marks[ids].tolist()
            spans = [
                (start, start) if mark and start < end and not self._is_blank(text[start]) else (start, end)
                for (start, end), mark in zip(spans, is_mark, strict=True)
            ]
        trimmed = trim_spans(text, spans, is_blank=self._is_blank)
        word_starts = self.starts_word[ids]
        word_starts[:1] = True
        return Encoding(ids, extend_spans(text, trimmed, is_blank=self._is_blank), word_starts)

    @override
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._memo is not None:
            return split_flat(*self._memo.encode(texts))
        clean = [replace_surrogates(text) for text in texts]
        with _naming_panics():
            encodings = self._library.encode_batch_fast(clean, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    @override
    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return super().encode_flat(texts) if self._memo is None else self._memo.encode(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are written as in the vocabulary, and invalid bytes as U+FFFD."""
        return self._decode_runs(
            ids,
            is_text=lambda i: 0 <= i < self.num_pieces and self._texts[i] is not None,
            decode=lambda run: b"".join(self._texts[i] or b"" for i in run).decode(errors="replace").removeprefix(" "),
        )

    @override
    def _piece(self, token_id: int) -> str:
        text = self._texts[token_id]
        return self._pieces[token_id] if text is None or self._piece_kind != "bytes" else format_piece(text)

    @override
    def _details(self) -> dict[str, Any]:
        return {"specials": self.specials, **super()._details()}

    @override
    def model_bytes(self) -> bytes:
        return self.model

    def _is_blank(self, character: str) -> bool:
        blank = self._blank.get(character)
        if blank is None:
            blank = character.isspace()
            if not blank and self._has_normalizer and self._piece_kind == "meta":
                normalized = self._library.normalizer.normalize_str(replace_surrogates(character))
                blank = not normalized.strip(META + " ")
            self._blank[character] = blank
        return blank


@contextmanager
def _naming_panics() -> Iterator[None]:
    """Turn a panic of the library, which is no ``Exception``, into an error for the user."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"the published tokenizer fails on a text ({_first_line(error)}): its file is damaged, or one of its "
            "regular expressions never ends; download the tokenizer from its publisher"
        ) from None


def _check_roles(specials: Mapping[str, str]) -> dict[str, str]:
    wrong = [f"{role}={token!r}" for role, token in specials.items() if role not in ROLES or not isinstance(token, str)]
    if wrong:
        raise CheckpointError(
            f"special tokens {', '.join(wrong)} are not allowed: the roles are {', '.join(ROLES)}, and each token must "
            "be a string"
        )
    return {role: specials[role] for role in ROLES if role in specials}

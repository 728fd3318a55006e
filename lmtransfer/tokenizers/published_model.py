"""Load a published ``tokenizer.json`` with the ``tokenizers`` library, and get the text of each of its pieces."""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.byte_bpe import META, byte_letters

#: The kind of pieces: ``##`` inside words, whole words, bytes as characters, or U+2581 at the beginning of words.
PieceKind = Literal["wordpiece", "words", "bytes", "meta"]

#: Most tokens of a vocabulary; the largest published ones have a quarter of a million.
MAX_PIECES: Final = 1 << 24
#: Prefix of special tokens' names, so that text never matches them: all kinds of pieces encode or drop the space.
_UNSPELLABLE: Final = " "
#: A text that triggers errors of encoding at load time: letters, an accent, white space, unknown characters.
_PROBE: Final = "a e\u0301 \u4e2d\u00a0\U0001f9ff\ufffd\x01\n."
#: How many times longer a text may get by replacements; published tokenizers at most triple it.
_MOST_GROWTH: Final = 100
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A library tokenizer without special tokens around text, truncation and padding; no text gives a special token.

    Attributes:
        library: the tokenizer.
        piece_kind: the kind of its pieces.
        pieces: the token of each id, as written in the file; ids may be missing.
        texts: the UTF-8 text of each token that is not special, with a space at the beginning of a word.
        unk: the unknown token, if there is one.
        added: ids of ordinary tokens that are matched before text is split.
        strips: whether it normalises text, so that a character may be dropped.
    """

    library: tokenizers.Tokenizer
    piece_kind: PieceKind
    pieces: dict[int, str]
    texts: dict[int, bytes]
    unk: str | None
    added: frozenset[int]
    strips: bool


def read_published_model(model: bytes, specials: Iterable[str]) -> PublishedModel:
    """Read the bytes of a ``tokenizer.json``.

    Its truncation, padding and post-processor (which adds ``[CLS]`` and ``[SEP]``) are removed.

    Args:
        model: the file's content.
        specials: tokens that no text may encode to, in addition to the file's special tokens.

    Raises:
        CheckpointError: ``model`` is not a ``tokenizer.json``, or its pieces are of no kind in ``PieceKind``.
    """
    try:
        described = json.loads(model)
        described["added_tokens"] = described.get("added_tokens") or []
        piece_kind = _piece_kind(described)
        unk = _unknown(described["model"])
        named = {entry["content"] for entry in described["added_tokens"] if entry.get("special")}
        hidden = {name: _UNSPELLABLE + name for name in named | set(specials) | ({unk} if unk is not None else set())}
        added = {entry["content"] for entry in described["added_tokens"]} - set(hidden)
        growth = _growth(described.get("normalizer"))
        if growth > _MOST_GROWTH:
            raise CheckpointError(
                f"tokenizer.json: its normalizer can make a text {growth:.3g} times as long, but {_MOST_GROWTH} times "
                "is the maximum: it would use up time and memory; get the tokenizer from its publisher"
            )
        library = tokenizers.Tokenizer.from_str(json.dumps(_with_names(described, hidden)))
        library.encode_special_tokens = True
        library.encode(_PROBE)
        shown = {name: token for token, name in hidden.items()}
        pieces = {token_id: shown.get(piece, piece) for piece, token_id in library.get_vocab().items()}
        added_ids = frozenset(token_id for token_id, piece in pieces.items() if piece in added)
    except CheckpointError:
        raise
    except BaseException as error:  # the library raises plain Exception, and its panics are BaseException
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            raise
        raise CheckpointError(
            f"not a tokenizer of the `tokenizers` library ({_first_line(error)}): copy it again"
        ) from None
    if not pieces or max(pieces) >= MAX_PIECES:
        raise CheckpointError(
            f"the tokenizer has {len(pieces)} tokens, the last with the id {max(pieces, default=-1)}, but ids may be 0 "
            f"to {MAX_PIECES - 1}; copy tokenizer.json again"
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
        f"tokenizer.json: a model of type {kind} after {', '.join(parts) or 'nothing'} does not mark where words "
        "begin: lmtransfer supports WordPiece, WordLevel, byte-level BPE, and BPE or Unigram with Metaspace"
    )


def _types(part: Any) -> list[str]:
    """The types of a pre-tokenizer or normaliser and of the members of its sequence."""
    if not isinstance(part, dict):
        return []
    inner = part.get("pretokenizers") or part.get("normalizers") or []
    return [str(part.get("type")), *(name for entry in inner for name in _types(entry))]


def _growth(normalizer: Any) -> float:
    """How many characters a character can become, at most, by the replacements of a normaliser.

    Read from the last step to the first, ``weight`` is what a character becomes from the current step on. The
    characters of a text that is replaced share the weight of its replacement. A regular expression may match between
    any characters. Growth by a Unicode form counts only for what an earlier step has written, not for what users write.
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
            normalised = tokenizers.normalizers.Precompiled(rules).normalize_str
            weight, other = {one: total(normalised(one)) for one in weight}, max(other, longest)
        elif kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer"):
            form: Any = kind if kind.startswith("NF") else "NFD"
            spaces = 2 * other if kind == "BertNormalizer" else 0  # around Chinese characters
            weight = {one: total(unicodedata.normalize(form, one).lower()) + spaces for one in weight}
        elif kind == "ByteLevel":
            other = 4 * max([other, *weight.values()])
            weight = dict.fromkeys(weight, other)
    return max([other, *weight.values()])


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The single steps of a normaliser, in order."""
    if isinstance(part, dict) and part.get("type") == "Sequence":
        for entry in part["normalizers"]:
            yield from _steps(entry)
    elif isinstance(part, dict):
        yield part


def _unknown(model: Mapping[str, Any]) -> str | None:
    if model["type"] != "Unigram":
        return model.get("unk_token")
    return None if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]


def _with_names(described: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same file with other names for special tokens, without post-processor, truncation and padding."""
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
    if byte_pieces and (found := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(found[1], 16)])
    return piece.replace(META, " ").encode("utf-8", "replace")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}" if isinstance(error, (KeyError, TypeError)) else lines[0][:200]


_LETTERS = byte_letters()

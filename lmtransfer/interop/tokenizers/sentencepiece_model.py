"""Read a sentencepiece model file as data: its pieces, its algorithm, and its normalisation of text.

Fields and their numbers are those of sentencepiece_model.proto in google/sentencepiece, whose library does not expose
them. ``library_tokenizer`` in ``sentencepiece_library`` converts the result to the ``tokenizers`` library.

Layout (``Normalizer::DecodePrecompiledCharsMap`` in google/sentencepiece): the size of a trie in bytes, uint32; the
trie, a double array of uint32 units as the library darts-clone stores it; and the replacement strings, each ended by a
zero byte and found by its byte offset. A unit holds the byte that leads to it (bits 0 to 7), whether a string ends
there (bit 8), and the offset of its children (bits 10 to 30, in steps of 256 if bit 9 is set), or, if bit 31 is set,
the offset of a replacement string.

The wire format is that of https://protobuf.dev/programming-guides/encoding; groups, which are obsolete, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Literal

import numpy as np

from lmtransfer.errors import CheckpointError

_VARINT, _EIGHT_BYTES, _PREFIXED, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10

_ENDS, _FAR, _IS_PLACE = 1 << 8, 1 << 9, 1 << 31
_BYTES: Final = np.arange(256)
_LETTERS: Final = [bytes([byte]) for byte in range(256)]
_BLOCK = 4096  # number of nodes whose children are looked up at once
_MOST_NODES = 1 << 22  # maximum number of trie nodes; published rules have about 300,000
PieceKind = Literal["normal", "unknown", "control", "user_defined", "unused", "byte"]
Algorithm = Literal["unigram", "bpe"]
_PIECE_KINDS: Final[Mapping[int, PieceKind]] = {
    1: "normal", 2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte",
}  # fmt: skip
_ALGORITHMS: Final[Mapping[int, Algorithm]] = {1: "unigram", 2: "bpe"}
_OTHER_ALGORITHMS: Final = {3: "word", 4: "char"}
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3


class Message:
    """One message: for each field number the values in the order in which they were written.

    If a field is read as a single value, the last written value counts, as the format requires.

    Args:
        data: the serialised message.

    Raises:
        ValueError: the data are damaged, or are not a message.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        place = 0
        while place < len(data):
            tag, place = _varint(data, place)
            number, kind = tag >> 3, tag & 7
            value: int | bytes
            if kind == _VARINT:
                value, place = _varint(data, place)
            elif kind in (_PREFIXED, _FOUR_BYTES, _EIGHT_BYTES):
                size = 4 if kind == _FOUR_BYTES else 8
                if kind == _PREFIXED:
                    size, place = _varint(data, place)
                if size > len(data) - place:
                    raise ValueError(f"field {number} is incomplete")
                value, place = data[place : place + size], place + size
            else:
                raise ValueError(f"field {number} has the unsupported wire type {kind}")
            self._fields.setdefault(number, []).append(value)

    def integer(self, number: int, default: int) -> int:
        """A field of type int32, bool or enum.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, default)
        if not isinstance(value, int):
            raise ValueError(f"field {number} is not an integer")
        return value - (1 << 64) if value >= 1 << 63 else value

    def real(self, number: int, default: float) -> float:
        """A field of type float.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, None)
        if value is None:
            return default
        if not isinstance(value, bytes) or len(value) != 4:
            raise ValueError(f"field {number} is not a float")
        return float(struct.unpack("<f", value)[0])

    def data(self, number: int) -> bytes:
        """A field of type bytes, string or message; empty if it is missing.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, b"")
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is not a string of bytes")
        return value

    def messages(self, number: int) -> list[Message]:
        """A repeated field of messages.

        Raises:
            ValueError: the field has another type, or a message is damaged.
        """
        values = self._fields.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise ValueError(f"field {number} is not a message")
        return [Message(value) for value in values if isinstance(value, bytes)]

    def _last(self, number: int, default: int | bytes | None) -> int | bytes | None:
        return self._fields[number][-1] if number in self._fields else default


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if place >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number is longer than 10 bytes")


def read_charsmap(data: bytes) -> dict[str, str]:
    """Return the replacement of each string.

    Rules that pass this check are also safe for the ``tokenizers`` library, which does not check them.

    Args:
        data: the compiled rules, not empty.

    Raises:
        ValueError: the rules are damaged.
    """
    size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if size % 4 or not 4 <= size <= len(data) - 4 or not data.endswith(b"\0"):
        raise ValueError("its normalisation rules are damaged or incomplete")
    units, targets = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64), data[4 + size :]
    rules: dict[str, str] = {}
    level, prefixes = np.zeros(1, np.int64), [b""]
    num_nodes = 0
    while len(level):
        num_nodes += len(level)
        if num_nodes > _MOST_NODES:
            raise ValueError("its normalisation rules form a loop")
        below: list[np.ndarray] = []
        longer: list[bytes] = []
        for start in range(0, len(level), _BLOCK):
            nodes = level[start : start + _BLOCK]
            children = (nodes ^ _first_child(units[nodes]))[:, None] ^ _BYTES
            if children.max() >= len(units):
                raise ValueError("its normalisation rules contain an invalid offset")
            row, byte = np.nonzero(units[children] & (_IS_PLACE | 0xFF) == _BYTES)
            row, byte = row[byte > 0], byte[byte > 0]
            below.append(children[row, byte])
            longer += [prefixes[start + i] + _LETTERS[j] for i, j in zip(row.tolist(), byte.tolist(), strict=True)]
        level, prefixes = np.concatenate(below), longer
        ends = np.flatnonzero(units[level] & _ENDS)
        leaves = level[ends] ^ _first_child(units[level[ends]])
        if len(leaves) and leaves.max() >= len(units):
            raise ValueError("its normalisation rules contain an invalid offset")
        for i, unit in zip(ends.tolist(), units[leaves].tolist(), strict=True):
            rules[prefixes[i].decode()] = _target(targets, unit)
    return rules


def _target(targets: bytes, unit: int) -> str:
    place = unit & ~_IS_PLACE
    if unit < _IS_PLACE or place >= len(targets):
        raise ValueError("its normalisation rules contain an invalid offset")
    return targets[place : targets.index(b"\0", place)].decode()


def _first_child(units: np.ndarray) -> np.ndarray:
    """Return the offset of a node's children for byte 0; the exclusive or with the node's index gives their index."""
    return units >> 10 << ((units & _FAR) >> 6)


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary.

    Attributes:
        text: text of the piece, with U+2581 for a space.
        score: log-probability (unigram), or the negative rank of its merge (bpe).
        kind: kind of the piece. Text becomes "normal" or "user_defined" pieces, and "byte" pieces for "unknown".
    """

    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The content of a model file that determines the ids of a text.

    Attributes:
        pieces: the vocabulary, by id.
        algorithm: the algorithm that cuts a text into pieces.
        unk_id: id of the unknown piece.
        byte_fallback: whether unknown characters are written as byte pieces.
        charsmap: compiled normalisation rules; empty if text is not changed.
        rules: the same rules in readable form: the replacement of each string.
        add_dummy_prefix: whether a space is put before a text.
        remove_extra_whitespaces: whether spaces at both ends are dropped and several spaces become one.
    """

    pieces: tuple[Piece, ...]
    algorithm: Algorithm
    unk_id: int
    byte_fallback: bool
    charsmap: bytes
    rules: Mapping[str, str] = field(repr=False)
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_sentencepiece_model(model: bytes, *, source: str) -> SentencePieceModel:
    """Read a model file.

    Args:
        model: content of the file.
        source: path of the file, for messages.

    Raises:
        CheckpointError: the file is damaged or is not a sentencepiece model, or its kind is not supported: whole words
            or characters, spaces kept unchanged, or spaces at the ends of words.
    """
    try:
        return _model(Message(model), source)
    except ValueError as error:  # includes UnicodeDecodeError, for a piece that is not UTF-8
        raise CheckpointError(f"{source}: is not a sentencepiece model ({error}); copy it again") from None


def _model(message: Message, source: str) -> SentencePieceModel:
    trainer, normalizer = Message(message.data(_TRAINER)), Message(message.data(_NORMALIZER))
    algorithm = trainer.integer(3, 1)
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"{source}: model_type={_OTHER_ALGORITHMS.get(algorithm, algorithm)} is not supported: lmtransfer reads "
            "unigram and bpe"
        )
    if not normalizer.integer(5, 1):
        raise CheckpointError(
            f"{source}: escape_whitespaces=false is not supported: lmtransfer reads only models that mark spaces by "
            "U+2581"
        )
    if trainer.integer(24, 0):
        raise CheckpointError(
            f"{source}: treat_whitespace_as_suffix=true is not supported: lmtransfer reads only models whose words "
            "begin with their space"
        )
    pieces = tuple(_piece(piece) for piece in message.messages(_PIECES))
    unknown = [i for i, piece in enumerate(pieces) if piece.kind == "unknown"]
    if len(unknown) != 1:
        raise ValueError(f"exactly one piece must be unknown, but {len(unknown)} of its {len(pieces)} pieces are")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece occurs twice")
    charsmap = normalizer.data(2)
    return SentencePieceModel(
        pieces=pieces,
        algorithm=_ALGORITHMS[algorithm],
        unk_id=unknown[0],
        byte_fallback=bool(trainer.integer(35, 0)),
        charsmap=charsmap,
        rules=read_charsmap(charsmap) if charsmap else {},
        add_dummy_prefix=bool(normalizer.integer(3, 1)),
        remove_extra_whitespaces=bool(normalizer.integer(4, 1)),
    )


def _piece(message: Message) -> Piece:
    text, kind = message.data(1).decode(), message.integer(3, 1)
    if not text or kind not in _PIECE_KINDS:
        raise ValueError("a piece has no text" if not text else f"the piece {text} has the unsupported kind {kind}")
    score = message.real(2, 0.0)
    if not isfinite(score):
        raise ValueError(f"the piece {text} has the invalid score {score}")
    return Piece(text, score, _PIECE_KINDS[kind])

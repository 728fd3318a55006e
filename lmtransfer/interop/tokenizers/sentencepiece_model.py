"""Read a sentencepiece model file as data: its pieces, its algorithm, and its normalisation of text.

Fields and their numbers are those of sentencepiece_model.proto in google/sentencepiece, whose library does not expose
them. ``library_tokenizer`` in ``sentencepiece_library`` converts the result to the ``tokenizers`` library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Literal

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.charsmap import read_charsmap
from lmtransfer.interop.tokenizers.protobuf import Message

PieceKind = Literal["normal", "unknown", "control", "user_defined", "unused", "byte"]
Algorithm = Literal["unigram", "bpe"]

_PIECE_KINDS: Final[Mapping[int, PieceKind]] = {
    1: "normal", 2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte",
}  # fmt: skip
_ALGORITHMS: Final[Mapping[int, Algorithm]] = {1: "unigram", 2: "bpe"}
_OTHER_ALGORITHMS: Final = {3: "word", 4: "char"}
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3


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

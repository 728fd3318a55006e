"""Converts a sentencepiece model to the format of Hugging Face's ``tokenizers`` library.

The library differs from sentencepiece in the points below. This module corrects the first one, except for a few rules;
the others cannot be corrected. The converter of transformers corrects none of them.

- The library's ``Precompiled`` normalizer replaces a whole cluster (a letter with its accents) by the replacement of
  the cluster's first characters, so that decomposed text loses its accents. This module puts a mark before each
  character outside ASCII, so that every cluster is a single character. NFC then composes exactly the characters that
  rules for several characters would have composed, because other marks separate the remaining characters. This misses
  21 of the 225,276 rules of nmt_nfkc (letters added in Unicode 16), and 685 of the 226,684 rules of nmt_nfkc_cf (mostly
  styled capitals with accents, such as a double-struck I with a dot above).
- The library adds the scores of each word in float64, whereas sentencepiece adds the scores of the whole text in
  float32. If two ways to split a word are equally likely up to rounding, the library may choose the other one. With
  vocabularies of 8,192 pieces this happened in 3 to 8 of 28,341 lines (an encyclopedia, reviews, and novels in three
  languages), nearly all of which contained "...." or "!!!!!". With byte-pair encoding no line differed.
- The library never uses a piece of several characters if one of these characters is not itself a piece.
- The library drops the noncharacters U+10FFFE and U+10FFFF if the model normalizes text at all.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Final, Literal, cast
from unicodedata import combining

import numpy as np
import tokenizers
from sentencepiece import SentencePieceNormalizer, SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec, TrainerSpec
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.charsmap import read_sentencepiece

Prefix = Literal["first", "always"]
IdLayout = Literal["own", "fairseq"]
META: Final = "\u2581"

# Noncharacters; neither rules nor texts contain them.
_APART, _NOT_COMPOSED = "\U0010ffff", "\U0010fffe"
# A line feed gets no mark, because it forms a cluster with a preceding carriage return.
_EACH_CHARACTER = Regex(r"(?!\A)(?=[^\x00-\x09\x0b-\x7f])")
_NONE: Final = "[]"
_BYTE_PIECE = Regex("<(?=0x[0-9A-F]{2}>)")
#: Difference by which control pieces score below all other pieces, so that no text is encoded as a control piece.
_NEVER = 1e4
_MAX_RULES = 1 << 20  # published models have about 227,000
_LONGEST_RULE = 256  # in bytes


def library_tokenizer(
    model: bytes, *, source: str, prefix: Prefix = "first", layout: IdLayout = "own"
) -> tokenizers.Tokenizer:
    """Build a tokenizer that neither adds special tokens around a text nor recognizes them in a text.

    Args:
        prefix: where ``add_dummy_prefix`` puts a space: "first" means before a text, "always" means before a text and
            after each added token.
        layout: order of the ids: "own" means that of the model, "fairseq" that of XLM-R, with fairseq's four special
            tokens first and a mask last.
    """
    try:
        proto = _parse(model)
        steps = _normalizers(proto.normalizer_spec)
    except Exception as error:  # the libraries raise errors of many classes, including plain Exception
        raise CheckpointError(
            f"{source}: the file is damaged or not a sentencepiece model ({error}); download or copy it again"
        ) from None
    _check_kind(proto, source)
    if layout == "fairseq":
        _reorder_as_fairseq(proto, source)
    spec, byte_fallback = proto.normalizer_spec, proto.trainer_spec.byte_fallback
    library = tokenizers.Tokenizer(
        _unigram(proto) if proto.trainer_spec.model_type == TrainerSpec.UNIGRAM else _bpe(proto)
    )
    scheme = prefix if spec.add_dummy_prefix else "never"
    if spec.remove_extra_whitespaces:
        if not spec.add_dummy_prefix:
            steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r" +\z"), "")]
    elif spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))  # the pre-tokenizer adds no space to a text that begins with a space
        scheme = "never"
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=META, prepend_scheme=scheme, split=not any(META in piece.piece[1:] for piece in proto.pieces)
    )
    if byte_fallback:  # otherwise a text could contain the name of a byte piece
        byte_pieces = pre_tokenizers.Split(_BYTE_PIECE, "merged_with_previous")
        library.pre_tokenizer = pre_tokenizers.Sequence([library.pre_tokenizer, byte_pieces])
    spaces = decoders.Metaspace(replacement=META, prepend_scheme="always" if spec.add_dummy_prefix else "never")
    library.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if byte_fallback else spaces
    library.add_tokens(
        [AddedToken(piece.piece, normalized=False) for piece in proto.pieces if piece.type == piece.USER_DEFINED]
    )
    return library


def _parse(model: bytes) -> ModelProto:
    proto = read_sentencepiece(model)
    SentencePieceProcessor(model_proto=model)  # raises if two pieces are equal or there is no unknown piece
    return proto


def _check_kind(proto: ModelProto, source: str) -> None:
    trainer, problem = proto.trainer_spec, None
    if trainer.model_type not in (TrainerSpec.UNIGRAM, TrainerSpec.BPE):
        kind = TrainerSpec.ModelType.Name(trainer.model_type).lower()
        problem = f"model_type={kind} is not supported: lmtransfer reads unigram and bpe"
    elif not proto.normalizer_spec.escape_whitespaces:
        problem = "escape_whitespaces=false is not supported: lmtransfer reads only models that mark spaces with U+2581"
    elif trainer.treat_whitespace_as_suffix:
        problem = (
            "treat_whitespace_as_suffix=true is not supported: lmtransfer reads only models that put the space at the "
            "start of a word"
        )
    if problem:
        raise CheckpointError(f"{source}: {problem}")


def _reorder_as_fairseq(proto: ModelProto, source: str) -> None:
    """Put the pieces into fairseq's order: four special tokens first, and a mask last."""
    if [piece.piece for piece in proto.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(
            f"{source}: the vocabulary must begin with the pieces <unk>, <s>, </s>, as in XLM-R; the file may be "
            "damaged: download or copy it again"
        )
    unknown, begin, end = proto.pieces[:3]
    pad, mask = (ModelProto.SentencePiece(piece=text, type=begin.type) for text in ("<pad>", "<mask>"))
    pieces = [begin, pad, end, unknown, *proto.pieces[3:], mask]
    del proto.pieces[:]
    proto.pieces.extend(pieces)


def _normalizers(spec: NormalizerSpec) -> list[normalizers.Normalizer]:
    """Build the library's normalizers for a model's rules; none if the model does not normalize text."""
    if not spec.precompiled_charsmap:
        return []
    precompiled = normalizers.Precompiled(spec.precompiled_charsmap)
    own = SentencePieceNormalizer(normalizer_spec=spec.SerializeToString())  # raises if an offset is outside the trie
    _check_number_of_rules(spec.precompiled_charsmap)
    rules = dict(own.decompile())
    removed = _one_of([source for source, target in rules.items() if not target and len(source) == 1])
    pairs = {pair for source in rules for pair in pairwise(source)}
    composing = [normalizers.NFC()] if pairs else []
    steps: list[normalizers.Normalizer] = []
    if pairs:
        steps.append(normalizers.Replace(_boundaries(pairs, rules), _NOT_COMPOSED))
    if removed != _NONE:
        # The library computes wrong offsets if the first character of a text is removed.
        steps.append(normalizers.Replace(Regex(rf"\A{removed}+"), " " if spec.add_dummy_prefix else ""))
        steps.append(normalizers.Replace(Regex(removed), ""))
    steps += [*composing, normalizers.Replace(_EACH_CHARACTER, _APART), precompiled]
    steps += [normalizers.Replace(_APART, ""), *composing]
    return [*steps, normalizers.Replace(_NOT_COMPOSED, "")] if pairs else steps


def _check_number_of_rules(charsmap: bytes) -> None:
    """Check that the number of rules is not too large, because ``decompile`` follows every path in their trie.

    The format is the size of the trie in bytes as a uint32, followed by the trie, a double array of uint32 units as in
    darts-clone. A unit holds the byte that leads to it (bits 0 to 7) and the offset of its children (bits 10 to 30, in
    multiples of 256 if bit 9 is set); bit 31 marks the end of a string.
    """
    (size,) = struct.unpack_from("<I", charsmap)
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    nodes, paths = np.zeros(1, np.int64), cast(np.ndarray, np.ones(1))
    for _ in range(_LONGEST_RULE):
        below = nodes ^ units[nodes] >> 10 << ((units[nodes] & 1 << 9) >> 6)
        parents = [np.flatnonzero(units[below ^ byte] & (1 << 31 | 0xFF) == byte) for byte in range(1, 256)]
        children = np.concatenate([below[places] ^ byte for byte, places in enumerate(parents, start=1)])
        nodes, same = np.unique(children, return_inverse=True)
        paths = np.bincount(same, np.concatenate([paths[places] for places in parents]))
        if not len(nodes):
            return
        if paths.sum() > _MAX_RULES:
            break
    raise ValueError("there are too many normalization rules, or the rules contain a loop")


def _boundaries(pairs: Iterable[tuple[str, str]], rules: Mapping[str, str]) -> Regex:
    """Build a regular expression for the positions where NFC could compose or move a character but no rule does so."""
    before: dict[str, set[str]] = {character: set() for character in _combining()}
    for first, second in sorted(pairs):  # sorted, because the order of a set differs between processes
        before.setdefault(second, set()).add(first)
    for source, target in rules.items():
        if len(source) == 1 and target[:1] in before:
            before.setdefault(source, set())
    same: dict[frozenset[str], list[str]] = {}
    for second, firsts in before.items():
        same.setdefault(frozenset(firsts), []).append(second)
    cases = [
        f"(?={_one_of(seconds)})" + (f"(?<!{_one_of(firsts)})" if firsts else "") for firsts, seconds in same.items()
    ]
    return Regex(rf"(?!\A)(?={_one_of(before)})(?:{'|'.join(cases)})")


@cache
def _combining() -> tuple[str, ...]:
    return tuple(character for character in map(chr, range(sys.maxunicode)) if combining(character))


def _one_of(characters: Iterable[str]) -> str:
    points = sorted(map(ord, characters))
    starts = [i for i, point in enumerate(points) if not i or point != points[i - 1] + 1]
    runs = [(points[i], points[j - 1]) for i, j in pairwise([*starts, len(points)])]
    return "[" + "".join(f"\\x{{{i:x}}}" + (f"-\\x{{{j:x}}}" if i < j else "") for i, j in runs) + "]"


def _unigram(proto: ModelProto) -> models.Unigram:
    pieces = proto.pieces
    never = min((piece.score for piece in pieces if piece.type == piece.NORMAL), default=0.0) - _NEVER
    scores = [(piece.piece, piece.score if piece.type == piece.NORMAL else never) for piece in pieces]
    return models.Unigram(scores, unk_id=_unk_id(proto), byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto: ModelProto) -> models.BPE:
    """Build a model that merges two adjacent pieces if they form a piece, in descending order of that piece's score."""
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(scores, key=lambda text: -scores[text])
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return models.BPE(
        {piece.piece: i for i, piece in enumerate(proto.pieces)},
        merges,
        unk_token=proto.pieces[_unk_id(proto)].piece,
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def _unk_id(proto: ModelProto) -> int:
    return next(i for i, piece in enumerate(proto.pieces) if piece.type == piece.UNKNOWN)

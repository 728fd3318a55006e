"""Convert a sentencepiece model to a tokenizer of the ``tokenizers`` library, which Hugging Face's files contain.

The library gives the same tokens as sentencepiece, except for these points. Some are corrected here, some cannot be:

- Its ``Precompiled`` replaces a whole cluster (a letter and its accents) by the replacement of the first characters, so
  that decomposed text loses its accents. A mark before each character outside ASCII makes clusters of one character.
  NFC then composes what rules of several characters would have composed, and nothing else, because other marks keep the
  remaining characters apart. This misses 21 of the 225,276 rules of nmt_nfkc (letters that came with Unicode 16), and
  685 of the 226,684 rules of nmt_nfkc_cf (mostly styled capitals with accents, such as a double-struck I with a dot
  above).
- It adds scores in float64 and word by word; sentencepiece adds them in float32 over the whole text. If two ways to cut
  a word are equally likely except for rounding, either may be taken. With vocabularies of 8,192 pieces this happened in
  3 to 8 of 28,341 lines (encyclopaedia, reviews, novels in three languages), nearly all of them with "...." or
  "!!!!!". Byte-pair encoding differed in no line.
- A character that is not a piece is never joined with its neighbour in a piece of several characters.
- U+10FFFE and U+10FFFF, which are not characters, are dropped if the model normalises text at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Final, Literal
from unicodedata import combining

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from lmtransfer.interop.tokenizers.sentencepiece_model import SentencePieceModel

Prefix = Literal["first", "always"]
META: Final = "\u2581"

# Noncharacters: no rule contains them, and text does not contain them.
_APART, _NOT_COMPOSED = "\U0010ffff", "\U0010fffe"
# A line feed forms a cluster with a carriage return before it, so it gets no mark.
_EACH_CHARACTER = Regex(r"(?!\A)(?=[^\x00-\x09\x0b-\x7f])")
_NONE: Final = "[]"
_BYTE_PIECE = Regex("<(?=0x[0-9A-F]{2}>)")
#: Subtracted from the lowest score, so that text never becomes a piece that is not for text.
_NEVER = 1e4


def library_tokenizer(model: SentencePieceModel, *, prefix: Prefix = "first") -> tokenizers.Tokenizer:
    """Make the tokenizer, without special tokens around a text and without special tokens that text can contain.

    Args:
        model: the vocabulary and the rules.
        prefix: where ``add_dummy_prefix`` puts a space: "first" before a text only, "always" also after an added token.
    """
    library = tokenizers.Tokenizer(_unigram(model) if model.algorithm == "unigram" else _bpe(model))
    steps = _rules(model)
    scheme = prefix if model.add_dummy_prefix else "never"
    if model.remove_extra_whitespaces:
        if not model.add_dummy_prefix:
            steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r" +\z"), "")]
    elif model.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))  # the pre-tokenizer adds no space if the text begins with one
        scheme = "never"
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=META, prepend_scheme=scheme, split=not any(META in piece.text[1:] for piece in model.pieces)
    )
    if model.byte_fallback:  # otherwise a text could spell a byte piece
        byte_pieces = pre_tokenizers.Split(_BYTE_PIECE, "merged_with_previous")
        library.pre_tokenizer = pre_tokenizers.Sequence([library.pre_tokenizer, byte_pieces])
    spaces = decoders.Metaspace(replacement=META, prepend_scheme="always" if model.add_dummy_prefix else "never")
    library.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if model.byte_fallback else spaces
    library.add_tokens(
        [AddedToken(piece.text, normalized=False) for piece in model.pieces if piece.kind == "user_defined"]
    )
    return library


def _rules(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    if not model.charsmap:
        return []
    removed = _one_of([source for source, target in model.rules.items() if not target and len(source) == 1])
    pairs = {pair for source in model.rules for pair in pairwise(source)}
    composing = [normalizers.NFC()] if pairs else []
    steps: list[normalizers.Normalizer] = []
    if pairs:
        steps.append(normalizers.Replace(_boundaries(pairs, model.rules), _NOT_COMPOSED))
    if removed != _NONE:
        # The library computes wrong offsets if the first character of a text is removed.
        steps.append(normalizers.Replace(Regex(rf"\A{removed}+"), " " if model.add_dummy_prefix else ""))
        steps.append(normalizers.Replace(Regex(removed), ""))
    steps += [*composing, normalizers.Replace(_EACH_CHARACTER, _APART), normalizers.Precompiled(model.charsmap)]
    steps += [normalizers.Replace(_APART, ""), *composing]
    return [*steps, normalizers.Replace(_NOT_COMPOSED, "")] if pairs else steps


def _boundaries(pairs: Iterable[tuple[str, str]], rules: Mapping[str, str]) -> Regex:
    """Match the positions inside a text where NFC could compose or move a character, but no rule does.

    Args:
        pairs: neighbouring characters in the rules of several characters.
        rules: replacement of each string.
    """
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
    """A regular expression that matches one of several characters."""
    points = sorted(map(ord, characters))
    starts = [i for i, point in enumerate(points) if not i or point != points[i - 1] + 1]
    runs = [(points[i], points[j - 1]) for i, j in pairwise([*starts, len(points)])]
    return "[" + "".join(f"\\x{{{i:x}}}" + (f"-\\x{{{j:x}}}" if i < j else "") for i, j in runs) + "]"


def _unigram(model: SentencePieceModel) -> models.Unigram:
    never = min((piece.score for piece in model.pieces if piece.kind == "normal"), default=0.0) - _NEVER
    scores = [(piece.text, piece.score if piece.kind == "normal" else never) for piece in model.pieces]
    return models.Unigram(scores, unk_id=model.unk_id, byte_fallback=model.byte_fallback)


def _bpe(model: SentencePieceModel) -> models.BPE:
    """Make merges: two neighbours may be merged if they form a piece; pieces with a higher score come first."""
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == "normal"}
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(scores, key=lambda text: -scores[text])
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return models.BPE(
        {piece.text: i for i, piece in enumerate(model.pieces)},
        merges,
        unk_token=model.pieces[model.unk_id].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )

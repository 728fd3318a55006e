"""A sentencepiece model as a tokenizer of the ``tokenizers`` library, which Hugging Face's files hold.

The library computes like sentencepiece, but for what is mended here, and for what cannot be:

- Its ``Precompiled`` replaces a whole cluster (a letter and its accents) by what the first characters of it become, so
  that decomposed text loses its accents. A mark before each character outside ASCII makes clusters of one, and NFC
  composes what rules of several characters would have composed, and only that: other marks keep the rest apart. Of the
  225,276 rules of nmt_nfkc, 21 are missed so (letters that came with Unicode 16), and 685 of the 226,684 of nmt_nfkc_cf
  (mostly styled capitals with accents, such as a double-struck I with a dot above).
- It sums scores in float64 and word by word, sentencepiece in float32 over the whole text: of two ways to cut a word
  that are equally likely but for rounding, either may be taken. With vocabularies of 8,192 pieces this was so in 3 to 8
  of 28,341 lines (encyclopaedia, reviews, novels in three languages), nearly all of them with "...." or "!!!!!". Byte-
  pair encoding differed in none.
- A character that is no piece is never joined with its neighbour in a piece of several characters.
- U+10FFFE and U+10FFFF, which are no characters, are dropped where text is normalised at all.
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

# Noncharacters: no rule is about them, and no text has them.
_APART, _UNCOMPOSED = "\U0010ffff", "\U0010fffe"
# A line feed makes a cluster of a carriage return before it.
_EACH_CHARACTER = Regex(r"(?!\A)(?=[^\x00-\x09\x0b-\x7f])")
_NONE: Final = "[]"
_BYTE_PIECE = Regex("<(?=0x[0-9A-F]{2}>)")
#: Below the least likely piece, so that text never becomes a piece that is not for text.
_NEVER = 1e4


def library_tokenizer(model: SentencePieceModel, *, prefix: Prefix = "first") -> tokenizers.Tokenizer:
    """The tokenizer, without special tokens around a text and without any that text can spell.

    Args:
        model: the vocabulary and the rules.
        prefix: what the leading space of ``add_dummy_prefix`` is given to: a text, or also what follows an added token.
    """
    library = tokenizers.Tokenizer(_unigram(model) if model.algorithm == "unigram" else _bpe(model))
    steps = _rules(model)
    scheme = prefix if model.add_dummy_prefix else "never"
    if model.remove_extra_whitespaces:
        if not model.add_dummy_prefix:
            steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r" +\z"), "")]
    elif model.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))  # the pre-tokenizer would add none where there is one
        scheme = "never"
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=META, prepend_scheme=scheme, split=not any(META in piece.text[1:] for piece in model.pieces)
    )
    if model.byte_fallback:  # else a text could spell a byte piece
        spelt = pre_tokenizers.Split(_BYTE_PIECE, "merged_with_previous")
        library.pre_tokenizer = pre_tokenizers.Sequence([library.pre_tokenizer, spelt])
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
        steps.append(normalizers.Replace(_boundaries(pairs, model.rules), _UNCOMPOSED))
    if removed != _NONE:
        # The library loses its place where the first character of a text becomes nothing.
        steps.append(normalizers.Replace(Regex(rf"\A{removed}+"), " " if model.add_dummy_prefix else ""))
        steps.append(normalizers.Replace(Regex(removed), ""))
    steps += [*composing, normalizers.Replace(_EACH_CHARACTER, _APART), normalizers.Precompiled(model.charsmap)]
    steps += [normalizers.Replace(_APART, ""), *composing]
    return [*steps, normalizers.Replace(_UNCOMPOSED, "")] if pairs else steps


def _boundaries(pairs: Iterable[tuple[str, str]], rules: Mapping[str, str]) -> Regex:
    """The empty places within a text after which NFC could compose or move a character, though no rule does it.

    Args:
        pairs: neighbours in what the rules of several characters are about.
        rules: what strings become.
    """
    before: dict[str, set[str]] = {character: set() for character in _combining()}
    for first, second in sorted(pairs):  # the order of a set is another in each process
        before.setdefault(second, set()).add(first)
    for source, target in rules.items():
        if len(source) == 1 and target[:1] in before:
            before.setdefault(source, set())
    alike: dict[frozenset[str], list[str]] = {}
    for second, firsts in before.items():
        alike.setdefault(frozenset(firsts), []).append(second)
    cases = [
        f"(?={_one_of(seconds)})" + (f"(?<!{_one_of(firsts)})" if firsts else "") for firsts, seconds in alike.items()
    ]
    return Regex(rf"(?!\A)(?={_one_of(before)})(?:{'|'.join(cases)})")


@cache
def _combining() -> tuple[str, ...]:
    return tuple(character for character in map(chr, range(sys.maxunicode)) if combining(character))


def _one_of(characters: Iterable[str]) -> str:
    """A regular expression for one of several characters."""
    points = sorted(map(ord, characters))
    starts = [i for i, point in enumerate(points) if not i or point != points[i - 1] + 1]
    runs = [(points[i], points[j - 1]) for i, j in pairwise([*starts, len(points)])]
    return "[" + "".join(f"\\x{{{i:x}}}" + (f"-\\x{{{j:x}}}" if i < j else "") for i, j in runs) + "]"


def _unigram(model: SentencePieceModel) -> models.Unigram:
    never = min((piece.score for piece in model.pieces if piece.kind == "normal"), default=0.0) - _NEVER
    scores = [(piece.text, piece.score if piece.kind == "normal" else never) for piece in model.pieces]
    return models.Unigram(scores, unk_id=model.unk_id, byte_fallback=model.byte_fallback)


def _bpe(model: SentencePieceModel) -> models.BPE:
    """Any two neighbours that are a piece together may be merged, pieces of higher score first."""
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

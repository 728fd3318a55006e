"""A sentencepiece model as a tokenizer of the `tokenizers` library, against sentencepiece's own library."""

from __future__ import annotations

import io
import random
import struct
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from support.refusals import refuses
from tokenizers import normalizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_model import _boundaries, library_tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind",
    "f\u00fcnf \u00c4pfel und ein B\u00e4r: na\u00efve fa\u00e7ade, \u4e2d\u6587",
    "overlooked foxes keep the quickest jump of the separated dogs a secret",
] * 4


def _trained(**settings: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, minloglevel=2, hard_vocab_limit=False, num_threads=1,
        **{"vocab_size": 70, "character_coverage": 1.0, "normalization_rule_name": "identity", **settings},
    )  # fmt: skip
    return model.getvalue()


def _library(model: bytes, **settings: Any) -> tokenizers.Tokenizer:
    return library_tokenizer(model, source="spm.model", **settings)


def _plain(character: str) -> bool:
    return unicodedata.is_normalized("NFKC", character)


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nfkc_cf"])
def test_normalisation_of_every_character(rules: str) -> None:
    data = _trained(model_type="unigram", normalization_rule_name=rules, vocab_size=60)
    processor, normalizer = sentencepiece.SentencePieceProcessor(model_proto=data), _library(data).normalizer
    assert normalizer is not None
    sources = dict(sentencepiece.SentencePieceNormalizer(model_proto=data).decompile())
    points = [*range(1, 0x2581), *range(0x2582, 0x3400), *range(0xA000, 0xAC10), *range(0xD7A0, 0xD800),
              *range(0xE000, 0x1F300)]  # fmt: skip
    texts = [f"x{chr(i)}x" for i in points]
    texts += [
        f"x{letter}{mark}\u0323 {letter.upper()}{mark}" for letter in "aei\u03b1\u0438" for mark in "\u0301\u0308"
    ]
    known = [source for source in sources if source < "\uffff" and (not rules.endswith("_cf") or _plain(source[0]))]
    texts += [f"\u4e00{source}\u4e00" for source in known[::29]]
    theirs = [text.replace("\u2581", " ").removeprefix(" ") for text in processor.normalize(texts)]
    assert [normalizer.normalize_str(text) for text in texts] == theirs


def test_spaces_that_are_kept() -> None:
    texts = ["", "fox", " fox ", "the  fox", "  the fox  jumps"]
    for settings in ({}, {"add_dummy_prefix": False}):
        data = _trained(model_type="bpe", remove_extra_whitespaces=False, **settings)
        processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), _library(data)
        assert [library.encode(text).ids for text in texts] == [processor.encode(text) for text in texts]


def test_no_space_before_the_first_word() -> None:
    data = _trained(model_type="bpe", add_dummy_prefix=False, normalization_rule_name="nmt_nfkc")
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), _library(data)
    for text in ("", " ", "fox", "  the  fox ", "\x01fox", "\x01 fox\x01 "):
        assert library.encode(text).ids == processor.encode(text), text


def test_symbols_of_the_user() -> None:
    data = _trained(model_type="unigram", user_defined_symbols=["<sep>"])
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), _library(data)
    for text in ("the<sep>fox", "<sep>", "the dog<sep> the fox"):
        ours, theirs = ([i for i in ids if processor.id_to_piece(i) != "\u2581"]
                        for ids in (library.encode(text).ids, processor.encode(text)))  # fmt: skip
        assert ours == theirs


def test_pieces_that_are_not_for_text_are_not_spelt() -> None:
    data = _trained(
        model_type="unigram", byte_fallback=True, vocab_size=360, control_symbols=["[CLS]", "do"],
        required_chars="[]CLS<>0x41/sunkdo",
    )  # fmt: skip
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), _library(data)
    for text in ("[CLS] do", "<0x41> the dog does", "<s></s><unk>"):
        assert library.encode(text).ids == processor.encode(text)


def test_other_sorts_are_refused() -> None:
    for settings, names in (
        ({"model_type": "char"}, ("model_type=char", "unigram", "bpe")),
        ({"model_type": "word"}, ("model_type=word", "unigram", "bpe")),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, ("treat_whitespace_as_suffix=true",)),
    ):
        with refuses(CheckpointError, "spm.model", *names):
            _library(_trained(**settings))
    for junk in (b"", b"no model", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"):
        with refuses(CheckpointError, "spm.model", "sentencepiece"):
            _library(junk)


def test_a_torn_model_is_refused_or_whole(tmp_path: Path) -> None:
    rules = ["C4\t41 65", "FC\t75 65", "41 308\t41 65", "FB01\t66 69", "1\t"]
    (tmp_path / "rules.tsv").write_text("".join(f"{rule}\n" for rule in rules))
    data = _trained(model_type="unigram", normalization_rule_tsv=tmp_path / "rules.tsv", vocab_size=60)
    normalizer, draw, num_refused = _library(data).normalizer, random.Random(0), 0
    assert normalizer is not None
    assert normalizer.normalize_str("\xc4\xfc A\u0308\ufb01\x01") == "Aeue Aefi"
    for _ in range(300):
        place = draw.randrange(len(data))
        cut, changed = data[:place], data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        for torn in (cut, changed):
            try:
                library = _library(torn)
            except CheckpointError:
                num_refused += 1
                continue
            library.encode("the quick f\u00fcnf \u00c4pfel \uff21 \ufb01")  # not refused, and no panic
    assert num_refused > 200


def _with_rules(units: list[int]) -> bytes:
    """Build a model whose normalization rules are a trie of these units."""
    model = ModelProto.FromString(_trained(model_type="bpe"))
    model.normalizer_spec.precompiled_charsmap = struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + b"x\0"
    return model.SerializeToString()


@pytest.mark.parametrize("levels", [3, 60])
def test_more_rules_than_a_machine_can_list_are_refused(levels: int) -> None:
    """Build a trie with 2 ** levels strings: both nodes of each level have the same children."""
    units = [place & 0xFF ^ 1 for place in range(256 * (levels + 2))]  # labels that lead nowhere
    units[0] = 256 << 10
    for level in range(1, levels + 1):
        for byte in b"AB":
            place = 256 * level + byte
            units[place] = (place ^ 256 * (level + 1)) << 10 | byte
    last = 256 * (levels + 1) + ord("A")
    units[last] = (128 ^ ord("A")) << 10 | 1 << 8 | ord("A")
    units[last ^ 128 ^ ord("A")] = 1 << 31
    if levels > 3:
        with refuses(CheckpointError, "spm.model", "too many normalization rules"):
            _library(_with_rules(units))
        return
    normalizer = _library(_with_rules(units)).normalizer
    assert normalizer is not None
    assert normalizer.normalize_str("ABAA BBBA.ABAB") == "ABAA BBBA.ABAB"
    one = ModelProto.FromString(_with_rules(units)).normalizer_spec.SerializeToString()
    assert len(sentencepiece.SentencePieceNormalizer(normalizer_spec=one).decompile()) == 8


def test_a_loop_of_rules_is_refused() -> None:
    units = [place & 0xFF ^ 1 for place in range(512)]
    units[0], units[256 + 65] = 256 << 10, 65 << 10 | 65  # the child of this node is the node itself
    with refuses(CheckpointError, "spm.model", "too many normalization rules"):
        _library(_with_rules(units))


def test_pieces_numbered_as_in_fairseq() -> None:
    model = _trained(model_type="bpe")
    own, renumbered = _library(model), _library(model, layout="fairseq")
    ids = own.encode("the quick \u00f1 fox").ids
    assert 0 in ids
    assert renumbered.encode("the quick \u00f1 fox").ids == [i + 1 if i else 3 for i in ids]
    names = [renumbered.id_to_token(i) for i in (0, 1, 2, 3, renumbered.get_vocab_size() - 1)]
    assert names == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    with refuses(CheckpointError, "spm.model", "<unk>, <s>, </s>"):
        _library(_trained(model_type="bpe", unk_id=2, bos_id=0, eos_id=1), layout="fairseq")


def test_what_is_written_does_not_depend_on_the_order_of_a_set() -> None:
    """The order of a set differs between processes, so two exports of the same run would differ."""
    pairs, rules = [("a", "x"), ("b", "y")], {"ax": "c", "by": "d"}
    written = {normalizers.Replace(_boundaries(given, rules), "").__getstate__() for given in (pairs, pairs[::-1])}
    assert len(written) == 1

"""A sentencepiece model file read as data, against sentencepiece's own library."""

from __future__ import annotations

import io
import random
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from support.refusals import refuses
from tokenizers import normalizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_library import _boundaries, library_tokenizer
from lmtransfer.interop.tokenizers.sentencepiece_model import Message, SentencePieceModel, read_sentencepiece_model

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


def _read(model: bytes) -> SentencePieceModel:
    return read_sentencepiece_model(model, source="spm.model")


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
        {"model_type": "bpe", "normalization_rule_name": "identity"},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 330, "pad_id": 3,
         "normalization_rule_name": "nfkc"},
        {"model_type": "bpe", "control_symbols": ["[CLS]"], "user_defined_symbols": ["<sep>"], "unk_id": 2, "bos_id": 0,
         "eos_id": 1, "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    ],
)  # fmt: skip
def test_what_is_read_is_what_the_library_says(settings: dict[str, Any]) -> None:
    data = _trained(**settings)
    processor, model = sentencepiece.SentencePieceProcessor(model_proto=data), _read(data)
    assert [piece.text for piece in model.pieces] == [processor.id_to_piece(i) for i in range(len(processor))]
    assert [piece.score for piece in model.pieces] == [processor.get_score(i) for i in range(len(processor))]
    for i, piece in enumerate(model.pieces):
        kinds = {
            "unknown": processor.is_unknown(i), "control": processor.is_control(i), "byte": processor.is_byte(i),
            "unused": processor.is_unused(i),
        }  # fmt: skip
        assert [kind for kind, there in kinds.items() if there] == (
            [] if piece.kind in ("normal", "user_defined") else [piece.kind]
        )
    assert [piece.text for piece in model.pieces if piece.kind == "user_defined"] == settings.get(
        "user_defined_symbols", []
    )
    assert (model.algorithm, model.unk_id) == (settings["model_type"], processor.unk_id())
    assert model.byte_fallback is settings.get("byte_fallback", False)
    assert model.add_dummy_prefix is settings.get("add_dummy_prefix", True)
    assert model.remove_extra_whitespaces is settings.get("remove_extra_whitespaces", True)
    assert (model.charsmap == b"") is (settings.get("normalization_rule_name", "identity") == "identity")


def _plain(character: str) -> bool:
    return unicodedata.is_normalized("NFKC", character)


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf"])
def test_normalisation_of_every_character(rules: str) -> None:
    data = _trained(model_type="unigram", normalization_rule_name=rules, vocab_size=60)
    processor, model = sentencepiece.SentencePieceProcessor(model_proto=data), _read(data)
    normalizer = library_tokenizer(model).normalizer
    assert normalizer is not None
    assert model.rules["\uff21"] == ("a" if rules.endswith("_cf") else "A")
    assert (model.rules.get("\x01"), model.rules.get("x")) == ("" if "nmt" in rules else None, None)
    points = [*range(1, 0x2581), *range(0x2582, 0x3400), *range(0xA000, 0xAC10), *range(0xD7A0, 0xD800),
              *range(0xE000, 0x1F300)]  # fmt: skip
    texts = [f"x{chr(i)}x" for i in points]
    texts += [
        f"x{letter}{mark}\u0323 {letter.upper()}{mark}" for letter in "aei\u03b1\u0438" for mark in "\u0301\u0308"
    ]
    known = [source for source in model.rules if source < "\uffff" and (not rules.endswith("_cf") or _plain(source[0]))]
    texts += [f"\u4e00{source}\u4e00" for source in known[::29]]
    theirs = [text.replace("\u2581", " ").removeprefix(" ") for text in processor.normalize(texts)]
    assert [normalizer.normalize_str(text) for text in texts] == theirs


def test_spaces_that_are_kept() -> None:
    texts = ["", "fox", " fox ", "the  fox", "  the fox  jumps"]
    for settings in ({}, {"add_dummy_prefix": False}):
        data = _trained(model_type="bpe", remove_extra_whitespaces=False, **settings)
        processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), library_tokenizer(_read(data))
        assert [library.encode(text).ids for text in texts] == [processor.encode(text) for text in texts]


def test_no_space_before_the_first_word() -> None:
    data = _trained(model_type="bpe", add_dummy_prefix=False, normalization_rule_name="nmt_nfkc")
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), library_tokenizer(_read(data))
    for text in ("", " ", "fox", "  the  fox ", "\x01fox", "\x01 fox\x01 "):
        assert library.encode(text).ids == processor.encode(text), text


def test_symbols_of_the_user() -> None:
    data = _trained(model_type="unigram", user_defined_symbols=["<sep>"])
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), library_tokenizer(_read(data))
    for text in ("the<sep>fox", "<sep>", "the dog<sep> the fox"):
        ours, theirs = ([i for i in ids if processor.id_to_piece(i) != "\u2581"]
                        for ids in (library.encode(text).ids, processor.encode(text)))  # fmt: skip
        assert ours == theirs


def test_pieces_that_are_not_for_text_are_not_spelt() -> None:
    data = _trained(
        model_type="unigram", byte_fallback=True, vocab_size=360, control_symbols=["[CLS]", "do"],
        required_chars="[]CLS<>0x41/sunkdo",
    )  # fmt: skip
    processor, library = sentencepiece.SentencePieceProcessor(model_proto=data), library_tokenizer(_read(data))
    for text in ("[CLS] do", "<0x41> the dog does", "<s></s><unk>"):
        assert library.encode(text).ids == processor.encode(text)


def test_other_sorts_are_refused() -> None:
    for settings, names in (
        ({"model_type": "char"}, ("model_type=char", "unigram", "bpe")),
        ({"model_type": "word"}, ("model_type=word", "unigram", "bpe")),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, ("treat_whitespace_as_suffix=true",)),
    ):
        with refuses(CheckpointError, "spm.model", *names):
            _read(_trained(**settings))
    for junk in (b"", b"no model", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"):
        with refuses(CheckpointError, "spm.model", "sentencepiece"):
            _read(junk)


def test_a_torn_model_is_refused_or_whole(tmp_path: Path) -> None:
    rules = ["C4\t41 65", "FC\t75 65", "41 308\t41 65", "FB01\t66 69", "1\t"]
    (tmp_path / "rules.tsv").write_text("".join(f"{rule}\n" for rule in rules))
    data = _trained(model_type="unigram", normalization_rule_tsv=tmp_path / "rules.tsv", vocab_size=60)
    whole, draw, num_refused = _read(data), random.Random(0), 0
    assert whole.rules == {"\xc4": "Ae", "\xfc": "ue", "A\u0308": "Ae", "\ufb01": "fi", "\x01": ""}
    for _ in range(300):
        place = draw.randrange(len(data))
        cut, changed = data[:place], data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        for torn in (cut, changed):
            try:
                library = library_tokenizer(_read(torn))
            except CheckpointError:
                num_refused += 1
                continue
            library.encode("the quick f\u00fcnf \u00c4pfel \uff21 \ufb01")  # not refused, and no panic
    assert num_refused > 200


def test_fields_of_the_wire() -> None:
    message = Message(bytes([0x08, 0x96, 0x01, 0x12, 2, 0x08, 7, 0x1D, 0, 0, 0x80, 0x3F, 0x08, 5, 0x12, 0]))
    assert message.integer(1, 0) == 5  # the last one counts
    assert message.real(3, 0.0) == 1.0
    assert [inner.integer(1, 9) for inner in message.messages(2)] == [7, 9]
    assert (message.integer(8, 3), message.real(8, 0.5), message.data(8), message.messages(8)) == (3, 0.5, b"", [])
    assert Message(b"\x08" + b"\xff" * 9 + b"\x01").integer(1, 0) == -1
    for wrong in (lambda: message.integer(2, 0), lambda: message.real(1, 0.0), lambda: message.data(1),
                  lambda: message.messages(1), lambda: Message(b"\x0b"), lambda: Message(b"\x0d\0")):  # fmt: skip
        with refuses(ValueError, "field"):
            wrong()


def test_renumbered_pieces() -> None:
    model = _read(_trained(model_type="bpe"))
    moved = replace(model, pieces=(*model.pieces[3:], *model.pieces[:3]), unk_id=len(model.pieces) - 3)
    ids = library_tokenizer(model).encode("the quick \u00f1 fox").ids
    assert library_tokenizer(moved).encode("the quick \u00f1 fox").ids == [(i - 3) % len(model.pieces) for i in ids]


def test_what_is_written_does_not_depend_on_the_order_of_a_set() -> None:
    """Which is another in each process: two exports of one run would differ."""
    pairs, rules = [("a", "x"), ("b", "y")], {"ax": "c", "by": "d"}
    written = {normalizers.Replace(_boundaries(given, rules), "").__getstate__() for given in (pairs, pairs[::-1])}
    assert len(written) == 1

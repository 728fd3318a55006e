"""Damaged normalization rules end in one line: no abort, no panic, no memory of someone else."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable

import pytest
import sentencepiece
from fakes import published_tokenizers as toys
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_model import library_tokenizer
from lmtransfer.tokenizers.base import SPECIALS
from lmtransfer.tokenizers.charsmap import check_charsmap
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer


def _units(count: int, changes: dict[int, int], texts: bytes = b"x\0") -> bytes:
    """Rules of a trie that leads nowhere, except for some units."""
    units = [0x41 ^ 1 ^ (place & 0xFF) for place in range(count)]
    for place, unit in changes.items():
        units[place] = unit
    return struct.pack(f"<{count + 1}I", 4 * count, *units) + texts


def _rule(value: int, texts: bytes = b"x\0") -> bytes:
    """One rule for "A": the root's children are in block 1, and the place of the rule's text in block 2."""
    place = 256 ^ 0x41
    return _units(768, {0: 256 << 10, place: (place ^ 512) << 10 | 1 << 8 | 0x41, 512: 1 << 31 | value}, texts)


DAMAGED: dict[str, bytes] = {
    "no bytes of the trie's size": b"\x01",
    "an empty trie": struct.pack("<I", 0),
    "a trie of one unit": struct.pack("<II", 4, 0) + b"x\0",
    "a trie of 60 GB in a short file": struct.pack("<I", 0xFFFFFC00) + b"x\0",
    "a root that leads out": _units(256, {0: 0x1FFFFF << 10}),
    "all bits set": struct.pack("<I", 1024) + b"\xff\xff\xff\x7f" * 256 + b"x\0",
    "a node that leads out": _units(512, {0: 256 << 10, 300: 0x3FFF << 10 | 300 & 0xFF}),
    "a rule without a text": _rule(7),
    "a rule that leads far out": _rule(0x7FFFFFFF),
    "no texts": _rule(0, b""),
    "a text without an end": _rule(0, b"xy"),
    "a text that is not UTF-8": _rule(0, b"\xff\0"),
    "a rule that leads into a character": _rule(1, "\xe9\0".encode()),
    "a rule that writes a book": _rule(0, b"x" * 5000 + b"\0"),
}


def _own(change: Callable[[ModelProto], None]) -> bytes:
    proto = ModelProto()
    for number, piece in enumerate([*SPECIALS, "\u2581", *"aAxyz"]):
        kind = 2 if number == 0 else 3 if number < len(SPECIALS) else 1
        proto.pieces.add(piece=piece, score=-float(number), type=kind)
    proto.trainer_spec.model_type, proto.trainer_spec.vocab_size = 1, len(proto.pieces)
    proto.trainer_spec.unk_id = 0
    change(proto)
    return proto.SerializeToString()


def test_whole_rules_are_applied() -> None:
    check_charsmap(_rule(0))
    model = _own(lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", _rule(0)))
    assert sentencepiece.SentencePieceProcessor(model_proto=model).normalize("aA") == "\u2581ax"
    tokenizer = SentencePieceTokenizer(model)
    assert tokenizer.decode(tokenizer.encode("aA").ids.tolist()) == "ax"


@pytest.mark.parametrize("name", list(DAMAGED))
def test_damaged_rules_are_refused_in_every_file(name: str) -> None:
    with pytest.raises(ValueError, match="rule|trie|utf-8"):
        check_charsmap(DAMAGED[name])
    for spec in ("normalizer_spec", "denormalizer_spec"):
        model = _own(lambda proto, spec=spec: setattr(getattr(proto, spec), "precompiled_charsmap", DAMAGED[name]))
        with refuses(CheckpointError, "damaged"):
            SentencePieceTokenizer(model)
        with refuses(CheckpointError, "x.model", "damaged"):
            library_tokenizer(model, source="x.model")
    described = json.loads(toys.model_of("wordpiece"))
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(DAMAGED[name]).decode()}
    for normalizer in (step, {"type": "Sequence", "normalizers": [{"type": "NFC"}, step]}):
        described["normalizer"] = normalizer
        with refuses(CheckpointError, "damaged"):
            PublishedTokenizer(json.dumps(described).encode(), specials=toys.BERT)

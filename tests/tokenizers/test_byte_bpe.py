"""The byte-level tokenizer: a plain implementation as reference, spans of odd characters, specials, files, training."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.objectives.corruption.words import WholeWords
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer

CONF = Path(__file__).parents[2] / "conf" / "tokenizer"
SPELT = "[MASK] [CLS] and [SEP] or [UNK], <unk> <s> </s> <0x41> [mask]x[cls]"
TEXT = [
    "the quick brown fox jumps over the lazy dog; it's quick, isn't it?",
    "A brown dog and a quick fox were lazy in 1984, and the fox jumped over the dog 12 times",
    "le caf\u00e9 co\u00fbte d\u00e9j\u00e0 cher, \ud55c\uad6d\uc5b4 \ud55c\uad6d \u4e2d\u6587\u4e2d\u6587",
    SPELT,
]
NFD = unicodedata.normalize("NFD", "Le caf\u00e9 na\u00efve co\u00fbte d\u00e9j\u00e0")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
KOREAN = "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8"
ODD = [NFD, f"the {FAMILY} sea\U0001f600", KOREAN, unicodedata.normalize("NFD", KOREAN), "\u0130stanbul \u1e9e\u03a3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ByteBpeTokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    return folder, ByteBpeTrainer(vocab_size=360).train(iter(TEXT * 5), folder)


def plain_ids(folder: Path, text: str) -> list[int]:
    """GPT-2's splitting and merging, one pair at a time, over bytes."""
    regex = pytest.importorskip("regex")
    model: dict[str, Any] = json.loads((folder / "byte_bpe.json").read_text(encoding="utf-8"))["model"]
    visible = [b for b in range(256) if chr(b).isprintable() and not chr(b).isspace() and b != 0xAD]
    letter = {b: chr(b) for b in visible}
    letter |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in visible)}
    rank = {tuple(pair): i for i, pair in enumerate(model["merges"])}
    ids: list[int] = []
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for part in regex.findall(pattern, "".join(f" {word}" for word in text.split())):
        pieces = [letter[b] for b in part.encode()]
        while pairs := [
            (rank[pair], i) for i, pair in enumerate(zip(pieces, pieces[1:], strict=False)) if pair in rank
        ]:
            _, i = min(pairs)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        ids.extend(model["vocab"][piece] for piece in pieces)
    return ids


def test_ids_are_those_of_the_plain_implementation(trained: tuple[Path, ByteBpeTokenizer]) -> None:
    folder, tokenizer = trained
    texts = [*TEXT, *ODD, "  two  spaces\n\nand\ta tab\u00a0", "", "x" * 300, "\x00\x01"]
    texts += ["".join(random.Random(i).choices("".join(TEXT) + " \n.'\u00e9\U0001f600", k=60)) for i in range(100)]
    for text, ids in zip(texts, tokenizer.encode_ids(texts), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == plain_ids(folder, text) == tokenizer.encode(text).ids.tolist(), text


@pytest.mark.parametrize("text", ODD)
def test_spans_are_whole_characters_whatever_their_number_of_tokens(
    trained: tuple[Path, ByteBpeTokenizer], text: str
) -> None:
    _, tokenizer = trained
    encoding = tokenizer.encode(text)
    several = 0
    for token, (start, end) in zip(encoding.ids.tolist(), encoding.offsets.tolist(), strict=True):
        piece, span = tokenizer._bytes[token - 4].lstrip(b" "), text[start:end]
        assert piece in span.encode()  # the span holds the token's bytes and no further character
        assert len(span) <= max(1, len(piece)) if piece else not span
        several += len(span.encode()) > len(piece)
    assert several
    assert tokenizer.decode(encoding.ids) == " ".join(text.split())


def test_lowercase_keeps_the_spans_of_characters_that_become_two(tmp_path: Path) -> None:
    tokenizer = ByteBpeTrainer(vocab_size=260, lowercase=True, allow_fewer=True).train(iter(TEXT), tmp_path)
    encoding = tokenizer.encode("A \u0130B")
    assert tokenizer.decode(encoding.ids) == "a i\u0307b"
    assert [tokenizer.piece(i) for i in encoding.ids] == ["\u2581", "a", "\u2581", "i", "<0xCC>", "<0x87>", "b"]
    assert encoding.offsets.tolist() == [[0, 0], [0, 1], [2, 2], [2, 3], [2, 3], [2, 3], [3, 4]]


def test_it_is_a_tokenizer(trained: tuple[Path, ByteBpeTokenizer]) -> None:
    _, tokenizer = trained
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 3)
    assert [tokenizer.piece(i) for i in range(4)] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (tokenizer.num_pieces, tokenizer.vocab_size) == (360, 384)
    assert tokenizer.is_special.tolist() == [True] * 4 + [False] * 356 + [True] * 24
    pieces = [tokenizer.piece(i) for i in range(4, 360)]
    assert len(set(pieces)) == 356
    assert tokenizer.starts_word[4:360].tolist() == [piece[0] == "\u2581" for piece in pieces]
    assert not tokenizer.starts_word[360:].any()
    assert tokenizer.piece(383) == "[unused383]"
    with refuses(ValueError, "384"):
        tokenizer.decode([384])


def test_nothing_is_unknown_and_text_cannot_spell_specials(trained: tuple[Path, ByteBpeTokenizer]) -> None:
    _, tokenizer = trained
    for text in (SPELT, "[MASK]", "\ud800 \U0001f600 \x00 \u4e2d"):
        assert not tokenizer.is_special[tokenizer.encode(text).ids].any()
        assert not tokenizer.is_special[tokenizer.encode_ids([text])[0]].any()
    assert tokenizer.decode([1, *tokenizer.encode("The  fox\n").ids, 2, 3]) == "[CLS] The fox [SEP] [MASK]"
    assert tokenizer.decode([]) == ""
    half = tokenizer.encode("\U0001f600").ids[:-1]
    assert tokenizer.decode(half) == "\ufffd"


def test_masks_of_whole_words_are_unions_of_words(trained: tuple[Path, ByteBpeTokenizer]) -> None:
    _, tokenizer = trained
    selection = WholeWords()
    selection.bind(tokenizer)
    text = " ".join([*TEXT, *ODD])
    encoding = tokenizer.encode(text)
    word_of_token = np.cumsum(encoding.word_starts)
    assert word_of_token[-1] == len(text.split())
    hidden = set()
    for draw in range(200):
        chosen = selection.choose(encoding.ids, np.arange(len(encoding.ids)), 12, np.random.default_rng(draw))
        words = np.unique(word_of_token[chosen.positions])
        assert np.flatnonzero(np.isin(word_of_token, words)).tolist() == chosen.positions.tolist()
        assert len(np.unique(chosen.units)) == len(words)
        hidden.update(words.tolist())
    assert len(hidden) > 0.8 * len(text.split())


def test_faults_are_named(trained: tuple[Path, ByteBpeTokenizer]) -> None:
    whole = trained[1].model_bytes()
    for broken in (b"no model", b"{}", whole.replace(b'"added_tokens": []', b'"added_tokens": [1]')):
        assert broken != whole
        with refuses(CheckpointError, "byte-level"):
            ByteBpeTokenizer(broken)
    with refuses(CheckpointError, "[BOS], [CLS]", "[UNK]"):
        ByteBpeTokenizer(whole.replace(b"[UNK]", b"[BOS]"))

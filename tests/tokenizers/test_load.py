"""All kinds of tokenizers: saving, loading and pickling, empty texts, names of special tokens in a text."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import published_tokenizers as toys
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.tokenizers.trainers import (
    ByteBpeTrainer,
    SentencePieceTrainer,
    TokenizerTrainer,
    WordPieceTrainer,
    WordTokenizerTrainer,
)

SPELT = "[MASK] [CLS] and [SEP] or [UNK], <unk> <s> </s>x<mask> <pad><|endoftext|> <0x41> [mask]x[cls] [unused0]"
LINES = [*toys.TEXT, SPELT] * 3
TRAINERS: dict[str, TokenizerTrainer] = {
    "unigram": SentencePieceTrainer(kind="unigram", vocab_size=150, allow_fewer=True, character_coverage=1.0),
    "bpe": SentencePieceTrainer(kind="bpe", vocab_size=150, allow_fewer=True, character_coverage=1.0),
    "byte_bpe": ByteBpeTrainer(vocab_size=300),
    "wordpiece": WordPieceTrainer(vocab_size=150),
    "wordpiece cased": WordPieceTrainer(vocab_size=150, lowercase=False),
    "words": WordTokenizerTrainer(vocab_size=40),
}
KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    **{
        kind: lambda folder, trainer=trainer: trainer.train(iter(LINES), folder)  # type: ignore[misc]
        for kind, trainer in TRAINERS.items()
    },
    **{f"published {kind}": lambda _, kind=kind: toys.published(kind, vocab_size=500) for kind in toys.KINDS},  # type: ignore[misc]
    "extended": lambda _: ExtendedTokenizer(toys.published("wordpiece"), ["seaboat", "Covid-19"]),
    "extended twice": lambda folder: ExtendedTokenizer(KINDS["extended"](folder), ["zeppelin"]),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))


def test_saved_loaded_and_pickled_it_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "tokenizer"
    tokenizer.save(folder)
    text = f"{SPELT} The seaboat, caf\u00e9 and Covid-19."
    for again in (load_tokenizer(folder), pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is type(tokenizer)
        for name in ("fingerprint", "vocab_size", "num_pieces", "training", "cls_id", "mask_id", "pad_id"):
            assert getattr(again, name) == getattr(tokenizer, name), name
        for name in ("is_special", "starts_word", *(["characters"] if isinstance(again, CharacterTokenizer) else [])):
            np.testing.assert_array_equal(getattr(again, name), getattr(tokenizer, name))
        np.testing.assert_array_equal(again.encode(text).ids, tokenizer.encode(text).ids)
        np.testing.assert_array_equal(again.encode_ids([text])[0], tokenizer.encode(text).ids)
        assert again.decode(again.encode(text).ids) == tokenizer.decode(tokenizer.encode(text).ids)
    model = folder / tokenizer.model_file
    model.write_bytes(model.read_bytes()[:-1])
    with refuses(CheckpointError, str(model), "sha256"):
        load_tokenizer(folder)
    model.unlink()
    with refuses(CheckpointError, str(model)):
        load_tokenizer(folder)


def test_texts_without_a_word_give_no_tokens(tokenizer: Tokenizer) -> None:
    blanks = [""] if tokenizer.kind == "published" else ["", "  \n\t", "\u00a0"]
    for text in blanks:
        encoding = tokenizer.encode(text)
        assert (encoding.ids.shape, encoding.offsets.shape, encoding.word_starts.shape) == ((0,), (0, 2), (0,))
        assert (encoding.ids.dtype, encoding.offsets.dtype) == (np.int32, np.int32)
    assert [len(ids) for ids in tokenizer.encode_ids([*blanks, "fox"])][:-1] == [0] * len(blanks)
    assert tokenizer.encode_ids([]) == []
    assert tokenizer.decode([]) == ""


def test_no_text_can_spell_a_special_token(tokenizer: Tokenizer) -> None:
    for text in (SPELT, "[MASK]", "[CLS] a", "<mask>", "\ud800 \U0001f600 \x00 \u4e2d"):
        ids = tokenizer.encode(text).ids
        assert not tokenizer.is_special[ids[ids != tokenizer.unk_id]].any(), text
        np.testing.assert_array_equal(tokenizer.encode_ids([text])[0], ids)
    with refuses(ValueError, f"token id {tokenizer.vocab_size}"):
        tokenizer.piece(tokenizer.vocab_size)
    if tokenizer.num_pieces < tokenizer.vocab_size:
        assert tokenizer.piece(tokenizer.num_pieces) == f"[unused{tokenizer.num_pieces}]"


def test_faults_of_the_description_are_named(tmp_path: Path) -> None:
    description = tmp_path / "tokenizer.json"
    with refuses(CheckpointError, str(description)):
        load_tokenizer(tmp_path)
    KINDS["words"](tmp_path)
    described = json.loads(description.read_text())
    for content, names in (
        (json.dumps({**described, "kind": "runes"}), ("'runes'", "sentencepiece")),
        ("[1", (str(description), "JSON")),
        ("[1]", (str(description), "mapping")),
    ):
        description.write_text(content)
        with refuses(CheckpointError, *names):
            load_tokenizer(tmp_path)

"""The sentencepiece tokenizer: special tokens, saving and loading, decoding, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.trainers import SentencePieceTrainer

SPELT = "[MASK] [CLS] and [SEP] or [UNK], <unk> <s> </s> <0x41> [mask]x[cls]"

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "a brown dog and a quick fox were lazy, and the fox jumped over the dog",
    "quickly the dogs jumped, lazily the foxes looked over the browned grass",
    "overlooked foxes masking the quickest jump of the separated dogs",
]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    # The text contains names of special tokens: they may become pieces of letters, but never the special tokens.
    lines = [SPELT, *TEXT] * 5
    trainer = SentencePieceTrainer(kind=request.param, vocab_size=60, lowercase=True, character_coverage=1.0)
    return folder, trainer.train(iter(lines), folder)


def test_it_is_a_tokenizer(trained: tuple[Path, Tokenizer]) -> None:
    _, tokenizer = trained
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 3)
    assert [tokenizer.piece(i) for i in range(4)] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (tokenizer.num_pieces, tokenizer.vocab_size) == (60, 64)
    assert tokenizer.is_special.tolist() == [True] * 4 + [False] * 56 + [True] * 4
    assert tokenizer.starts_word.shape == (64,)
    pieces = [tokenizer.piece(i) for i in range(4, 60)]
    assert tokenizer.starts_word[4:60].tolist() == [piece[0] == "\u2581" for piece in pieces]
    assert not tokenizer.starts_word[60:].any()
    assert len(set(pieces)) == 56


def test_unknown_characters_become_unk(trained: tuple[Path, Tokenizer]) -> None:
    _, tokenizer = trained
    assert tokenizer.decode(tokenizer.encode("the \u4e2d\u6587 fox").ids) == "the [UNK] fox"


def test_bytes_in_place_of_unk(tmp_path: Path) -> None:
    trainer = SentencePieceTrainer(kind="unigram", vocab_size=300, byte_fallback=True, allow_fewer=True)
    tokenizer = trainer.train(iter(["the quick brown fox jumps over the lazy dog"] * 4), tmp_path)
    ids = tokenizer.encode("the \u4e2d\u6587 fox").ids
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == "the \u4e2d\u6587 fox"
    spelt = tokenizer.encode("<0x41>").ids
    assert tokenizer.decode(spelt) == "<0x41>"
    assert len(spelt) > 2


def test_decode(trained: tuple[Path, Tokenizer]) -> None:
    _, tokenizer = trained
    ids = tokenizer.encode("The quick brown FOX").ids.tolist()
    assert tokenizer.decode(ids) == "the quick brown fox"
    assert tokenizer.decode([1, *ids, 2, 3]) == "[CLS] the quick brown fox [SEP] [MASK]"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([61]) == "[unused61]"
    with refuses(ValueError, "64"):
        tokenizer.decode([64])


def test_a_model_with_other_specials_is_refused(tmp_path: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a few words of text"] * 5), model_prefix=str(tmp_path / "m"), vocab_size=20,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    with refuses(CheckpointError, "sentencepiece"):
        SentencePieceTokenizer(b"no model")
    with refuses(CheckpointError, "<unk>, <s>, </s>", "[UNK], [CLS]"):
        SentencePieceTokenizer((tmp_path / "m.model").read_bytes())

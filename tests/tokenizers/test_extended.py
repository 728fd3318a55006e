"""The user's words as tokens: ids and spans, only whole words, saving, the list of words, and embedding rows."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import published_tokenizers as toys
from fakes.published_tokenizers import train_wordpiece
from support.refusals import refuses
from tokenizers.normalizers import BertNormalizer
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.errors import CheckpointError, DataError
from lmtransfer.interop.added_tokens import extend_rows, extend_weights, vocabulary_tensors
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import CHINESE, ExtendedTokenizer, read_words
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer
from lmtransfer.tokenizers.words import WordTokenizer

WORDS = ["seaboat", "Covid-19", "covid", "C++", ".net", "caf\u00e9s", "\u4e2d\u6587\u5b57", "\u1e9e\u00df"]


def sentencepiece(folder: Path) -> Tokenizer:
    trainer = SentencePieceTrainer(
        kind="unigram", vocab_size=150, lowercase=False, character_coverage=1.0, allow_fewer=True
    )
    return trainer.train(iter(toys.TEXT), folder)


BASES: dict[str, Callable[[Path], Tokenizer]] = {
    "own wordpiece": lambda folder: train_wordpiece(toys.TEXT, vocab_size=150),
    "own byte_bpe": lambda folder: ByteBpeTrainer(vocab_size=300).train(iter(toys.TEXT), folder),
    "own sentencepiece": sentencepiece,
    "twice": lambda folder: ExtendedTokenizer(toys.published("wordpiece"), ["zeppelin"]),
    **{kind: lambda folder, kind=kind: toys.published(kind) for kind in toys.KINDS},  # type: ignore[misc]
}


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return BASES[request.param](tmp_path_factory.mktemp("tokenizer"))


def test_text_without_added_words_is_as_before(base: Tokenizer) -> None:
    tokenizer = ExtendedTokenizer(base, WORDS)
    rng = random.Random(0)
    parts = [
        "seaboats",
        "xcovid",
        "C++11",
        "a.net",
        " ",
        "\n",
        "the",
        "\u00e9",
        ",",
        "\u0301",
        "\ud800",
        "_",
        "Covid-1",
    ]
    texts = [*toys.TEXT, "", " ", *("".join(rng.choices(parts, k=7)) for _ in range(200))]
    pattern = re.compile(r"(?<!\w)(?:seaboat|covid(?:-19)?|c\+\+|\.net)(?!\w)", re.IGNORECASE)
    texts = [text for text in texts if not pattern.search(text)]
    assert len(texts) > 100
    for text, ids, expected in zip(texts, tokenizer.encode_ids(texts), base.encode_ids(texts), strict=True):
        assert ids.tolist() == expected.tolist(), text
        ours, theirs = tokenizer.encode(text), base.encode(text)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.offsets, theirs.offsets)
        np.testing.assert_array_equal(ours.word_starts, theirs.word_starts)


def test_added_words_are_one_token_each(base: Tokenizer) -> None:
    tokenizer = ExtendedTokenizer(base, WORDS)
    assert isinstance(tokenizer, Tokenizer)
    first = base.num_pieces
    assert [tokenizer.piece(first + i) for i in range(len(WORDS))] == WORDS
    text = "the seaboat, (covid) and Covid-19 in C++ or .net \u4e2d\u6587\u5b57;seaboat seaboat\n"
    encoding = tokenizer.encode(text)
    added = encoding.ids >= first
    spans = [text[start:end] for start, end in encoding.offsets[added].tolist()]
    expected = ["seaboat", "covid", "Covid-19", "C++", ".net", "\u4e2d\u6587\u5b57", "seaboat", "seaboat"]
    assert spans == expected
    assert [WORDS[i - first] for i in encoding.ids[added].tolist()] == expected
    assert (np.diff(encoding.offsets, axis=0) >= 0).all()
    covered = {i for start, end in encoding.offsets.tolist() for i in range(start, end)}
    assert {text[i] for i in range(len(text)) if i not in covered} <= {" ", "\n"}
    assert encoding.word_starts[added].all()
    assert (encoding.ids.dtype, encoding.offsets.dtype) == (np.int32, np.int32)
    rest = ["the", ", (", ") and", " in", " or", ";", "\n"]  # the text between them, encoded alone
    assert encoding.ids[~added].tolist() == np.concatenate(base.encode_ids(rest)).tolist()
    np.testing.assert_array_equal(tokenizer.encode_ids([text])[0], encoding.ids)


def test_the_vocabulary_grows_as_the_base_counts(base: Tokenizer) -> None:
    tokenizer = ExtendedTokenizer(base, WORDS)
    is_own = base.vocab_size % 64 == 0
    assert tokenizer.num_pieces == base.num_pieces + len(WORDS)
    needed = -(-tokenizer.num_pieces // 64) * 64 if is_own else tokenizer.num_pieces
    assert tokenizer.vocab_size == max(base.vocab_size, needed)
    assert len(tokenizer.is_special) == len(tokenizer.starts_word) == tokenizer.vocab_size
    old, new = slice(0, base.num_pieces), slice(base.num_pieces, tokenizer.num_pieces)
    np.testing.assert_array_equal(tokenizer.is_special[old], base.is_special[old])
    assert not tokenizer.is_special[new].any()
    assert tokenizer.starts_word[new].all()
    assert tokenizer.is_special[tokenizer.num_pieces :].all()
    assert tokenizer.cls_id == base.cls_id
    assert tokenizer.decode([tokenizer.cls_id, tokenizer.num_pieces - 1]).endswith(" " + WORDS[-1])


def test_unused_ids_of_a_published_vocabulary_come_first() -> None:
    base = toys.published("wordpiece", vocab_size=toys.published("wordpiece").num_pieces + 2)
    assert ExtendedTokenizer(base, WORDS[:1]).vocab_size == base.vocab_size
    assert ExtendedTokenizer(base, WORDS[:5]).vocab_size == base.num_pieces + 5


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("wordpiece", "COVID covid Covid", 3),
        ("wordpiece_cased", "COVID covid Covid", 1),
        ("wordpiece", "cafe\u0301s CAFES caf\u00e9s cafes", 4),
        ("wordpiece_cased", "cafe\u0301s CAFES caf\u00e9s cafes", 1),
        ("roberta", "covid\u0301 covid_ _covid 1covid covid.", 1),
        ("roberta", "covid\u200d covid", 1),
        ("wordpiece", "\u0130covid \u0130 covid", 1),
        ("roberta", "C++ C++x C++.", 2),
        ("roberta", "covid-19 Covid-19 Covid-19x", 2),  # in the first word, only the part before the hyphen
    ],
)
def test_words_are_found_whole(kind: str, text: str, found: int) -> None:
    tokenizer = ExtendedTokenizer(toys.published(kind), WORDS)
    encoding = tokenizer.encode(text)
    added = encoding.ids >= tokenizer.base.num_pieces
    assert added.sum() == found
    for start, end in encoding.offsets[added].tolist():
        assert start == 0 or text[start - 1] in " -"
        assert end == len(text) or text[end] in " .-"


@pytest.mark.parametrize(("kind", "found"), [("wordpiece", 2), ("roberta", 0)])
def test_chinese_words_are_found_in_running_text_if_each_character_is_a_word(kind: str, found: int) -> None:
    tokenizer = ExtendedTokenizer(toys.published(kind), ["\u4e2d\u6587", "covid"])
    encoding = tokenizer.encode("\u6211\u4e2d\u6587\u5929covid\u5929 covids")
    assert (encoding.ids >= tokenizer.base.num_pieces).sum() == found


def test_the_chinese_characters_are_those_of_the_library() -> None:
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    known = re.compile(f"[{CHINESE}]")
    for code in range(0x80, 0x110000):
        if not 0xD800 <= code < 0xE000:
            is_apart = normalizer.normalize_str(f"a{chr(code)}a").count(" ") == 2
            assert bool(known.match(chr(code))) == is_apart, hex(code)


def test_the_base_belongs_to_the_words(base: Tokenizer, tmp_path: Path) -> None:
    tokenizer = ExtendedTokenizer(base, WORDS)
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    assert len({base.fingerprint, tokenizer.fingerprint, ExtendedTokenizer(base, WORDS[:2]).fingerprint}) == 3
    toys.published("gpt2").save(tmp_path / "base")
    if base.fingerprint != toys.published("gpt2").fingerprint:
        with refuses(CheckpointError, f"{tmp_path / 'base'}: ", "added_words.txt"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("words", [["a b"], [""], ["zeppelin", "Zeppelin"], ["[MASK]"], ["a\u00a0b"]])
def test_what_is_no_word_is_refused(words: list[str]) -> None:
    with refuses(CheckpointError, f"{words[0]!r}"):
        ExtendedTokenizer(toys.published("wordpiece"), words)


def test_whole_words_with_characters_are_refused() -> None:
    with refuses(CheckpointError, "tokenizer.add"):
        ExtendedTokenizer(WordTokenizer(["cat"], lowercase=True), ["dog"])


def test_a_list_of_words_is_read(tmp_path: Path) -> None:
    base = toys.published("wordpiece")
    path = tmp_path / "my_words.txt"
    path.write_bytes("\ufeffZeppelin\r\n\n  seaboat \nzeppelin\nthe\nSEABOAT\na\n".encode())
    words, notes = read_words(path, base)
    assert words == ["Zeppelin", "seaboat"]
    assert len(notes) == 2
    assert all(name in notes[0] for name in (f"{path}: ", " 2 ", "(zeppelin, SEABOAT)"))
    assert all(name in notes[1] for name in (f"{path}: ", " 2 ", "(the, a)"))
    assert read_words(path, toys.published("wordpiece_cased"))[0][:3] == ["Zeppelin", "seaboat", "zeppelin"]
    path.write_text("seaboat\n")
    assert read_words(path, base)[1] == []


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"good\nnew york\nbad\tword\n", ("my_words.txt:2: 'new york'", "my_words.txt:3: 'bad\\tword'")),
        (b"[MASK]\n", ("my_words.txt:1: '[MASK]'", "special")),
        (b"a\x00b\n", ("my_words.txt:1: 'a\\x00b'", "control")),
        ("\u200b\n".encode(), ("my_words.txt:1: '\\u200b'", "tokenizer")),
        (b"the\n", ("my_words.txt: ", " 1 ", "(the)")),
        (b"\n \n", ("my_words.txt: ", "empty")),
        (b"\xff\xfe\n", ("my_words.txt: ", "UTF-8")),
    ],
    ids=[
        "white space",
        "special token",
        "control character",
        "dropped characters",
        "known",
        "empty",
        "bytes",
    ],
)
def test_a_list_that_is_none_is_refused(content: bytes, names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "my_words.txt"
    path.write_bytes(content)
    with refuses(DataError, *names):
        read_words(path, toys.published("wordpiece"))
    with refuses(DataError, f"{tmp_path / 'none.txt'}: ", os.strerror(errno.ENOENT)):
        read_words(tmp_path / "none.txt", toys.published("wordpiece"))


def test_a_word_that_the_tokenizer_reads_as_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_words.txt"
    path.write_text("\ufb01le\n", encoding="utf-8")
    with refuses(DataError, "my_words.txt:1: '\ufb01le'", "'file'"):
        read_words(path, sentencepiece(tmp_path))
    assert read_words(path, toys.published("wordpiece"))[0] == ["\ufb01le"]  # BERT keeps such characters


class Model(nn.Module):
    """A masked language model whose output matrix is the embedding."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.encoder = BertEncoder(
            vocab_size=vocab_size, dim=16, num_layers=1, num_heads=2, hidden_dim=32, max_length=32, dropout=0.0
        )
        self.mlm = MaskedLanguageModel()
        self.mlm.bind(self.encoder)

    def logits(self, tokens: np.ndarray) -> torch.Tensor:
        """Compute the logits of one sequence, (T, V), in separate sums, so that rounding does not depend on V."""
        packed = pack([tokens.astype(np.int64)], capacity=len(tokens), max_length=32)
        hidden_TE = self.mlm.transform(self.encoder(packed).layers[-1])
        return (hidden_TE[:, None] * self.encoder.embeddings.token.weight).sum(-1) + self.mlm.bias


@pytest.mark.parametrize("spare", [0, 3, 20])
@torch.no_grad()
def test_grown_models_say_the_same_of_old_tokens(spare: int) -> None:
    torch.manual_seed(0)
    base = toys.published("wordpiece", vocab_size=toys.published("wordpiece").num_pieces + spare)
    tokenizer = ExtendedTokenizer(base, WORDS)
    old = Model(base.vocab_size)
    nn.init.normal_(old.mlm.bias)
    assert vocabulary_tensors(Model) == {"encoder.embeddings.token.weight", "mlm.bias"}
    new = Model(tokenizer.vocab_size)
    new.load_state_dict(extend_weights(old.state_dict(), base=base, tokenizer=tokenizer, module_of=Model))
    for text in toys.TEXT[:5]:
        ids, again = base.encode(text).ids[:32], tokenizer.encode(text).ids[:32]
        before, after = old.logits(ids), new.logits(again)
        assert torch.equal(before[:, : base.num_pieces], after[:, : base.num_pieces])
        for place, word in enumerate(WORDS):  # the logit of a word is the mean of its pieces' logits
            expected = before[:, base.encode("x " + word).ids[1:]].mean(1)
            torch.testing.assert_close(after[:, base.num_pieces + place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_added_words_are_means(dtype: torch.dtype) -> None:
    base = train_wordpiece(toys.TEXT, vocab_size=126)
    tokenizer = ExtendedTokenizer(base, WORDS)
    assert tokenizer.vocab_size > base.vocab_size > base.num_pieces
    rows = torch.randn(base.vocab_size, 4).to(dtype)
    found = extend_rows(rows, base, tokenizer)
    assert (found.shape, found.dtype) == ((tokenizer.vocab_size, 4), dtype)
    assert torch.equal(found[: base.num_pieces], rows[: base.num_pieces])
    for place, word in enumerate(WORDS):
        pieces = rows[base.encode("x " + word).ids[1:].astype(int)].double().numpy()
        np.testing.assert_array_equal(
            found[base.num_pieces + place].float(), torch.tensor(pieces.mean(0)).to(dtype).float()
        )
    filler = torch.tensor(rows[: base.num_pieces].double().numpy().mean(0)).to(dtype)
    torch.testing.assert_close(
        found[tokenizer.num_pieces :], filler.expand(tokenizer.vocab_size - tokenizer.num_pieces, 4)
    )
    with refuses(CheckpointError, f"({base.vocab_size - 1}, 4)", f" {len(WORDS)} ", f"{base.vocab_size} rows"):
        extend_rows(rows[:-1], base, tokenizer)
    other = toys.published("gpt2")
    with refuses(CheckpointError, f"({base.vocab_size}, 4)", f" {len(WORDS)} ", f"{other.vocab_size} rows"):
        extend_rows(rows, other, tokenizer)


def test_models_that_use_the_vocabulary_otherwise_are_refused() -> None:
    with refuses(CheckpointError, " weight ", "tokenizer.add"):
        vocabulary_tensors(lambda vocab_size: nn.Linear(vocab_size, 3))

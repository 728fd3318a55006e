"""Published tokenizers against the tokenizers library: ids, spans, words, specials, saving, broken files."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from fakes import published_tokenizers as toys
from support.refusals import refuses

from lmtransfer.data.token_cache import _encode
from lmtransfer.errors import CheckpointError
from lmtransfer.inference.fill_mask import encode_with_masks
from lmtransfer.tokenizers.base import Tokenizer, split_flat
from lmtransfer.tokenizers.published import PublishedTokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
NFD = unicodedata.normalize("NFD", "Le caf\u00e9 na\u00efve co\u00fbte d\u00e9j\u00e0 cher")
SPELT = "[MASK] [CLS] and [UNK], <unk> <s> </s>x<mask> <pad><|endoftext|> [unused0]"


@pytest.fixture(scope="module", params=toys.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> PublishedTokenizer:
    return toys.published(kind)


def nasty(count: int, longest: int = 40) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(toys.ALPHABET, k=rng.randint(0, longest))) for _ in range(count)] + toys.TEXT


def test_ids_are_those_of_the_library(kind: str, tokenizer: PublishedTokenizer) -> None:
    library = toys.library_of(kind)
    texts = [*nasty(300), NFD, FAMILY, "", " ", "  two  spaces\n\nand\ta tab "]
    for text, ids in zip(texts, tokenizer.encode_ids(texts), strict=True):
        clean = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
        assert ids.dtype == np.int32
        assert ids.tolist() == library.encode(clean, add_special_tokens=False).ids, text
        np.testing.assert_array_equal(tokenizer.encode(text).ids, ids)


def test_it_is_a_tokenizer_with_its_specials_anywhere(kind: str, tokenizer: PublishedTokenizer) -> None:
    library = toys.library_of(kind)
    roles = toys.KINDS[kind][1]
    assert isinstance(tokenizer, Tokenizer)
    for role, token in roles.items():
        assert getattr(tokenizer, f"{role}_id") == library.token_to_id(token)
    assert tokenizer.num_pieces == tokenizer.vocab_size == library.get_vocab_size()
    special = {i for token, i in library.get_vocab().items() if token in {*roles.values(), "[unused0]"}}
    assert set(np.flatnonzero(tokenizer.is_special).tolist()) == special
    wide = toys.published(kind, vocab_size=tokenizer.num_pieces + 3)
    assert (wide.vocab_size, wide.num_pieces) == (tokenizer.num_pieces + 3, tokenizer.num_pieces)
    assert wide.is_special[-3:].all()
    assert not wide.starts_word[-3:].any()
    assert wide.piece(wide.vocab_size - 1) == f"[unused{wide.vocab_size - 1}]"
    with refuses(ValueError, f"token id {wide.vocab_size}"):
        wide.piece(wide.vocab_size)


def test_roles_without_a_token_get_another(tmp_path: Path) -> None:
    tokenizer = toys.published("gpt2")
    assert tokenizer.missing_roles == ("mask",)
    assert len({tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id}) == 1
    assert tokenizer.pad_id is None
    assert toys.published("roberta").missing_roles == ()


TEXTS = [
    ["The", "old", "man", "said", "no"],
    NFD.split(),
    ["the", "\U0001f1e9\U0001f1ea", "a\U0001f600b"],
    ["\ud55c\uad6d\uc5b4", "\ud14d\uc2a4\ud2b8", "the"],
    unicodedata.normalize("NFD", "\ud55c\uad6d \uc5b4").split(),
    ["\ufb01ne", "o\ufb03ce"],
    ["\uff76\uff9ethe", "\uff26\uff55"],
]


@pytest.mark.parametrize("space", [" ", "\u00a0", "\n"])
@pytest.mark.parametrize("kind", [kind for kind in toys.KINDS if kind != "words"])  # "words" has marks as words
def test_words_are_exact(kind: str, space: str) -> None:
    tokenizer = toys.published(kind)
    for words in TEXTS:
        text, expected = space.join(words), words
        if kind.startswith(("roberta", "gpt2")) and space == "\u00a0":
            expected = [text]  # in a byte-level vocabulary it is an ordinary character
        elif kind.startswith(("roberta", "gpt2")) or (kind == "unigram" and space == "\n"):
            text = " ".join(words)  # only a space begins a word there; other white space is a separate token
        assert toys.words_by_offsets(tokenizer, text) == expected


@pytest.mark.parametrize("kind", ["roberta", "gpt2", "unigram"])
def test_spans_of_marks_and_of_characters_of_several_tokens(kind: str) -> None:
    tokenizer = toys.published(kind)
    text = "a \U0001f600\u4e2d zq"
    encoding = tokenizer.encode(text)
    assert {text[start:end].strip() for start, end in encoding.offsets.tolist()} >= {"a", "\U0001f600", "\u4e2d"}
    for start, end in encoding.offsets.tolist():
        assert text[start:end] == text[start:end].strip()
    if kind != "unigram":
        whole = [start for start, end in encoding.offsets.tolist() if text[start:end] == "\U0001f600"]
        assert len(whole) >= 3  # each of its tokens except the space before it


def test_word_starts_are_known_by_id(kind: str, tokenizer: PublishedTokenizer) -> None:
    text = " ".join(toys.TEXT)
    encoding = tokenizer.encode(text)
    by_id = tokenizer.starts_word[encoding.ids]
    np.testing.assert_array_equal(encoding.word_starts[1:], by_id[1:])
    assert encoding.word_starts[0]
    if kind.startswith(("roberta", "gpt2", "unigram")):
        assert encoding.word_starts.sum() == len(text.split())
    assert by_id[0] == (kind not in ("roberta", "gpt2"))


def test_text_comes_back(kind: str, tokenizer: PublishedTokenizer) -> None:
    text = "the old man said" if kind == "words" else "the calm sea (and again)"
    ids = [tokenizer.cls_id, *tokenizer.encode(text).ids, tokenizer.sep_id]
    cls, sep = (toys.KINDS[kind][1][role] for role in ("cls", "sep"))
    shown = text.replace("(", "( ").replace(")", " )") if kind.startswith("wordpiece") else text
    assert tokenizer.decode(ids) == f"{cls} {shown} {sep}"
    assert tokenizer.decode([]) == ""


def test_pieces_are_readable() -> None:
    roberta = toys.published("roberta")
    pieces = [roberta.piece(int(i)) for i in roberta.encode("the sea \u4e00").ids]
    assert "".join(pieces) == "the\u2581sea\u2581<0xE4><0xB8><0x80>"
    assert len(pieces) < len("the sea ") + 3


def test_later_sentences_of_a_document_begin_with_a_space() -> None:
    document = "The old man said. The sea was calm.\nA boat went out."
    tokenizer = toys.published("gpt2")
    library = toys.library_of("gpt2")
    tokens, lengths, counts = _encode([document, "\n The boat.", ""], tokenizer)
    assert counts.tolist() == [3, 1, 0]
    expected = ["The old man said.", " The sea was calm.", " A boat went out.", "The boat."]
    assert [ids.tolist() for ids in split_flat(tokens, lengths)] == [library.encode(text).ids for text in expected]


def test_text_after_a_mask_goes_on() -> None:
    tokenizer = toys.published("roberta")
    library = toys.library_of("roberta")
    for text in ("the <mask> sea was", "<mask>.", "the <mask> . <mask> sea", "the <mask> "):
        expected = [library.token_to_id("<mask>") if part is None else part for part in _masked(library, text)]
        assert encode_with_masks(text.replace("<mask>", "[MASK]"), tokenizer).tolist() == expected, text


def _masked(library: tokenizers.Tokenizer, text: str) -> list[int | None]:
    """Return the ids of RoBERTa's own tokenizer, with None for a mask, which includes the white space before it."""
    ids: list[int | None] = []
    for number, part in enumerate(text.split("<mask>")):
        ids += [None] if number else []
        ids += library.encode(part.rstrip(), add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda d: d["model"].update(type="Sorcery"), "Sorcery"),
        (lambda d: d.pop("model"), "`tokenizers`"),
        (lambda d: d["model"].update(vocab={"[UNK]": -1}), "`tokenizers`"),
        (lambda d: d["model"].update(vocab={}), "tokenizer"),  # the error depends on the library's version
        (lambda d: d["model"].update(vocab={**d["model"]["vocab"], "far": 1 << 30}), str(1 << 30)),
        (lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "`tokenizers`"),
        (lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}}), "`tokenizers`"),
        (lambda d: d.update(model={**d["model"], "type": "BPE", "merges": [], "vocab": {"[UNK]": 0}}), "Metaspace"),
    ],
    ids=["type", "no model", "negative id", "no vocabulary", "far id", "normalizer", "pattern", "spelling"],
)
def test_broken_files_are_one_clear_error(change: Any, name: str) -> None:
    described = json.loads(toys.model_of("wordpiece"))
    change(described)
    with refuses(CheckpointError, name):
        PublishedTokenizer(json.dumps(described).encode(), specials=toys.BERT)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$"])
@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
def test_a_pattern_that_never_ends_is_one_clear_error(pattern: str, place: str) -> None:
    described = json.loads(toys.model_of("wordpiece"))
    described[place] = {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        "normalizer": {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""},
    }[place]
    tokenizer = PublishedTokenizer(json.dumps(described).encode(), specials=toys.BERT)
    text = "a" * 40 + "! " + "a" * 40
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_ids([text])):
        with refuses(CheckpointError, "tokenizer", "regular expressions"):
            encode(text)


def _replace(before: str, after: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": before}, "content": after}


def _between(after: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": "(?=.)"}, "content": after}


#: The factor by which the steps lengthen "a", counted by hand; None if it is so large that they are rejected.
GROWTH: dict[str, tuple[list[dict[str, Any]], int | None]] = {
    "one after the other": ([_replace("abcdefgh"[i], "bcdefghi"[i] * 10) for i in range(8)], None),
    "the same again": ([_replace("a", "aa")] * 12, None),
    "between characters": ([_between("xx")] * 6, None),
    "by a Unicode form": ([_replace("a", "\ufdfa" * 10), {"type": "NFKC"}], None),
    "in a sequence": (
        [{"type": "Sequence", "normalizers": [_replace("a", "b" * 20)]}, _replace("b", "c" * 20)],
        None,
    ),
    "in the other order": ([_replace("abcdefgh"[i], "bcdefghi"[i] * 10) for i in reversed(range(8))], 10),
    "letters of a language": (list(map(_replace, "\xe4\xf6\xfc\xdfa", ("ae", "oe", "ue", "ss", "aa"))), 2),
    "two of ten": ([_replace("a", "b" * 10), _replace("b", "c" * 10)], 100),
}


@pytest.mark.parametrize("name", list(GROWTH))
def test_a_normalizer_that_makes_texts_much_longer_is_refused(name: str) -> None:
    steps, length = GROWTH[name]
    described = json.loads(toys.model_of("wordpiece"))
    described["normalizer"] = {"type": "Sequence", "normalizers": steps}
    model = json.dumps(described).encode()
    if length is None:
        with refuses(CheckpointError, "normalizer", "times as long"):
            PublishedTokenizer(model, specials=toys.BERT)
        return
    assert len(tokenizers.Tokenizer.from_buffer(model).normalizer.normalize_str("a")) == length
    PublishedTokenizer(model, specials=toys.BERT)


def test_what_is_no_json_or_has_other_tokens_is_refused() -> None:
    model = toys.model_of("wordpiece")
    for broken in (b"", b"\xff\xfe", model[:-10], b"[]", b"[" * 100_000, b"null", b'{"model": {}}'):
        with refuses(CheckpointError, "`tokenizers`"):
            PublishedTokenizer(broken, specials=toys.BERT)
    with refuses(CheckpointError, "cls '[BOS]'"):
        PublishedTokenizer(model, specials={**toys.BERT, "cls": "[BOS]"})
    with refuses(CheckpointError, "20 embedding rows"):
        PublishedTokenizer(model, specials=toys.BERT, vocab_size=20)
    with refuses(CheckpointError, "begin='x'"):
        PublishedTokenizer(model, specials={"begin": "x"})

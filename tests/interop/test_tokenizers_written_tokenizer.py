"""Our tokenizers, written and then loaded by ``transformers.AutoTokenizer``."""

from __future__ import annotations

import json
import lzma
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.published_tokenizers import train_wordpiece
from support.refusals import refuses
from transformers import AutoTokenizer, BertTokenizer

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.index import family_of_config
from lmtransfer.interop.tokenizers.written_tokenizer import WrittenTokenizer, find_token_difference, write_tokenizer
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer
from lmtransfer.tokenizers.words import WordTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's 12.5 metres away (or 13)!",
    "ein s\u00fc\u00dfer B\u00e4r a\u00df 40 \u00c4pfel: \u00ab\u00e7a va\u00bb, dit-il, na\u00efve fa\u00e7ade",
    "\u4e2d\u6587\u548c\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \uac00\ub098\ub2e4 \ud55c\uad6d\uc5b4",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u041f\u0440\u0438\u0432\u0435\u0442",
]

#: Texts that are known to cause errors in tokenizers.
NASTY = [
    "",
    " ",
    "\t\n\r\x0b\x0c",
    "  two  spaces   and\ttabs\t\tand\r\nlines \n\n at both ends  ",
    "The QUICK brown Fox, doesn't it?",
    "e\u0301a\u0300 A\u0301 X\u0301x\u0323\u0307 na\u00efve nai\u0308ve Fac\u0327ade \u1eadn a\u0323\u0302n",
    "Stra\u00dfe STRASSE \u1e9e \u0130stanbul I\u0307 \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u01c5 \ufb01n \ufb03",
    "\u0301 begins with an accent, \u200b\u200d\u200e\ufeff and zero widths\u200b\u200c\u00ad in\u200bside",
    "\u00a0no\u00a0break\u202f\u2009\u3000spaces\u2028and\u2029separators\x85\x1c\x1d\x1e\x1f here",
    "\x01\x02 control \x00 characters \x7f\x80\x9f \x1bin\x08side \ufffd \ufffe",
    "\x01begins with one\u00e9\x01\u0301\x01",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \u314b\u314b\u314b \u3131\u314f \uffa1\uffc2 \u3165",
    "\u0627\u0644\u0633\u064e\u0651\u0644\u0627\u0645\u064f \ufefb \ufdfa \u0640\u0640 \u061c\u06dd12",
    "\u0633\u0651\u064e \u0633\u064e\u0651 \u05e9\u05b8\u05c1\u05bc \ufb4a",
    "a\u0302\u0323 x\u0307\u0323 x\u0344 \ufb01\u0301 a\x01\u0301",
    "\u0915\u094d\u0937\u093f \u0e01\u0e33 \u0f73 \u0344 \u30ab\u3099 \uff76\uff9e \uff5e \u301c \uff21\uff42\uff11",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u2764\ufe0f \u270c\U0001f3fd \u00a9\ufe0f \u2122\ufe0f",
    "\U0001d400\U0001d7d8 \u2460 \u00bd \u00b2 \u338f \u2126 \u212b \ua7f1 \U0001e030\u0301 \U00020000",
    "\u2581meta \u2581 symbols\u2581\u2581 ## ##ing <0x41> <unk> <s> </s> \u0120 \u00c4\u00a0",
    "a" * 150 + " " + "\u00e9" * 150 + " " + "\u4e2d" * 150 + "." * 9 + "-" * 40,
    "\u4e2d\u6587 \u4e2d\u6587\u548c abc\u4e2ddef \u212a\u4e2d",
    "don't can't we'LL I'M 'tis rock'n'roll 3.14 1,000 $5 a_b @x #y",
]  # fmt: skip


def _sentencepiece(folder: Path, **settings: Any) -> Tokenizer:
    trainer = SentencePieceTrainer(allow_fewer=True, character_coverage=1.0, **settings)
    return trainer.train(iter([*CORPUS * 4, "......"]), folder)


def _byte_bpe(folder: Path, *, lowercase: bool) -> Tokenizer:
    return ByteBpeTrainer(vocab_size=400, lowercase=lowercase, allow_fewer=True).train(iter(CORPUS * 4), folder)


def _published(folder: Path) -> Tokenizer:
    """A tokenizer like RoBERTa's, with its own names for special tokens, its own frame and its own truncation."""
    import tokenizers
    from tokenizers import AddedToken, pre_tokenizers, processors, trainers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = tokenizers.decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)]
    library.train_from_iterator(
        CORPUS * 4,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    library.enable_truncation(8)
    library.enable_padding(pad_id=1, pad_token="<pad>")
    roles = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    return PublishedTokenizer(library.to_str().encode(), specials=roles)


KINDS = {
    "unigram": lambda folder: _sentencepiece(folder, kind="unigram", vocab_size=300),
    "unigram cased": lambda folder: _sentencepiece(folder, kind="unigram", vocab_size=300, lowercase=False),
    "unigram of bytes": lambda folder: _sentencepiece(folder, kind="unigram", vocab_size=500, byte_fallback=True),
    "bpe": lambda folder: _sentencepiece(folder, kind="bpe", vocab_size=300),
    "bpe of bytes": lambda folder: _sentencepiece(
        folder, kind="bpe", vocab_size=500, byte_fallback=True, lowercase=False
    ),
    "byte_bpe": lambda folder: _byte_bpe(folder, lowercase=False),
    "byte_bpe lower": lambda folder: _byte_bpe(folder, lowercase=True),
    "wordpiece": lambda _: train_wordpiece(CORPUS * 4, vocab_size=300),
    "wordpiece cased": lambda _: train_wordpiece(CORPUS * 4, vocab_size=300, lowercase=False),
    "published": _published,
}
ADDED = ["quickest", "B\u00e4rin", "C++", "\u4e2d\u65e5", "covid-19", "Zq"]


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path]:
    """A tokenizer, and the folder to which it was written like that of a BERT."""
    tokenizer = KINDS[request.param](tmp_path_factory.mktemp("trained"))
    folder = tmp_path_factory.mktemp("written")
    _write(tokenizer, folder)
    return tokenizer, folder


def _write(tokenizer: Tokenizer, folder: Path, *, model_type: str = "bert", num_segments: int = 2) -> WrittenTokenizer:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    family = family_of_config({"model_type": model_type}, source="config.json")
    return write_tokenizer(
        tokenizer,
        folder,
        max_length=64,
        num_segments=num_segments,
        continues_text=family.continues_text,
        pads_left=family.pads_left,
    )


def test_ids_of_nasty_texts(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = NASTY
    if isinstance(tokenizer, PublishedTokenizer):  # these are its special tokens
        texts = [text.replace("<unk> <s> </s>", "") for text in NASTY]
    for text, ours in zip(texts, tokenizer.encode_ids(texts), strict=True):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.tolist(), text


def test_texts_and_pairs_are_framed_as_our_tasks_frame_them(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    examples = [TextExample("", a, b) for a, b in zip(CORPUS, CORPUS[::-1], strict=True)]
    singles = [TextExample("", a) for a in CORPUS]
    for rows in (examples, singles):
        encoded = encode_texts(rows, LabelTargets(np.zeros(4)), tokenizer, max_length=999, num_segments=2)
        for i, row in enumerate(rows):
            place = slice(encoded.offsets[i], encoded.offsets[i + 1])
            got = theirs(row.text, row.text_pair)
            assert got["input_ids"] == encoded.tokens_T[place].tolist()
            assert got["token_type_ids"] == encoded.segments_T[place].tolist()
            assert got["attention_mask"] == [1] * len(got["input_ids"])


def test_the_frame_names_its_tokens_by_their_text(made: tuple[Tokenizer, Path]) -> None:
    """Not every reader of the file looks up the ids of a template; transformers.js takes them for tokens."""
    tokenizer, folder = made
    frame = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["post_processor"]
    cls, sep = tokenizer.piece(tokenizer.cls_id), tokenizer.piece(tokenizer.sep_id)
    for kind, expected in (("single", [cls, sep]), ("pair", [cls, sep, sep])):
        assert [item["SpecialToken"]["id"] for item in frame[kind] if "SpecialToken" in item] == expected


def test_special_tokens_of_a_text(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    assert (theirs.cls_token_id, theirs.sep_token_id) == (tokenizer.cls_id, tokenizer.sep_id)
    assert (theirs.mask_token_id, theirs.unk_token_id) == (tokenizer.mask_id, tokenizer.unk_id)
    assert theirs.model_max_length == 64
    mask = theirs.mask_token
    dot = next(i for i in range(tokenizer.num_pieces) if tokenizer.piece(i) == ".")
    for before, after in (("the quick", " fox"), ("the quick", "."), ("", " fox"), ("the", "")):
        if after == "." and isinstance(tokenizer, PublishedTokenizer):
            continue  # its own rule begins a word after each special token
        got = theirs(f"{before} {mask}{after}", add_special_tokens=False)["input_ids"]
        left, right = (ids.tolist() for ids in tokenizer.encode_ids([before, after]))
        assert got == [*left, tokenizer.mask_id, *([dot] if after == "." else right)], (before, after)
    assert tokenizer.mask_id not in tokenizer.encode_ids([mask])[0]


def test_padding(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    short, long = theirs(["fox", "the quick brown fox"], padding=True)["input_ids"]
    ours = [tokenizer.cls_id, *tokenizer.encode_ids(["fox"])[0].tolist(), tokenizer.sep_id]
    assert short == ours + [theirs.pad_token_id] * (len(long) - len(ours))
    assert tokenizer.is_special[theirs.pad_token_id]
    assert theirs.pad_token_id not in {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id}
    assert theirs.convert_ids_to_tokens(theirs.pad_token_id) in ("[PAD]", "<pad>")


def test_decoding_gives_the_text_back(made: tuple[Tokenizer, Path]) -> None:
    _, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "the quick brown fox jumps over the lazy dog, and the dog"
    assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True).strip() == text
    cls, sep = theirs.cls_token, theirs.sep_token
    assert theirs.decode(theirs("the fox")["input_ids"]).replace(" ", "") == f"{cls}thefox{sep}"


def test_offsets_are_places_in_the_text(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in (CORPUS[0], CORPUS[1], "  a na\u00efve\tfox \u00c4pfel"):
        got = theirs(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ours = tokenizer.encode(text)
        for (start, end), (our_start, our_end) in zip(got, ours.offsets.tolist(), strict=True):
            if our_start < our_end:  # else the space that a word begins with
                assert text[start:end].strip() == text[our_start:our_end]


def test_the_files_alone_give_our_ids(made: tuple[Tokenizer, Path]) -> None:
    tokenizer, folder = made
    assert find_token_difference(tokenizer, folder, [*CORPUS, *NASTY, "[MASK] is left out", "\ud800"]) is None


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe lower", "wordpiece", "published"])
def test_added_words(kind: str, tmp_path: Path) -> None:
    base = KINDS[kind](tmp_path)
    tokenizer = ExtendedTokenizer(base, ADDED)
    written = _write(tokenizer, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = [
        "quickest",
        "the  quickest, and C++ \t quickest.",
        "quickest over quickestover unquickest (quickest) QUICKEST Quickest",
        "a B\u00e4rin b\u00e4rin B\u00e4rinnen and \u4e2d\u65e5 Zq, covid-19 covid-190 Covid-19!",
        *CORPUS,
    ]
    ours = [ids.tolist() for ids in tokenizer.encode_ids(texts)]
    assert [theirs(text, add_special_tokens=False)["input_ids"] for text in texts] == ours
    new = range(base.num_pieces, base.num_pieces + len(ADDED))
    assert set(new) <= {i for ids in ours for i in ids}
    assert theirs.convert_tokens_to_ids("quickest") == new.start
    assert written.pad_id == (getattr(base, "pad_id", None) or base.num_pieces + len(ADDED))
    assert find_token_difference(tokenizer, tmp_path, texts) is None


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_added_words_beside_any_character(kind: str, tmp_path: Path) -> None:
    base = KINDS[kind](tmp_path)
    tokenizer = ExtendedTokenizer(base, ["quickest", "\u65e5\u4e2d", "\u4e2dab", "ab-\u4e2d"])
    _write(tokenizer, tmp_path)
    beside = ["", " ", "x", "1", "_", ".", "-", "\u4e2d", "\u8a9e", "\u306e", "\u00e9", "\U00020000"]
    texts = [f"a {before}{word}{after} b" for before in beside for word in tokenizer.words for after in beside]
    assert find_token_difference(tokenizer, tmp_path, texts) is None
    found = [any(i >= base.num_pieces for i in ids) for ids in tokenizer.encode_ids(texts)]
    assert any(found)
    assert not all(found)


def test_an_added_word_that_is_a_piece(tmp_path: Path) -> None:
    base = KINDS["bpe"](tmp_path)
    inside = next(i for i in range(4, base.num_pieces) if base.piece(i).isalpha() and len(base.piece(i)) > 1)
    with refuses(CheckpointError, f" {base.piece(inside)} ", f" {base.num_pieces}", "tokenizer.json"):
        _write(ExtendedTokenizer(base, [base.piece(inside)]), tmp_path)


@pytest.mark.parametrize(
    ("model_type", "num_segments", "side"),
    [("bert", 2, "right"), ("roberta", 1, "right"), ("xlnet", 2, "left"), ("gpt2", 1, "right")],
)
def test_what_a_family_asks_for(model_type: str, num_segments: int, side: str, tmp_path: Path) -> None:
    tokenizer = KINDS["wordpiece"](tmp_path)
    _write(tokenizer, tmp_path, model_type=model_type, num_segments=num_segments)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    got = theirs("the quick", "fox")
    a, b = (ids.tolist() for ids in tokenizer.encode_ids(["the quick", "fox"]))
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert got["input_ids"] == [cls, *a, sep, *b, sep]
    assert ("token_type_ids" in got) == (num_segments > 1)
    types = theirs("the quick", "fox", return_token_type_ids=True)["token_type_ids"]
    assert types == [0] * (len(a) + 2) + [num_segments - 1] * (len(b) + 1)
    assert theirs.padding_side == side
    if model_type == "gpt2":
        assert (theirs.bos_token_id, theirs.eos_token_id) == (cls, sep)


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_is_read_by_berts_own_tokenizer(lowercase: bool, tmp_path: Path) -> None:
    """Programs that read only ``vocab.txt`` also agree, unless BERT's lower-casing would lose marks."""
    corpus = CORPUS[:2] if lowercase else CORPUS
    tokenizer = train_wordpiece(corpus * 4, vocab_size=300, lowercase=lowercase)
    written = _write(tokenizer, tmp_path)
    ours = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in tokenizer.encode_ids(corpus)]
    assert type(AutoTokenizer.from_pretrained(tmp_path)).__name__.startswith("BertTokenizer")
    assert AutoTokenizer.from_pretrained(tmp_path)(corpus)["input_ids"] == ours
    (tmp_path / "tokenizer.json").unlink()
    alone = BertTokenizer.from_pretrained(tmp_path)
    assert alone(corpus)["input_ids"] == ours
    assert alone.pad_token_id == written.pad_id
    if lowercase:
        (tmp_path / "marks").mkdir()
        _write(train_wordpiece(CORPUS * 4, vocab_size=300), tmp_path / "marks")
        assert not isinstance(AutoTokenizer.from_pretrained(tmp_path / "marks"), BertTokenizer)


def test_where_padding_goes(tmp_path: Path) -> None:
    pieces = train_wordpiece(CORPUS * 4, vocab_size=300).pieces
    spare = WordPieceTokenizer(pieces[:100], lowercase=True)
    full = WordPieceTokenizer(pieces[:128], lowercase=True)
    named = WordPieceTokenizer(["[PAD]", *pieces[:99]], lowercase=True)
    for tokenizer, pad_id, names in ((spare, 100, ("id 100",)), (full, 128, ("id 128", " row")), (named, 0, ())):
        written = _write(tokenizer, tmp_path)
        assert written.pad_id == pad_id == AutoTokenizer.from_pretrained(tmp_path).pad_token_id
        assert written.specials == {
            "cls": tokenizer.cls_id, "sep": tokenizer.sep_id, "mask": tokenizer.mask_id, "unk": tokenizer.unk_id,
        }  # fmt: skip
        added = [note for note in written.notes if "(id " in note]
        assert len(added) == (1 if names else 0)
        assert all(name in note for note in added for name in names)


def test_a_difference_is_shown(tmp_path: Path) -> None:
    tokenizer = KINDS["wordpiece"](tmp_path)
    _write(tokenizer, tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["normalizers"] = [
        step for step in content["normalizer"]["normalizers"] if step["type"] != "Lowercase"
    ]
    path.write_text(json.dumps(content))
    found = find_token_difference(tokenizer, tmp_path, ["the fox", "the Fox"])
    assert found is not None
    assert found.startswith("'the Fox': token 2")
    path.write_text("{")
    with refuses(CheckpointError, str(path)):
        find_token_difference(tokenizer, tmp_path, ["the fox"])


def test_another_cut_is_a_difference_unless_it_is_as_likely(tmp_path: Path) -> None:
    tokenizer = KINDS["unigram"](tmp_path)
    _write(tokenizer, tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]

    def written(score: float) -> Path:
        vocabulary[longest][1] = score
        path.write_text(json.dumps(content))
        return tmp_path

    ids = tokenizer.encode_ids(["the fox"])[0].tolist()
    longest = max(ids, key=lambda i: len(tokenizer.piece(i)))
    rest = sum(vocabulary[i][1] for i in ids if i != longest)
    others = AutoTokenizer.from_pretrained(written(-1e3))("the fox", add_special_tokens=False)["input_ids"]
    assert others != ids
    tie = sum(vocabulary[i][1] for i in others) - rest
    assert find_token_difference(tokenizer, written(tie - 1e-9), ["the fox"]) is None
    assert find_token_difference(tokenizer, written(tie - 1e-2), ["the fox"]) is not None


def test_whole_words_are_refused(tmp_path: Path) -> None:
    with refuses(CheckpointError, "WordTokenizer", "WordPiece"):
        write_tokenizer(WordTokenizer(["the"], lowercase=True), tmp_path, max_length=8, num_segments=2)


def _lines(root: Path, name: str, num_lines: int) -> list[str]:
    with lzma.open(root / name, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in islice(file, num_lines)]


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_ids_of_a_thousand_lines(kind: str, data_root: Path, tmp_path: Path) -> None:
    sources = [("enwiki/dev.txt.xz", 500), ("imdb_unsup/train.txt.xz", 200)]
    sources += [(f"multilingual/{language}/train.txt.xz", 100) for language in ("fra", "deu", "spa")]
    lines = [line for name, number in sources for line in _lines(data_root, name, number)]
    sample = [line for line in lines[::2] if line.strip()]
    if kind == "wordpiece":
        tokenizer: Tokenizer = train_wordpiece(sample, vocab_size=1000)
    else:
        tokenizer = SentencePieceTrainer(kind="unigram", vocab_size=1000, max_characters=100_000).train(
            iter(sample), tmp_path
        )
    _write(tokenizer, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = [ids.tolist() for ids in tokenizer.encode_ids(lines)]
    assert len(lines) == 1000
    assert theirs(lines, add_special_tokens=False)["input_ids"] == ours

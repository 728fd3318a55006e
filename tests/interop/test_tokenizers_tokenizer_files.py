"""The tokenizer files of published folders: which ones are read, what settings mean, and what is rejected."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from fakes import published_tokenizers as toys
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.tokenizer_files import read_tokenizer

MAP = {f"{role}_token": token for role, token in toys.BERT.items()}
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "b",
    "##b",
    "A",
    "caf\u00e9",
    "cafe",
    "\u4e2d",
    "\u4e2d\u4e2d",
]


def write(folder: Path, **files: Any) -> Path:
    """Write files, named like ``name__ending``, from bytes, text or an object."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", toys.KINDS)
def test_tokenizer_json_is_read_and_specials_are_found(kind: str, tmp_path: Path) -> None:
    model = toys.model_of(kind)
    tokenizer = read_tokenizer(write(tmp_path, tokenizer__json=model), vocab_size=500)
    assert tokenizer.model == model
    assert tokenizer.vocab_size == 500
    roles = toys.KINDS[kind][1]
    assert {role: tokenizer.specials[role] for role in roles if role != "unk"} == {
        role: token for role, token in roles.items() if role != "unk"
    }


def test_the_folder_names_its_specials_as_text_or_objects(tmp_path: Path) -> None:
    model = toys.model_of("roberta").replace(b"<mask>", b"<hide>").replace(b'"<s>"', b'"<begin>"')
    config = {"mask_token": "<wrong>", "cls_token": {"content": "<begin>", "lstrip": False}, "auto_map": {"x": "y.Z"}}
    folder = write(tmp_path, tokenizer__json=model, tokenizer_config__json=config)
    assert "mask" in read_tokenizer(folder, vocab_size=400).missing_roles
    write(folder, special_tokens_map__json={"mask_token": {"content": "<hide>"}, "bos_token": "</s>"})
    tokenizer = read_tokenizer(folder, vocab_size=400)
    assert (tokenizer.specials["cls"], tokenizer.specials["mask"], tokenizer.specials["sep"]) == (
        "<begin>",
        "<hide>",
        "</s>",
    )
    assert tokenizer.missing_roles == ()


def test_the_config_decides_over_the_normaliser(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer__json=toys.model_of("wordpiece"), config__json={"model_type": "bert"})
    lower = read_tokenizer(folder, vocab_size=180).encode("THE sea").ids
    write(folder, tokenizer_config__json={"do_lower_case": False, "strip_accents": None})
    cased = read_tokenizer(folder, vocab_size=180)
    assert cased.encode("THE sea").ids.tolist() != lower.tolist()
    assert cased.encode("the sea").ids.tolist() == lower.tolist()
    write(folder, tokenizer__json=toys.model_of("roberta"), config__json={"model_type": "roberta"})
    bare = read_tokenizer(folder, vocab_size=400).encode("the sea").ids
    write(folder, tokenizer_config__json={"add_prefix_space": True})
    prefixed = read_tokenizer(folder, vocab_size=400)
    assert prefixed.encode("the sea").ids.tolist() != bare.tolist()
    assert prefixed.encode("the sea").ids.tolist() == prefixed.encode(" the sea").ids.tolist()


@pytest.mark.parametrize(
    ("config", "text", "expected"),
    [
        ({}, "A caf\u00e9 \u4e2d\u4e2d", ["a", "cafe", "\u4e2d", "\u4e2d"]),
        ({"do_lower_case": False}, "A caf\u00e9", ["A", "caf\u00e9"]),
        ({"do_lower_case": True, "strip_accents": False}, "A caf\u00e9", ["a", "caf\u00e9"]),
        ({"tokenize_chinese_chars": False}, "ab \u4e2d\u4e2d", ["a", "##b", "\u4e2d\u4e2d"]),
        ({}, "zz", ["[UNK]"]),
    ],
)
def test_vocab_txt_is_read_with_berts_settings(
    config: dict[str, Any], text: str, expected: list[str], tmp_path: Path
) -> None:
    for ending in ("\n", "\r\n"):
        folder = write(tmp_path, vocab__txt=ending.join(PIECES).encode(), tokenizer_config__json=config)
        tokenizer = read_tokenizer(folder, vocab_size=16)
        assert [tokenizer.piece(int(i)) for i in tokenizer.encode(text).ids] == expected
        assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.num_pieces, tokenizer.vocab_size) == (2, 0, 13, 16)


def test_tokens_added_later_keep_their_ids(tmp_path: Path) -> None:
    folder = write(tmp_path, vocab__txt="\n".join(PIECES), added_tokens__json={"<new>": 14, "covid": 13})
    tokenizer = read_tokenizer(folder, vocab_size=15)
    assert tokenizer.encode("a covid b").ids.tolist() == [5, 13, 6]
    assert tokenizer.starts_word[13]
    added = {"13": {"content": "covid", "special": False}, "14": {"content": "<new>", "special": True}}
    write(folder, added_tokens__json={}, tokenizer_config__json={"added_tokens_decoder": added})
    tokenizer = read_tokenizer(folder, vocab_size=15)
    assert tokenizer.encode("a covid b").ids.tolist() == [5, 13, 6]
    assert tokenizer.is_special[14]
    assert 14 not in tokenizer.encode("a <new> b").ids
    write(folder, added_tokens__json={"far": 20})
    with refuses(CheckpointError, "'far'", " 20", " 15"):
        read_tokenizer(folder, vocab_size=30)


@pytest.mark.parametrize("kind", ["roberta", "gpt2", "roberta_prefixed"])
def test_vocab_json_and_merges_are_read(kind: str, tmp_path: Path) -> None:
    described = json.loads(toys.model_of(kind))["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in described["merges"]) + "\n"
    prefixed = {"add_prefix_space": True} if kind == "roberta_prefixed" else {}
    folder = write(tmp_path, vocab__json=described["vocab"], merges__txt=merges, tokenizer_config__json=prefixed)
    tokenizer, library = read_tokenizer(folder, vocab_size=400), toys.library_of(kind)
    for text in [*toys.TEXT[:5], "  two  spaces\n\nand\ta tab ", "\U0001f600\u4e2d"]:
        assert tokenizer.encode(text).ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.specials["sep"] == toys.KINDS[kind][1]["sep"]
    write(folder, merges__txt=" ".join(described["merges"][0]) + "\nq\u00e9 x\n")
    with refuses(CheckpointError, "merges.txt:2"):
        read_tokenizer(folder, vocab_size=400)


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer__json=toys.model_of("wordpiece"))
    rows = tokenizers.Tokenizer.from_buffer(toys.model_of("wordpiece")).get_vocab_size()
    with refuses(CheckpointError, "tokenizer.json", f"{rows} tokens", f"{rows - 1} rows"):
        read_tokenizer(folder, vocab_size=rows - 1)
    for content in (b"{", b"[]", b"\xff", b'{"model": 1}', b"[" * 100_000, b'{"model": {"vocab": {"a": "b"}}}'):
        write(folder, tokenizer__json=content)
        with refuses(CheckpointError, "tokenizer.json: "):
            read_tokenizer(folder, vocab_size=100)
    (folder / "tokenizer.json").unlink()
    with refuses(CheckpointError, str(folder), "no file of pieces", "tokenizer.json"):
        read_tokenizer(folder, vocab_size=100)
    write(folder, tokenizer__model=b"x")
    with refuses(CheckpointError, "tokenizer.model", "tokenizer.json"):
        read_tokenizer(folder, vocab_size=100)
    write(folder, vocab__json={"a": 0, "</w>": 1}, merges__txt="")
    with refuses(CheckpointError, "vocab.json", "256"):
        read_tokenizer(folder, vocab_size=100)
    write(folder, vocab__json='{"\\ud800": 0}', merges__txt="")
    with refuses(CheckpointError, "vocab.json: "):
        read_tokenizer(folder, vocab_size=100)
    write(folder, vocab__txt="\n".join(PIECES), added_tokens__json={"a\ud800": 13, "b": None, "c": None})
    with refuses(CheckpointError, "vocab.txt: "):
        read_tokenizer(folder, vocab_size=100)
    (folder / "added_tokens.json").unlink()
    write(folder, vocab__txt=b"\xff\xfe")
    with refuses(CheckpointError, "vocab.txt", "UTF-8"):
        read_tokenizer(folder, vocab_size=100)
    write(folder, vocab__txt="a\nb\n")
    with refuses(CheckpointError, "vocab.txt", "[UNK]"):
        read_tokenizer(folder, vocab_size=100)
    write(folder, tokenizer_config__json="[1]")
    with refuses(CheckpointError, "tokenizer_config.json", "mapping"):
        read_tokenizer(folder, vocab_size=100)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"config__json": {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}},
            ["tokenizer_class=BertJapaneseTokenizer (config.json)", "vocab.txt"],
        ),
        (
            {"tokenizer_config__json": {"tokenizer_class": "PhobertTokenizer"}, "bpe__codes": "a b 1\n"},
            ["tokenizer_class=PhobertTokenizer", "bpe.codes, vocab.txt"],
        ),
        (
            {"vocab__txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\u2581a\nb\n", "pieces_8k__model": b"x"},
            ["U+2581", "BertTokenizer", "pieces_8k.model"],
        ),
        ({"config__json": {"model_type": "albert"}}, ["AlbertTokenizer", "spiece.model", "tokenizer_class"]),
        (
            {
                "tokenizer__json": toys.model_of("unigram"),
                "tokenizer_config__json": {"tokenizer_class": "BertTokenizer"},
            },
            ["Unigram", "tokenizer_class=BertTokenizer", "PreTrainedTokenizerFast"],
        ),
    ],
)
def test_a_class_whose_pieces_are_not_these_is_refused(files: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    """The class decides, not the name of the file."""
    write(tmp_path, vocab__txt="\n".join(PIECES), config__json={"model_type": "bert"})
    with refuses(CheckpointError, *said):
        read_tokenizer(write(tmp_path, **files), vocab_size=500)


# A sentencepiece file alone, against sentencepiece on text that was cleaned as each family does.

TEXT = [
    "The quick brown foxes jumped over two lazy dogs; they were not amused at all.",
    "``Quite so'', said the lady, and left with her caf\u00e9 cr\u00e8me in 1999.",
    "Stra\u00dfe, na\u00efve, \u0130stanbul: Gr\u00fc\u00dfe aus K\u00f6ln! 1,000 times",
    "  runs   of spaces\tand tabs, \u4e2d\u6587 and emoji \U0001f600, e\u0301 decomposed ",
    "[CLS] is a word here like any other",
    "",
]
ALBERT = {"unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_id": 0, "control_symbols": "[CLS],[SEP],[MASK]"}
XLNET = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"}
XLM_R = {"unk_id": 0, "bos_id": 1, "eos_id": 2}


def sentencepiece_folder(folder: Path, model_type: str, layout: dict[str, object], **settings: object) -> bytes:
    file = "sentencepiece.bpe.model" if model_type == "xlm-roberta" else "spiece.model"
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 5),
        model_writer=written,
        vocab_size=170,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        **layout,
    )
    (folder / file).write_bytes(written.getvalue())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return written.getvalue()


def _cleaned(text: str, *, lowercase: bool, accents: bool) -> str:
    text = text.replace("``", '"').replace("''", '"')
    if not accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lowercase else text


@pytest.mark.parametrize(
    ("model_type", "layout", "settings", "lowercase", "accents"),
    [
        ("albert", ALBERT, {}, True, False),
        ("albert", ALBERT, {"do_lower_case": False, "keep_accents": True}, False, True),
        ("xlnet", XLNET, {}, False, False),
    ],
)
def test_albert_and_xlnet_clean_the_text_first(
    model_type: str,
    layout: dict[str, object],
    settings: dict[str, object],
    lowercase: bool,
    accents: bool,
    tmp_path: Path,
) -> None:
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=sentencepiece_folder(tmp_path, model_type, layout, **settings)
    )
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")  # these classes do not read it
    tokenizer = read_tokenizer(tmp_path, vocab_size=processor.get_piece_size() + 3)
    for text, ids in zip(TEXT, tokenizer.encode_ids(TEXT), strict=True):
        assert ids.tolist() == processor.encode(_cleaned(text, lowercase=lowercase, accents=accents)), text
    names = ("[CLS]", "[SEP]", "[MASK]") if model_type == "albert" else ("<cls>", "<sep>", "<mask>")
    assert [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id] == [processor.piece_to_id(name) for name in names]
    assert tokenizer.unk_id == processor.unk_id()


def test_xlm_r_numbers_the_pieces_after_four_specials(tmp_path: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_folder(tmp_path, "xlm-roberta", XLM_R))
    size = processor.get_piece_size()
    tokenizer = read_tokenizer(tmp_path, vocab_size=size + 2)
    for text, ids in zip(TEXT, tokenizer.encode_ids(TEXT), strict=True):
        assert ids.tolist() == [3 if i == 0 else i + 1 for i in processor.encode(text)], text
    assert [tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id] == [0, 1, 2, 3]
    assert tokenizer.mask_id == size + 1


def test_other_families_and_torn_files_are_refused(tmp_path: Path) -> None:
    content = sentencepiece_folder(tmp_path, "camembert", XLM_R)
    with refuses(CheckpointError, "model_type=camembert", "spiece.model", "ALBERT, XLNet and XLM-R"):
        read_tokenizer(tmp_path, vocab_size=500)
    sentencepiece_folder(tmp_path, "albert", ALBERT)
    (tmp_path / "spiece.model").write_bytes(content[: len(content) // 2])
    with refuses(CheckpointError, "spiece.model"):
        read_tokenizer(tmp_path, vocab_size=500)

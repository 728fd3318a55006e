"""Folders with a sentencepiece file alone, against sentencepiece itself after what each family does to text."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.tokenizer_files import read_tokenizer

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


def _folder(folder: Path, model_type: str, layout: dict[str, object], **settings: object) -> bytes:
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
    processor = sentencepiece.SentencePieceProcessor(model_proto=_folder(tmp_path, model_type, layout, **settings))
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")  # these classes do not read it
    tokenizer = read_tokenizer(tmp_path, vocab_size=processor.get_piece_size() + 3)
    for text, ids in zip(TEXT, tokenizer.encode_ids(TEXT), strict=True):
        assert ids.tolist() == processor.encode(_cleaned(text, lowercase=lowercase, accents=accents)), text
    names = ("[CLS]", "[SEP]", "[MASK]") if model_type == "albert" else ("<cls>", "<sep>", "<mask>")
    assert [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id] == [processor.piece_to_id(name) for name in names]
    assert tokenizer.unk_id == processor.unk_id()


def test_xlm_r_numbers_the_pieces_after_four_specials(tmp_path: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=_folder(tmp_path, "xlm-roberta", XLM_R))
    size = processor.get_piece_size()
    tokenizer = read_tokenizer(tmp_path, vocab_size=size + 2)
    for text, ids in zip(TEXT, tokenizer.encode_ids(TEXT), strict=True):
        assert ids.tolist() == [3 if i == 0 else i + 1 for i in processor.encode(text)], text
    assert [tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id] == [0, 1, 2, 3]
    assert tokenizer.mask_id == size + 1


def test_other_families_and_torn_files_are_refused(tmp_path: Path) -> None:
    content = _folder(tmp_path, "camembert", XLM_R)
    with refuses(CheckpointError, "model_type=camembert", "spiece.model", "ALBERT, XLNet and XLM-R"):
        read_tokenizer(tmp_path, vocab_size=500)
    _folder(tmp_path, "albert", ALBERT)
    (tmp_path / "spiece.model").write_bytes(content[: len(content) // 2])
    with refuses(CheckpointError, "spiece.model"):
        read_tokenizer(tmp_path, vocab_size=500)

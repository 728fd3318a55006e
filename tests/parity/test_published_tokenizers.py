"""Tokenizers that transformers saved, as we read them: the same ids on odd lines and on real text."""

from __future__ import annotations

import json
import lzma
import random
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fakes import published_tokenizers as toys

from lmtransfer.interop.tokenizers.tokenizer_files import read_tokenizer

transformers = pytest.importorskip("transformers")

ALPHABET = [
    *"abcthe TSM.,;'(3  \n\t",
    *"\u0301\u0323\u00e9\u00df\u0130\u00bd\u2026\ufdfa\ufb03\uff26\uff76\uff9e\u30ac\u4e2d\u6587\ud55c\u1112\u1161\u11ab",
    *"\u00a0\u200b\u200d\u2003\u3000\ufeff\u00ad\u2581\u2585\r\x01\x7f\u0600\u202e\U0001f600\U0001f468",
]


def odd_lines() -> list[str]:
    rng = random.Random(0)
    lines = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 40))) for _ in range(160)] + toys.TEXT
    return lines + [unicodedata.normalize("NFD", line) for line in toys.TEXT] + ["", " ", "\n", "x" * 300]


def fast(kind: str) -> Callable[[Path], None]:
    """Write a tokenizer that has no class of its own."""

    def save(folder: Path) -> None:
        names = {f"{role}_token": token for role, token in toys.KINDS[kind][1].items()}
        library = toys.library_of(kind)
        transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names).save_pretrained(folder)

    return save


def bert(**settings: Any) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        cased = not settings.get("do_lower_case", True)
        library = toys.library_of("wordpiece_cased" if cased else "wordpiece")
        vocabulary = sorted(library.get_vocab(), key=library.get_vocab().__getitem__)
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        transformers.BertTokenizerFast.from_pretrained(folder, **settings).save_pretrained(folder / "saved")

    return save


def byte_level(name: str, kind: str, **settings: Any) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        toys.library_of(kind).model.save(str(folder))
        getattr(transformers, name).from_pretrained(folder, **settings).save_pretrained(folder / "saved")

    return save


CASES: dict[str, Callable[[Path], None]] = {
    **{f"fast-{kind}": fast(kind) for kind in toys.KINDS},
    "bert-uncased": bert(),
    "bert-cased": bert(do_lower_case=False),
    "bert-accents": bert(do_lower_case=True, strip_accents=False, tokenize_chinese_chars=False),
    "roberta": byte_level("RobertaTokenizerFast", "roberta"),
    "roberta-prefix": byte_level("RobertaTokenizerFast", "roberta", add_prefix_space=True),
    "gpt2": byte_level("GPT2TokenizerFast", "gpt2"),
}


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    CASES[request.param](tmp_path)
    return tmp_path / "saved" if (tmp_path / "saved").is_dir() else tmp_path


def compare(folder: Path, lines: list[str]) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = read_tokenizer(folder, vocab_size=len(theirs) + 5)
    expected = [theirs(line, add_special_tokens=False)["input_ids"] for line in lines]
    found = [ids.tolist() for ids in ours.encode_ids(lines)]
    differing = [(line, a, b) for line, a, b in zip(lines, found, expected, strict=True) if a != b]
    assert not differing, differing[0]
    for role in ("cls", "sep", "mask", "unk", "pad"):
        if (token_id := getattr(theirs, f"{role}_token_id")) is not None:
            assert getattr(ours, f"{role}_id") == token_id, role


def test_ids_are_those_of_transformers(folder: Path) -> None:
    compare(folder, odd_lines())


@pytest.mark.parametrize("case", ["bert-uncased", "bert-cased", "bert-accents", "roberta", "roberta-prefix", "gpt2"])
def test_the_old_files_are_the_same_tokenizer(case: str, tmp_path: Path) -> None:
    CASES[case](tmp_path)
    whole = read_tokenizer(tmp_path / "saved", vocab_size=500)
    (tmp_path / "saved" / "tokenizer_config.json").rename(tmp_path / "tokenizer_config.json")
    old = read_tokenizer(tmp_path, vocab_size=500)
    assert not (tmp_path / "tokenizer.json").exists()
    for line, a, b in zip(odd_lines(), old.encode_ids(odd_lines()), whole.encode_ids(odd_lines()), strict=True):
        assert a.tolist() == b.tolist(), line


#: Files that disagree: the toy, changes to its normalizer or pre-tokenizer, tokenizer_config.json, config.json.
DISAGREEING: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "accents in tokenizer.json only": (
        "wordpiece",
        {"strip_accents": False},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True},
        {"model_type": "electra"},
    ),
    "chinese in tokenizer_config.json only": (
        "wordpiece",
        {},
        {"tokenizer_class": "DistilBertTokenizer", "tokenize_chinese_chars": False},
        {"model_type": "distilbert"},
    ),
    "no class and no settings": ("wordpiece_cased", {}, {}, {"model_type": "bert"}),
    "settings left over": (
        "wordpiece_cased",
        {},
        {"tokenizer_class": "TokenizersBackend", "do_lower_case": True, "tokenize_chinese_chars": False},
        {"model_type": "bert"},
    ),
    "a class that transformers does not know": (
        "wordpiece_cased",
        {},
        {"tokenizer_class": "KoreanTokenizer", "do_lower_case": True},
        {"model_type": "bert"},
    ),
    "class in config.json": (
        "wordpiece_cased",
        {},
        {"do_lower_case": True},
        {"model_type": "bert", "tokenizer_class": "PreTrainedTokenizerFast"},
    ),
    "modernbert": (
        "wordpiece_cased",
        {},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        {"model_type": "modernbert"},
    ),
    "space in tokenizer.json only": ("roberta_prefixed", {}, {}, {"model_type": "roberta"}),
    "space in tokenizer_config.json only": (
        "roberta",
        {},
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True},
        {"model_type": "roberta"},
    ),
}


@pytest.mark.parametrize("case", DISAGREEING)
def test_ids_are_those_of_transformers_if_files_disagree(case: str, tmp_path: Path) -> None:
    kind, normalizer, settings, config = DISAGREEING[case]
    described = json.loads(toys.model_of(kind))
    described["normalizer"] = (described["normalizer"] or {}) | normalizer or None
    names = {f"{role}_token": token for role, token in toys.KINDS[kind][1].items()}
    for file, content in (
        ("tokenizer.json", described),
        ("tokenizer_config.json", {**names, **settings}),
        ("config.json", config),
    ):
        (tmp_path / file).write_text(json.dumps(content), encoding="utf-8")
    compare(tmp_path, odd_lines())
    notes: list[str] = []
    read_tokenizer(tmp_path, vocab_size=500, notes=notes)
    assert notes, "the files disagree, which nobody was told"


@pytest.mark.parametrize("case", ["bert-uncased", "bert-cased", "roberta", "fast-unigram"])
def test_ids_of_real_text(case: str, data_root: Path, tmp_path: Path) -> None:
    files = sorted((data_root / "multilingual").rglob("*.xz"))
    if not files:
        pytest.skip("the data folder has no multilingual text")
    lines: list[str] = []
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as text:
            lines += [line.rstrip("\n")[:1000] for line in islice(text, max(1, 1000 // len(files)))]
    CASES[case](tmp_path)
    compare(tmp_path / "saved" if (tmp_path / "saved").is_dir() else tmp_path, lines)

"""Training vocabularies: determinism, the sample, limits, and messages."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from omegaconf import OmegaConf
from support.refusals import refuses
from tokenizers import models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer as BpeLibraryTrainer
from tokenizers.trainers import WordPieceTrainer as WordPieceLibraryTrainer

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tokenizers import trainers
from lmtransfer.tokenizers.base import SPECIALS, replace_surrogates
from lmtransfer.tokenizers.byte_bpe import space_words
from lmtransfer.tokenizers.trainers import (
    ByteBpeTrainer,
    SentencePieceTrainer,
    TokenizerTrainer,
    WordPieceTrainer,
    WordTokenizerTrainer,
    sample_lines,
)
from lmtransfer.tokenizers.wordpiece import library_of
from lmtransfer.tokenizers.words import split_words

TEXT = "the old man sea boat river valley child plays on banks in summer and reads a letter with nothing new"
WORDS = TEXT.split(" ")
CONF = Path(__file__).parents[2] / "conf" / "tokenizer"


def some_lines(number: int) -> Iterator[str]:
    for i in range(number):
        yield " ".join(WORDS[(i * 7 + k * (i % 5 + 1)) % len(WORDS)] for k in range(8)) + f" {i}."


def trainer(kind: str, **settings: Any) -> TokenizerTrainer:
    others: dict[str, type[TokenizerTrainer]] = {"byte_bpe": ByteBpeTrainer, "wordpiece": WordPieceTrainer}
    if kind in others:
        return others[kind](**settings)
    return SentencePieceTrainer(kind=kind, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "wordpiece"])
def test_training_is_deterministic(kind: str, tmp_path: Path) -> None:
    size = {"byte_bpe": 290, "wordpiece": 90}.get(kind, 150)

    def train(folder: str, **changes: Any) -> str:
        settings = {"vocab_size": size, "max_sentences": 500, "allow_fewer": True, **changes}
        return trainer(kind, **settings).train(some_lines(2000), tmp_path / folder).fingerprint

    first = train("a")
    assert train("b") == first
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    others = {train("c", seed=1), train("d", max_sentences=100), train("e", vocab_size=size - 10)}
    assert len(others | {first}) == 4


def test_settings_change_the_trainer_fingerprint() -> None:
    def fingerprint(**changes: object) -> str:
        return SentencePieceTrainer(**{"kind": "bpe", **changes}).fingerprint

    changes = [{}, {"kind": "unigram"}, {"vocab_size": 100}, {"lowercase": False}, {"seed": 1}, {"max_characters": 9}]
    assert len({fingerprint(**change) for change in changes}) == len(changes)
    assert fingerprint() == fingerprint(vocab_size=32768)


def test_lowercase(tmp_path: Path) -> None:
    lines = ["The Sea And The OLD Man"] * 10
    folded = SentencePieceTrainer(kind="bpe", vocab_size=40, allow_fewer=True).train(iter(lines), tmp_path / "a")
    cased = SentencePieceTrainer(kind="bpe", vocab_size=40, allow_fewer=True, lowercase=False).train(
        iter(lines), tmp_path / "b"
    )
    assert folded.decode(folded.encode("The OLD Man").ids) == "the old man"
    assert cased.decode(cased.encode("The OLD Man").ids) == "The OLD Man"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "wordpiece"])
def test_too_large_a_vocabulary_names_the_largest(kind: str, tmp_path: Path) -> None:
    with refuses(DataError, "tokenizer.vocab_size=32768", "32 lines", "tokenizer.allow_fewer=true") as caught:
        trainer(kind, allow_fewer=False).train(some_lines(32), tmp_path)
    assert not list(tmp_path.iterdir())
    largest = int(re.findall(r"tokenizer\.vocab_size=(\d+)", str(caught.value))[-1])
    assert trainer(kind, vocab_size=largest).train(some_lines(32), tmp_path).num_pieces == largest
    assert trainer(kind).train(some_lines(32), tmp_path).num_pieces == largest
    with refuses(DataError, f"tokenizer.vocab_size={largest} "):
        trainer(kind, vocab_size=largest + 1, allow_fewer=False).train(some_lines(32), tmp_path)


def test_a_capped_sample_is_named_as_the_reason(tmp_path: Path) -> None:
    with refuses(DataError, "tokenizer.max_characters is 2000", "tokenizer.max_sentences is 1000000"):
        SentencePieceTrainer(kind="bpe", max_characters=2000, allow_fewer=False).train(some_lines(500), tmp_path)
    with refuses(DataError, "tokenizer.vocab_size=32768") as whole:
        SentencePieceTrainer(kind="bpe", allow_fewer=False).train(some_lines(500), tmp_path)
    assert "tokenizer.max_" not in str(whole.value)


def test_too_small_a_vocabulary_names_the_smallest(tmp_path: Path) -> None:
    with refuses(DataError, "tokenizer.vocab_size=10", "tokenizer.character_coverage") as caught:
        SentencePieceTrainer(kind="bpe", vocab_size=10).train(some_lines(32), tmp_path)
    smallest = int(re.findall(r"tokenizer\.vocab_size=(\d+)", str(caught.value))[-1])
    assert SentencePieceTrainer(kind="bpe", vocab_size=smallest).train(some_lines(32), tmp_path)


@pytest.mark.parametrize("lines", [[], ["", "  "], ["\x01\x02"]])
def test_no_text_is_an_error(lines: list[str], tmp_path: Path) -> None:
    with refuses(DataError, "text"):
        SentencePieceTrainer(kind="bpe").train(iter(lines), tmp_path)


def test_all_config_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SentencePieceTrainer(
            kind="wordpiece",  # type: ignore[arg-type]
            vocab_size=4,
            character_coverage=2.0,
            max_sentences=0,
            max_characters=0,
        )
    keys = [problem.split("=")[0].removeprefix("tokenizer.") for problem in caught.value.problems]
    assert sorted(keys) == ["character_coverage", "kind", "max_characters", "max_sentences", "vocab_size"]


def test_all_config_problems_of_byte_bpe_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ByteBpeTrainer(vocab_size=259, min_frequency=0, max_sentences=0, max_characters=0)
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("name", ["unigram", "bpe", "byte_bpe", "wordpiece", "words"])
def test_configs_show_the_defaults(name: str) -> None:
    config = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    kind = getattr(trainers, config.pop("_target_").removeprefix("lmtransfer.tokenizers.trainers."))
    assert kind(**config).fingerprint == kind(**({"kind": name} if kind is SentencePieceTrainer else {})).fingerprint


def test_training_is_recorded(tmp_path: Path) -> None:
    lines = ["", "one line of text", "  ", "word " * 2000, "\u2585 another line"]
    tokenizer = SentencePieceTrainer(kind="bpe", vocab_size=60, allow_fewer=True).train(iter(lines), tmp_path)
    assert tokenizer.training["lines_seen"] == 5
    assert tokenizer.training["lines_empty"] == 2
    assert tokenizer.training["lines_split"] == 1
    assert tokenizer.training["pieces_used"] == tokenizer.training["pieces_seen"] == 5
    assert tokenizer.training["settings"]["vocab_size"] == 60
    words = [tokenizer.piece(i) for i in range(tokenizer.num_pieces)]
    assert "\u2581another" in words  # the line with sentencepiece's reserved character was not dropped


def test_sample_respects_both_caps_and_keeps_the_order() -> None:
    lines = [f"line {i:05d}" for i in range(20_000)]
    sample, counts = sample_lines(lines, max_sentences=1000, max_characters=10**9, seed=0)
    assert len(sample) == 1000 == counts.pieces_used
    assert sample == sorted(set(sample))
    assert counts.pieces_seen == 20_000
    # The sample is uniform: 1000 of 20,000 lines, so each quarter has 250 +- 14.
    quarters = [sum(int(line.split()[1]) // 5000 == q for line in sample) for q in range(4)]
    assert all(abs(quarter - 250) < 60 for quarter in quarters)

    sample, counts = sample_lines(lines, max_sentences=10**9, max_characters=5000, seed=0)
    assert 4990 <= sum(map(len, sample)) == counts.characters_used <= 5000
    everything, _ = sample_lines(lines, max_sentences=10**9, max_characters=10**9, seed=0)
    assert everything == lines
    assert (
        sample_lines(lines, max_sentences=9, max_characters=999, seed=1)[0]
        != (sample_lines(lines, max_sentences=9, max_characters=999, seed=2)[0])
    )


def test_long_lines_are_cut_without_loss() -> None:
    words = [f"word{i}" for i in range(30_000)]
    sample, counts = sample_lines([" ".join(words), "x" * 10_000], max_sentences=10**6, max_characters=10**9, seed=0)
    assert counts.lines_split == 2
    assert max(map(len, sample)) <= 4096
    assert " ".join(line for line in sample if line[0] == "w").split() == words
    assert "".join(line for line in sample if line[0] == "x") == "x" * 10_000


@pytest.mark.slow
def test_memory_is_bounded_by_the_sample() -> None:
    def peak(number: int) -> int:
        tracemalloc.start()
        sample_lines(
            (f"line {i} of the corpus" for i in range(number)), max_sentences=200, max_characters=10**9, seed=0
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(20_000)  # the first call in a process also allocates memory that stays allocated
    assert peak(80_000) < 1.2 * peak(20_000)


#: White space of all kinds, joining and dropped characters, marks with and without case, CJK, and lone surrogates.
ODD = (
    "a\u0301b \u0301c d\x0be f\x85g\u3000h i\u00a0j\u2028k l\u200bm n\ufffdo \x00p q\x1fr \ud800s t\udfffu",
    "\u00c5ngstr\u00f6m A\u030angstr\u00f6m \u0130stanbul",
    "STRASSE Stra\u00dfe \u1f48\u03b4\u03c5\u03c3\u03c3\u03b5\u03cd\u03c2 \ufb01n \u00bd",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e\u3067\u3059",
    "don't we'll it's  x-y (z) 3.14 1,000 e.g. \"quoted\"",
    "\u00abguillemets\u00bb \U0001f600\U0001f469\u200d\U0001f680 _under_score",
)


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_counts_the_words_that_the_library_finds_in_whole_lines(lowercase: bool) -> None:
    lines = [*ODD, *some_lines(300), *(line.title() for line in some_lines(100))]
    library = library_of(models.WordPiece(unk_token="[UNK]"), lowercase=lowercase)
    usable = [replace_surrogates(line) for line in lines]
    size = len({character for line in usable for character in line}) + 400
    own = WordPieceTrainer(vocab_size=size, lowercase=lowercase).train_on(lines, trainers.LineCounts())
    characters = Counter("".join(cut_by(library, line) for line in usable))
    inside = {piece[2:] for piece in own.pieces if piece.startswith("##") and len(piece) == 3}
    library.train_from_iterator(
        usable,
        WordPieceLibraryTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[*SPECIALS, *(f"##{character}" for character in sorted(inside))],
            initial_alphabet=sorted(characters),
            limit_alphabet=len(characters),
            show_progress=False,
        ),
    )
    assert set(own.pieces) == set(library.get_vocab())
    assert any(len(piece) > 3 for piece in own.pieces)


@pytest.mark.parametrize("lowercase", [True, False])
def test_byte_bpe_counts_the_words_that_the_library_finds_in_whole_lines(lowercase: bool) -> None:
    lines = [*ODD, *some_lines(300), *(line.title() for line in some_lines(100))]
    own = ByteBpeTrainer(vocab_size=600, lowercase=lowercase).train_on(lines, trainers.LineCounts())
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.Lowercase() if lowercase else None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator(
        [space_words(line) for line in lines],
        BpeLibraryTrainer(
            vocab_size=600,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    expected = json.loads(library.to_str())["model"]
    model = json.loads(own.model_bytes())["model"]
    assert model["vocab"] == expected["vocab"]
    assert model["merges"] == expected["merges"]


def test_words_are_counted_as_in_whole_lines() -> None:
    lines = [*ODD, *some_lines(50)]
    own = WordTokenizerTrainer(min_frequency=1).train_on(lines, trainers.LineCounts())
    assert set(own.words) == {word for line in lines for word in split_words(line, lowercase=True)}


def cut_by(library: tokenizers.Tokenizer, line: str) -> str:
    """The characters of a line that the library passes to its model."""
    return "".join(part for part, _ in library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(line)))

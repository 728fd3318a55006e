"""Whole words: spans, ids by frequency, characters, saving; characters in pretraining batches and in tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.texts import write_store
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, ConfigError, DataError
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer, characters_of
from lmtransfer.tokenizers.trainers import WordTokenizerTrainer
from lmtransfer.tokenizers.words import WordTokenizer

LINES = ["The cat sat; the cat slept.", "A cat, the dog -- and THE bird.", "na\u00efve \u6f22\u5b57 cat"] * 2


@pytest.fixture
def tokenizer(tmp_path: Path) -> WordTokenizer:
    return WordTokenizerTrainer(vocab_size=12).train(iter(LINES), tmp_path / "words")


def spelt(word: str) -> list[int]:
    """ELMo's scheme, written out: beginning of word, bytes + 1, end of word, filling."""
    row = [259, *[byte + 1 for byte in word.encode()][:48], 260]
    return row + [261] * (50 - len(row))


def test_words_are_sorted_by_frequency(tokenizer: WordTokenizer) -> None:
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(tokenizer, CharacterTokenizer)
    assert tokenizer.words[:4] == (
        "cat",
        "the",
        "-",
        ".",
    )  # 8, 8, 4, 4; equally frequent words are sorted by their letters
    assert tokenizer.num_pieces == 12
    assert tokenizer.vocab_size == 64
    assert [tokenizer.piece(i) for i in (0, 1, 2, 3, 4, 20)] == [
        "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "[unused20]",
    ]  # fmt: skip
    assert tokenizer.is_special.nonzero()[0].tolist() == [0, 1, 2, 3, *range(12, 64)]
    assert tokenizer.starts_word.all()


@pytest.mark.parametrize(
    "text",
    [
        "\u0939\u093f\u0928\u094d\u0926\u0940 \u0932\u093f\u092a\u093f",  # Hindi
        "\u0e1e\u0e35\u0e48 \u0e14\u0e35",  # Thai
        "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd cafe\u0301s",  # Hebrew; an accent as a separate character
    ],
)
def test_marks_belong_to_their_words(text: str, tokenizer: WordTokenizer) -> None:
    assert [text[start:end] for start, end in tokenizer.encode(text).offsets] == text.split()
    assert tokenizer.unknown_words(text) == text.split()


def test_offsets_cover_all_but_white_space(tokenizer: WordTokenizer) -> None:
    text = "  The na\u00efve\u00a0cat's\t\u6f22\u5b57, (x_1) \U0001f600!\n"
    encoding = tokenizer.encode(text)
    words = [text[start:end] for start, end in encoding.offsets]
    assert words == ["The", "na\u00efve", "cat", "'", "s", "\u6f22\u5b57", ",", "(", "x_1", ")", "\U0001f600", "!"]
    assert encoding.word_starts.all()
    assert np.array_equal(encoding.ids, tokenizer.encode_ids([text])[0])
    assert encoding.characters is not None
    assert encoding.characters.dtype == np.int16
    assert encoding.characters.tolist() == [spelt(word.lower()) for word in words]
    unknown = [word for word, i in zip(words, encoding.ids, strict=True) if i == tokenizer.unk_id]
    assert tokenizer.unknown_words(text) == [word.lower() for word in unknown]
    assert unknown


def test_characters_of_the_vocabulary(tokenizer: WordTokenizer) -> None:
    table = characters_of(tokenizer)
    assert table is not None
    assert table.shape == (64, 50)
    assert table.dtype == np.int16
    assert table[4].tolist() == spelt("cat")
    assert table[tokenizer.cls_id, :4].tolist() == [259, 257, 260, 261]
    assert table[tokenizer.sep_id, :4].tolist() == [259, 258, 260, 261]
    assert table[tokenizer.unk_id].tolist() == spelt("[UNK]")
    long = tokenizer.encode("x" * 99).characters
    assert long is not None
    assert long[0].tolist() == [259, *[ord("x") + 1] * 48, 260]


def test_case_is_kept_on_request(tokenizer: WordTokenizer) -> None:
    cased = WordTokenizer(tokenizer.words, lowercase=False)
    assert cased.fingerprint != tokenizer.fingerprint
    assert cased.encode("Cat cat").ids.tolist() == [0, 4]


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        WordTokenizerTrainer(vocab_size=4, min_frequency=0)
    assert len(raised.value.problems) == 2
    with refuses(DataError, "2 times", "tokenizer.min_frequency"):
        WordTokenizerTrainer().train(iter(["every word once"]), tmp_path)
    for words in (["a", "a"], ["a b"], [""]):
        with refuses(CheckpointError, "words"):
            WordTokenizer(words, lowercase=True)


def test_pretraining_batches_have_the_characters_of_their_tokens(tokenizer: WordTokenizer, tmp_path: Path) -> None:
    documents = [[ids.tolist() for ids in tokenizer.encode_ids(LINES)] for _ in range(9)]
    store = write_store(tmp_path / "s", documents, vocab_size=64, shard_documents=4)
    rows = LanguageStream(max_length=16, tokenizer=tokenizer)
    table = characters_of(tokenizer)
    for corruption in (NoCorruption(), TokenMasking(tokenizer=tokenizer, mask_prob=0.4)):
        source = PretrainingSource(
            store=store, rows=rows, corruption=corruption, seed=0, capacity=128, characters=table
        )
        batch = source.build(0, source.plan(0), range(5)).to("cpu")
        assert table is not None
        for packed in (batch.original, batch.inputs):
            assert packed.chars_TC is not None
            assert np.array_equal(packed.chars_TC.numpy(), table[packed.tokens_T.numpy()])
    assert (batch.original.tokens_T != batch.inputs.tokens_T).any()


@pytest.mark.parametrize("pairs", [False, True])
def test_task_batches_spell_unknown_words_exactly(tokenizer: WordTokenizer, pairs: bool) -> None:
    texts = ["The zebra sat with the quagga", "cat", "", "A zebra, Zebras & one okapi more, and one zebra"]
    seconds = ["okapi " * 3, "zebra the", "lynx", "the lynx"]
    examples = [TextExample("a", text, second if pairs else None) for text, second in zip(texts, seconds, strict=True)]
    encoded = encode_texts(examples, LabelTargets(np.array([0, 1, 0, 1])), tokenizer, max_length=9, num_segments=1)
    source = TaskSource(encoded)
    batch = source.build(0, source.plan(0), [3, 0, 2, 1]).packed
    assert batch.chars_TC is not None
    marks = {tokenizer.cls_id: 257, tokenizer.sep_id: 258}
    place = 0
    for number in (3, 0, 2, 1):
        sides = [tokenizer.encode(text) for text in ([texts[number], seconds[number]] if pairs else [texts[number]])]
        assert batch.tokens_T[place] == tokenizer.cls_id
        place += 1
        for side in sides:
            assert side.characters is not None
            for token, characters in zip(side.ids, side.characters, strict=True):
                if batch.tokens_T[place] == tokenizer.sep_id:
                    break  # truncated
                assert batch.tokens_T[place] == token
                assert batch.chars_TC[place].tolist() == characters.tolist()
                place += 1
            assert batch.chars_TC[place, 1] == marks[int(batch.tokens_T[place])] == 258
            place += 1
    assert place == batch.num_tokens
    assert encoded.character_table is not None
    assert len(encoded.character_table.table) - 64 <= 9  # each other word once

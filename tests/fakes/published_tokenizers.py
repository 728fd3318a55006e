"""Small tokenizers of the ``tokenizers`` library, one for each kind of pieces, as in published folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.published import PublishedTokenizer
from lmtransfer.tokenizers.trainers import LineCounts, WordPieceTrainer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer

TEXT = [
    "The old man said that the sea was calm, and the boat went out at dawn.",
    "A river runs through the valley; children play on its banks in summer.",
    "She read the letter twice (and then again), but it said nothing new.",
    "In 1984 the price was $3.50; by 2020 it had risen to 12.75 or more.",
    "Le caf\u00e9 co\u00fbte d\u00e9j\u00e0 cher, \ud55c\uad6d\uc5b4 \ud55c\uad6d \u4e2d\u6587\u4e2d\u6587",
] * 3
BERT = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]", "pad": "[PAD]"}
ROBERTA = {"cls": "<s>", "sep": "</s>", "mask": "<mask>", "unk": "<unk>", "pad": "<pad>"}
GPT2 = {"cls": "<|endoftext|>", "sep": "<|endoftext|>", "unk": "<|endoftext|>"}


def train_wordpiece(lines: Iterable[str], **settings: Any) -> WordPieceTokenizer:
    """Train a vocabulary with as many pieces as the lines support."""
    return WordPieceTrainer(allow_fewer=True, **settings).train_on(list(lines), LineCounts())


def wordpiece(*, lowercase: bool = True) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=180, special_tokens=specials, show_progress=False)
    )
    library.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    library.enable_truncation(8)
    library.enable_padding(length=12)
    return library


def byte_level(specials: list[str], *, add_prefix_space: bool = False) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=360,
            special_tokens=specials,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return library


def unigram(*, whitespace_first: bool = False) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    meta = pre_tokenizers.Metaspace()
    library.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta]) if whitespace_first else meta
    )
    library.decoder = decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(vocab_size=140, special_tokens=specials, unk_token="<unk>", show_progress=False),
    )
    return library


def whole_words() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.train_from_iterator(
        TEXT, trainers.WordLevelTrainer(special_tokens=list(BERT.values()), show_progress=False)
    )
    return library


#: Characters that tokenizers stumble over.
ALPHABET = [
    *"abcthe TSM.,;(3 ",
    *"\u0301\u0323\u00e9\u00df\u0130\u00bd\u2026\ufdfa\ufb03\uff26\uff76\uff9e\u30ac\u4e2d\u6587\ud55c\u1112\u1161\u11ab",
    *"\u00a0\u200b\u200d\u2003\u3000\ufeff\u00ad\u2581\u2585\t\n\r\x00\x01\x7f\u0600\u202e\ud800\U0001f600\U0001f468",
]
#: Each kind: its library tokenizer and its roles.
KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, str]]] = {
    "wordpiece": (wordpiece, BERT),
    "wordpiece_cased": (lambda: wordpiece(lowercase=False), BERT),
    "words": (whole_words, BERT),
    "roberta": (lambda: byte_level(list(ROBERTA.values())), ROBERTA),
    "roberta_prefixed": (lambda: byte_level(list(ROBERTA.values()), add_prefix_space=True), ROBERTA),
    "gpt2": (lambda: byte_level(["<|endoftext|>"]), GPT2),
    "unigram": (unigram, ROBERTA),
    "unigram_split": (lambda: unigram(whitespace_first=True), ROBERTA),
}


@cache
def model_of(kind: str) -> bytes:
    """The ``tokenizer.json`` of one kind; trained once, since the library breaks ties at random."""
    return KINDS[kind][0]().to_str().encode()


def library_of(kind: str) -> tokenizers.Tokenizer:
    """The library's own tokenizer of one kind, which neither cuts nor pads."""
    library = tokenizers.Tokenizer.from_buffer(model_of(kind))
    library.no_truncation()
    library.no_padding()
    return library


def published(kind: str, *, vocab_size: int | None = None) -> PublishedTokenizer:
    """A tokenizer of one kind."""
    return PublishedTokenizer(model_of(kind), specials=KINDS[kind][1], vocab_size=vocab_size)


def words_by_offsets(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text of each word, from the first character of its first token to the last of its last."""
    encoding = tokenizer.encode(text)
    spans: list[list[int]] = []
    for (start, end), begins in zip(encoding.offsets.tolist(), encoding.word_starts.tolist(), strict=True):
        if begins:
            spans.append([start, end])
        elif start < end:
            spans[-1] = [spans[-1][0] if spans[-1][0] < spans[-1][1] else start, end]
    return [text[start:end] for start, end in spans if start < end]

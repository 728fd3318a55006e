"""[MASK] in a text: its token ids and the surrounding ones, and the model's predictions."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, bert
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.fill_mask import MaskFiller, encode_with_masks
from lmtransfer.inference.pretrained import Frame, masked_predictor
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer
from lmtransfer.tokenizers.words import WordTokenizer

LINES = [
    "The ice cream was good, and the cream of the sea was better.",
    "A quickly jumping dog (the lazy one) jumped over the quick fox!",
    'She said: "the dog was quickly walking"; he walked, and they talked.',
    "Walking, talking and jumping: the good dog walked to the sea - quickly...",
] * 8


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes", "byte_fallback", "words"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    if request.param == "words":
        words = sorted({word.lower() for line in LINES for word in re.findall(r"\w+|[^\w\s]", line)})
        return WordTokenizer(words, lowercase=True)
    if request.param == "bytes":
        return ByteBpeTrainer(vocab_size=400, allow_fewer=True).train(iter(LINES), folder)
    if request.param == "byte_fallback":
        trainer = SentencePieceTrainer(kind="bpe", vocab_size=360, byte_fallback=True, allow_fewer=True)
    else:
        trainer = SentencePieceTrainer(kind=request.param, vocab_size=90, allow_fewer=True)
    return trainer.train(iter(LINES), folder)


def test_a_whole_word_that_is_one_token_becomes_a_mask_and_nothing_else_changes(tokenizer: Tokenizer) -> None:
    """This holds before white space, before punctuation and at the end of a text."""
    replaced = 0
    for line in LINES[:4]:
        encoding = tokenizer.encode(line)
        spans = encoding.offsets.tolist()
        for match in re.finditer(r"[A-Za-z]+", line):
            inside = [i for i, (start, end) in enumerate(spans) if start < match.end() and end > match.start()]
            if len(inside) != 1 or not encoding.word_starts[inside[0]]:
                continue
            masked = line[: match.start()] + "[MASK]" + line[match.end() :]
            wanted = encoding.ids.copy()
            wanted[inside[0]] = tokenizer.mask_id
            assert encode_with_masks(masked, tokenizer).tolist() == wanted.tolist(), masked
            replaced += 1
    assert replaced >= 8


@pytest.mark.parametrize("stem", ["quick", "walk", "jump"])
def test_the_end_of_a_word_may_follow_a_mask(tokenizer: Tokenizer, stem: str) -> None:
    """Text that continues a word has no word-start mark; text after white space has one."""
    joined = encode_with_masks(f"the [MASK]s and {stem}[MASK] was", tokenizer)
    apart = encode_with_masks(f"the [MASK] s and {stem} [MASK] was", tokenizer)
    masks = np.flatnonzero(joined == tokenizer.mask_id)
    assert len(masks) == 2
    after = int(joined[masks[0] + 1])
    if isinstance(tokenizer, WordTokenizer):
        assert joined.tolist() == apart.tolist()
    else:
        assert not tokenizer.starts_word[after]
        assert tokenizer.decode([after]).lower() == "s"
        assert tokenizer.starts_word[apart[masks[0] + 1]]
        assert joined.tolist() != apart.tolist()
    assert tokenizer.starts_word[joined[-1]] or tokenizer.decode(joined[-3:]).endswith("was")


def test_masks_stand_where_they_are_written(tokenizer: Tokenizer) -> None:
    mask = tokenizer.mask_id
    assert encode_with_masks("[MASK]", tokenizer).tolist() == [mask]
    assert encode_with_masks(" [MASK][MASK] ", tokenizer).tolist() == [mask, mask]
    the, sea = (tokenizer.encode(word).ids.tolist() for word in ("the", "sea"))
    assert encode_with_masks("the [MASK] [MASK]\tsea", tokenizer).tolist() == [*the, mask, mask, *sea]
    assert encode_with_masks("the[MASK]", tokenizer).tolist() == [*the, mask]
    assert encode_with_masks("the sea", tokenizer).tolist() == tokenizer.encode("the sea").ids.tolist()
    assert encode_with_masks("", tokenizer).tolist() == []


def test_unknown_characters_behind_a_mask_stay(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("x\u2603\u2603 the sea").ids.tolist()
    masked = encode_with_masks("[MASK]\u2603\u2603 the sea", tokenizer).tolist()
    assert masked[0] == tokenizer.mask_id
    assert masked.count(tokenizer.mask_id) == 1
    the_sea = tokenizer.encode("the sea").ids.tolist()
    assert masked[-len(the_sea) :] == the_sea
    snow = masked[1 : -len(the_sea)]
    assert snow == plain[-len(the_sea) - len(snow) : -len(the_sea)]
    assert snow


NUMBERS = NumberTokenizer()


@pytest.fixture(scope="module")
def learner() -> PretrainingLearner:
    made = PretrainingLearner(bert(), [MaskedLanguageModel()]).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def _filler(learner: PretrainingLearner, **changes: Any) -> MaskFiller:
    encoder: Any = learner.encoder
    rows: Any = SimpleNamespace(frame="both")
    return MaskFiller(
        predictor=masked_predictor(learner),
        tokenizer=NUMBERS,
        frame=Frame(tokenizer=NUMBERS, encoder=encoder, rows=rows),
        **changes,
    )


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_candidates_are_the_most_probable_pieces_of_a_plain_pass(
    learner: PretrainingLearner, batch_tokens: int
) -> None:
    texts = ["10 [MASK] 12 13 [MASK]", "[MASK] 7", "20 21 22 [MASK] 24 25 26"]
    found = _filler(learner, top_k=4, batch_tokens=batch_tokens).fill(texts)
    head: Any = learner.objectives["mlm"]
    encoder: Any = learner.encoder
    for text, masks in zip(texts, found, strict=True):
        ids = [1, *(3 if word == "[MASK]" else int(word) for word in text.split()), 2]
        with torch.no_grad():
            states = head.transform(encoder(pack([np.array(ids)])).last)
            shares = (states @ encoder.token_embedding.weight.T + head.bias).softmax(-1)
        places = [place for place, token in enumerate(ids) if token == 3]
        assert len(masks) == len(places)
        for mask, place in zip(masks, places, strict=True):
            assert text[mask["start"] : mask["end"]] == "[MASK]"
            ranked = sorted(range(4, 90), key=lambda token, row=shares[place]: -float(row[token]))[:4]  # type: ignore[misc]
            assert [candidate["piece"] for candidate in mask["candidates"]] == [str(token) for token in ranked]
            wanted = [float(shares[place, token]) for token in ranked]
            assert [candidate["probability"] for candidate in mask["candidates"]] == pytest.approx(wanted, rel=1e-4)


def test_mistakes_are_one_message(learner: PretrainingLearner) -> None:
    with refuses(DataError, "'4 5 6'", "[MASK]"):
        _filler(learner).fill(["4 5 6"])
    with refuses(DataError, "66 tokens", "64", "model.max_length"):
        _filler(learner).fill(["[MASK] " * 64])
    for top_k in (0, 87):
        with refuses(ConfigError, f"top_k={top_k}", " 1 ", " 86"):
            _filler(learner, top_k=top_k)

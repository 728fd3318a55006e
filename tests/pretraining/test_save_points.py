"""Points and budgets in words, and a run whose budget is in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.transfer_files import lmtransfer, result
from support.refusals import refuses

from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.pretraining.save_points import check_track, convert_words, word_budget, word_points


def _train(**settings: Any) -> TrainSettings:
    return TrainSettings.from_config(settings)


@pytest.mark.parametrize(
    ("value", "words"), [(None, None), (5000, 5000), ("100M", 100_000_000), ("2.5k", 2500), ("12", 12)]
)
def test_a_budget_in_words(value: Any, words: int | None) -> None:
    assert word_budget(_train(words=value)) == words


@pytest.mark.parametrize("value", [0, "0", "many", "1.5", "-3"])
def test_a_budget_that_is_no_number_of_words(value: Any) -> None:
    with refuses(ConfigError, f"train.words={value}", "100M"):
        word_budget(_train(words=value))


def test_the_checkpoints_of_the_challenge() -> None:
    """19 revisions of strict-small, chck_1M to chck_100M, and 28 of strict, to chck_1000M, as its rules list them."""
    small, strict = (word_points(_train(save_at_words=f"babylm_{track}")) for track in ("strict_small", "strict"))
    millions = [point // 10**6 for point in strict]
    assert [point // 10**6 for point in small] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert (len(small), len(strict)) == (19, 28)
    assert millions[:18] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert millions[18:] == [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"save_at_words": "babylm"}, ("babylm_strict_small", "babylm_strict")),
        ({"save_at_words": ["2k", "1k"]}, ("ascending",)),
        ({"save_at_words": ["1k", "much"]}, ("ascending",)),
        ({"save_at_words": ["1k", "2k"], "words": 1500}, ("2k", "raise")),
    ],
)
def test_points_that_are_refused(settings: dict[str, Any], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, "train.save_at_words", *names):
        word_points(_train(**settings))


@pytest.mark.parametrize(
    ("changes", "text_words", "names"),
    [
        ({}, 10_000_001, ("10,000,001 words", "corpus.max_words")),
        ({"words": "101M"}, 10_000_000, ("train.words=101M", "train.words=100M")),
        ({"words": None, "tokens": 5}, 9, ("no budget in words",)),
    ],
)
def test_a_track_has_limits(changes: dict[str, Any], text_words: int, names: tuple[str, ...]) -> None:
    settings = {"words": "100M", "save_at_words": "babylm_strict_small"}
    check_track(_train(**settings), text_words=10_000_000)
    check_track(_train(words="999M", save_at_words=["1M"]), text_words=20_000_000)
    with refuses(ConfigError, *names):
        check_track(_train(**{**settings, **changes}), text_words=text_words)


def test_words_become_tokens() -> None:
    train = convert_words(_train(words="1k", save_at_words=[0, 100]), lambda: 1.25)
    assert (train.tokens, train.words, train.save_at, train.save_at_words) == (1250, None, [0, 125], None)
    plain = _train(tokens=7, save_at=[3])
    assert convert_words(plain, lambda: pytest.fail("nothing to convert")) is plain
    with refuses(ConfigError, "train.save_at and train.save_at_words"):
        convert_words(_train(save_at=[1], save_at_words=[1]), lambda: 1.0)


def test_a_run_reads_the_words_of_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = "Uncharacteristically  long words\nand a few short ones .\n"
    documents = [f"{number} {sentence * 3}" for number in range(40)]
    Path("text.txt").write_text("\n".join(documents))
    num_words = 40 * (1 + 3 * 9)
    words = [
        "~experiment",
        "model=bert_tiny",
        "objective=mlm",
        "corpus=text",
        "corpus.path=text.txt",
        "cache_dir=cache",
    ]
    words += ["tokenizer.vocab_size=64", "tokenizer.allow_fewer=true", "objective.max_length=32", "hardware=exact"]
    words += ["train.batch_tokens=128", "corpus.validation_fraction=0.1", "name=w"]
    assert lmtransfer("pretrain", *words, "train.words=2000", "train.save_at_words=[0,1k]") == 0
    run = result("runs/pretrain/w")
    assert run["text_words"] == num_words
    # The budget ends with the first step that reaches it; a step reads at most 128 tokens, here fewer words.
    assert 2000 <= run["words"] <= 2000 + 128
    # A pass reads the words of the documents that are not held out, here 38 of 40.
    assert run["words"] == pytest.approx(run["epochs"] * 38 * 28, rel=0.01)
    assert len(run["revisions"]) == 2
    assert run["revisions"][0] == 0
    assert run["revisions"][1] == pytest.approx(run["tokens"] / run["words"] * 1000, rel=1e-3)
    assert lmtransfer("export", "run=runs/pretrain/w", "revisions=babylm", "to=out") == 0
    assert sorted(folder.name for folder in Path("out").iterdir()) == ["chck_0.001M", "chck_0M", "main"]
    parts = ["corpus=mixture", "corpus.parts=[text.txt]", *words[5:]]
    assert lmtransfer("pretrain", *words[:3], *parts, "train.words=2000", "name=m") != 0

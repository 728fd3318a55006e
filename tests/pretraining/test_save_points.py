"""train.save_at, train.save_at_words and budgets in words."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from fakes.transfer_files import lmtransfer, result
from support.refusals import refuses

from lmtransfer.config.check import read_group
from lmtransfer.config.component import Node
from lmtransfer.config.phases import Phase
from lmtransfer.config.revisions import count_text, read_count, split_revision, with_revision
from lmtransfer.config.settings import ObjectiveSettings, PhaseTrainSettings, TrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.pretraining.save_points import (
    check_reached,
    check_track,
    convert_words,
    explain_missed,
    explain_unreached,
    save_points,
    word_budget,
    word_points,
)


def phase(name: str, begins: float, ends: float, **train: int) -> Phase:
    """Return a phase without components."""
    own = PhaseTrainSettings(**train) if train else None
    return Phase(name, begins, ends, ObjectiveSettings.model_construct(), Node({}), train=own)


WHOLE = [phase("", 0.0, 1.0)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("0", 0), ("950", 950), ("1k", 1000), ("1500", 1500), ("100k", 10**5), ("1M", 10**6), ("2.5B", 25 * 10**8)],
)
def test_counts_are_read_and_written_in_the_shortest_way(text: str, tokens: int) -> None:
    assert read_count(text) == tokens
    assert count_text(tokens) == text


def test_every_count_survives_its_text() -> None:
    counts = {head * 10**zeros + more for head, zeros, more in itertools.product((1, 25, 999), range(13), (0, 1, 500))}
    assert {read_count(count_text(tokens)) for tokens in counts} == counts


@pytest.mark.parametrize("text", ["", "k", "-5", "1.5", "1K", "1e6", "1.2345k", "0x10", "1 M"])
def test_other_texts_are_no_counts(text: str) -> None:
    assert read_count(text) is None


def test_a_revision_is_what_follows_the_last_at_unless_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x@1M").mkdir()
    assert split_revision("runs/x@100k") == ("runs/x", 100_000)
    assert split_revision("runs/x") == ("runs/x", None)
    assert split_revision("runs/x@best") == ("runs/x@best", None)
    assert split_revision(str(tmp_path / "x@1M")) == (str(tmp_path / "x@1M"), None)
    assert split_revision(f"{tmp_path / 'x@1M'}@2M") == (str(tmp_path / "x@1M"), 2_000_000)
    assert with_revision("runs/x", 2_000_000) == "runs/x@2M"


def test_points_are_whole_numbers_in_ascending_order() -> None:
    assert save_points(TrainSettings(save_at=[0, "1.5k", 10_000])) == (0, 1500, 10_000)
    assert save_points(TrainSettings()) == ()
    with refuses(ConfigError, "train.save_at", "-4", "'20q'", "100 ", "50 "):
        save_points(TrainSettings(save_at=[0, 100, 100, -4, "20q", 50]))


def test_points_beyond_the_budget_are_refused_as_soon_as_it_is_known() -> None:
    points: list[int | str] = [0, "1k", "1001"]
    for enough in ({"tokens": 1001}, {"steps": 11}, {"epochs": 2.0}, {"seconds": 1.0}):
        check_reached(TrainSettings(save_at=points, batch_tokens=100, **enough), WHOLE, steps_per_epoch=6)
    check_reached(TrainSettings(save_at=points, batch_tokens=100, epochs=1), WHOLE)
    for kind, limit in (("tokens", 1000), ("steps", 10), ("epochs", 1)):
        settings: dict[str, Any] = {kind: limit}
        with refuses(ConfigError, "train.save_at", f"train.{kind}={limit}", "1,000", "1001"):
            check_reached(TrainSettings(save_at=points, batch_tokens=100, **settings), WHOLE, steps_per_epoch=10)
    larger = [phase("first", 0.0, 0.5, batch_tokens=200), phase("second", 0.5, 1.0)]
    check_reached(TrainSettings(save_at=points, batch_tokens=100, steps=10), larger)


def test_points_that_time_or_a_resumed_run_does_not_reach_are_named() -> None:
    (line,) = explain_unreached([0, 1000, 5_000_000], 2000.0)
    assert "5M" in line
    assert "1k" not in line
    assert not explain_unreached([0, 1000], 1000.0)
    (line,) = explain_missed([0, 1000, 2000], tokens=1500, revisions=[0])
    assert "1k" in line
    assert "2k" not in line
    assert not explain_missed([0, 1000], tokens=999, revisions=[0])


def _train(**settings: Any) -> TrainSettings:
    return read_group(TrainSettings, settings, key="")


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
    """The rules list 19 revisions for strict-small (chck_1M to chck_100M) and 28 for strict (up to chck_1000M)."""
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


@pytest.mark.slow
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
    # Training ends with the first step that reaches the budget; a step reads at most 128 tokens, and here fewer words.
    assert 2000 <= run["words"] <= 2000 + 128
    # An epoch reads the documents that are not held out, here 38 of 40.
    assert run["words"] == pytest.approx(run["epochs"] * 38 * 28, rel=0.01)
    assert len(run["revisions"]) == 2
    assert run["revisions"][0] == 0
    assert run["revisions"][1] == pytest.approx(run["tokens"] / run["words"] * 1000, rel=1e-3)
    assert lmtransfer("export", "run=runs/pretrain/w", "revisions=babylm", "to=out") == 0
    assert sorted(folder.name for folder in Path("out").iterdir()) == ["chck_0.001M", "chck_0M", "main"]
    parts = ["corpus=mixture", "corpus.parts=[text.txt]", *words[5:]]
    assert lmtransfer("pretrain", *words[:3], *parts, "train.words=2000", "name=m") != 0

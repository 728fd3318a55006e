"""Weights and caps of the parts of a mixture: shares, repeats, rows of an epoch, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.objectives import NumberTokenizer, store_of
from fakes.texts import made_up_documents, write_text
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.corpora.sampling import Sampling
from lmtransfer.data.token_store import MixedStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.rows.mixed import MixedPlan, quotas
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream

TOKENIZER = NumberTokenizer()


def level_filled(shares: np.ndarray, total: float, most: np.ndarray) -> np.ndarray:
    """The caps' fixed point by bisection: everyone takes ``level * share``, but at most ``most``."""
    low, high = 0.0, total / shares.min()
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(level * shares, most).sum() < total else (low, level)
    return np.minimum(high * shares, most)


@pytest.mark.parametrize("seed", range(20))
def test_amounts_are_those_of_a_common_level(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = {f"part{i}": float(draw.integers(100, 100_000)) for i in range(5)}
    weights = {name: float(draw.uniform(0.1, 5)) for name in sizes}
    caps = {name: float(draw.integers(1, 200_000)) for name in list(sizes)[:3]}
    passes = {name: float(draw.integers(1, 4)) for name in list(sizes)[2:4]}
    sampling = Sampling(weights=weights, max_tokens=caps, max_epochs=passes)
    shares = np.array(list(weights.values())) / sum(weights.values())
    most = np.array([min(caps.get(n, np.inf), passes.get(n, np.inf) * size) for n, size in sizes.items()])
    found = np.array(list(sampling.amounts(sizes).values()))
    assert found == pytest.approx(level_filled(shares, sum(sizes.values()), most), rel=1e-6)
    assert found.sum() == pytest.approx(sum(sizes.values()))  # the last part is not capped


def test_an_epoch_in_which_all_are_capped_is_shorter() -> None:
    sampling = Sampling(weights={"a": 1, "b": 9}, max_epochs={"a": 1, "b": 2})
    assert sampling.amounts({"a": 100.0, "b": 30.0}) == {"a": 70.0, "b": 60.0}
    assert Sampling(max_tokens={"a": 10, "b": 5}).amounts({"a": 100.0, "b": 30.0}) == {"a": 10.0, "b": 5.0}


def test_weights_are_shares_of_tokens_whatever_the_length_of_rows_and_the_sum_of_weights() -> None:
    lengths = {"short": np.full(4000, 10), "long": np.full(1000, 40)}
    for scale in (1, 0.01, 250):
        rows = quotas(lengths, Sampling(weights={"short": 3 * scale, "long": scale}))
        assert sum(rows.values()) == 5000
        tokens = {name: count * lengths[name][0] for name, count in rows.items()}
        assert tokens["short"] / sum(tokens.values()) == pytest.approx(0.75, abs=0.002)


def test_capped_rows_are_never_above_the_cap() -> None:
    lengths = {"a": np.full(90, 7), "b": np.full(10, 9), "c": np.full(33, 5)}
    for tokens in range(9, 200):
        rows = quotas(lengths, Sampling(alpha=0.0, max_tokens={"b": tokens}, max_epochs={"c": 1}))
        assert rows["b"] * 9 <= tokens
        assert rows["c"] == 33
        assert sum(rows.values()) == 133


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, draw = tmp_path_factory.mktemp("mixture"), np.random.default_rng(5)

    def documents(count: int) -> list[list[list[int]]]:
        return [[draw.integers(4, 90, draw.integers(3, 20)).tolist() for _ in range(6)] for _ in range(count)]

    return {name: store_of(folder / name, documents(count)) for name, count in (("large", 100), ("small", 6))}


def test_a_part_is_repeated_at_most_as_often_as_its_cap_says(stores: dict[str, Any]) -> None:
    rows = FullSentences(max_length=40, tokenizer=TOKENIZER)
    equal = {"large": 1.0, "small": 1.0}
    for passes in (None, 3.0):
        caps = {} if passes is None else {"small": passes}
        store = MixedStore(stores, Sampling(weights=equal, max_epochs=caps))
        for epoch in range(3):
            plan = MixedPlan(rows, store, seed=1, epoch=epoch)
            seen = Counter(plan.row(index).key for index in range(len(plan.lengths)))
            of_small = [count for key, count in seen.items() if key.startswith("small: ")]
            tokens = [int(plan.lengths[plan.parts == part].sum()) for part in range(2)]
            if passes is None:
                assert tokens[0] / sum(tokens) == pytest.approx(0.5, abs=0.02)
                assert min(of_small) > 5
            else:
                assert set(of_small) == {3}
        assert store.proportions()["small"] == pytest.approx(tokens[1] / sum(tokens), abs=0.02)


def test_every_epoch_is_a_function_of_seed_and_number(stores: dict[str, Any]) -> None:
    store = MixedStore(stores, Sampling(weights={"large": 1, "small": 2}, max_tokens={"small": 500}))
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)

    def keys(epoch: int, seed: int = 1) -> list[str]:
        plan = MixedPlan(rows, store, seed=seed, epoch=epoch)
        return [plan.row(index).key for index in range(len(plan.lengths))]

    assert keys(2) == keys(2)
    assert keys(2) != keys(3)
    assert keys(2) != keys(2, seed=7)


def test_a_cap_below_one_row_is_refused(stores: dict[str, Any]) -> None:
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)
    for caps, named in (
        (Sampling(max_tokens={"small": 10}), "corpus.max_tokens.small=10"),
        (Sampling(max_epochs={"small": 0.001}), "corpus.max_epochs.small=0.001"),
    ):
        with refuses(ConfigError, named, "row"):
            MixedPlan(rows, MixedStore(stores, caps), seed=0, epoch=0)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"weights": {"one": 1, "two": 1, "three": 1}}, ("corpus.weights.three", "one, two")),
        ({"weights": {"one": 1}}, ("corpus.weights", "two")),
        ({"weights": {"one": 0, "two": 1}}, ("corpus.weights.one=0",)),
        ({"weights": {"one": -2, "two": 1}}, ("corpus.weights.one=-2",)),
        ({"weights": {"one": float("nan"), "two": 1}}, ("corpus.weights.one=nan",)),
        ({"weights": {}}, ("corpus.weights", "one, two")),
        ({"max_tokens": {"tow": 5}}, ("corpus.max_tokens.tow", "one, two")),
        ({"max_epochs": {"two": 0}}, ("corpus.max_epochs.two=0",)),
    ],
    ids=str,
)
def test_settings_that_no_mixture_has(tmp_path: Path, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    path = write_text(tmp_path / "a.txt", made_up_documents(3))
    parts = {name: FileCorpus(path=str(path)) for name in ("one", "two")}
    with refuses(ConfigError, *names):
        MixtureCorpus(name="x", parts=parts, **settings)


def test_the_vocabulary_is_trained_on_the_weighted_text_and_known_by_it(tmp_path: Path) -> None:
    parts = {}
    for name, count in (("one", 150), ("two", 12)):
        text = [document.replace("a", name[0]) for document in made_up_documents(count, seed=len(parts))]
        parts[name] = FileCorpus(path=str(write_text(tmp_path / f"{name}.txt", text)), name=name)
    mixture = MixtureCorpus(name="both", parts=parts, weights={"one": 1, "two": 3}, max_epochs={"two": 1})
    own = {name: set(part.training_lines()) for name, part in parts.items()}
    lines = list(mixture.training_lines())
    drawn = {name: sum(len(line) for line in lines if line in texts) for name, texts in own.items()}
    assert drawn["two"] / sum(drawn.values()) == pytest.approx(0.75, abs=0.03)
    prints = {MixtureCorpus(name="x", parts=parts, weights=w).fingerprint() for w in (None, {"one": 1, "two": 3})}
    assert len(prints) == 2


def test_the_commands_tell_shares_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("one", 150), ("two", 20)):
        write_text(tmp_path / f"{name}.txt", made_up_documents(count, seed=count))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    words = ["corpus=mixture", "corpus.parts=[one.txt,two.txt]", "tokenizer.vocab_size=60"]
    weights = ["corpus.weights={one: 1, two: 3}"]
    assert main(["prepare", *words, *weights, "num_workers=0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line.split() for line in lines if line.strip().startswith(("one ", "two "))}
    assert (found["one"][3], found["two"][3]) == ("25.0%", "75.0%")
    small = [
        *("model=bert_tiny", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=32"),
        *("objective.max_length=32", "train.batch_tokens=256", "hardware.threads=1", "hardware.precision=fp32"),
    ]
    limits = ["corpus.max_epochs={two: 2}", "train.steps=2", "train.eval_every=2"]
    assert main(["pretrain", *words, *weights, *limits, *small, "name=x"]) == 0
    result = json.loads((tmp_path / "runs/pretrain/x/result.json").read_text())
    assert result["parts"]["two"]["passes"] == pytest.approx(2, abs=0.01)
    capsys.readouterr()
    assert main(["pretrain", *words, "corpus.max_tokens={two: 3}", *small, "name=y"]) == 2
    assert "corpus.max_tokens.two=3" in capsys.readouterr().err
    assert not (tmp_path / "runs/pretrain/y").exists()

"""Several corpora in one run: smoothed proportions, rows of one part each, validation by part, exact resume."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, bert, store_of
from fakes.texts import WordTokenizer, made_up_documents, write_text
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.config.component import Node
from lmtransfer.config.paths import conf_dir
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.mixture import MixtureCorpus, Sampling, smooth
from lmtransfer.data.micro_batches import PlannedStream, evaluation_batches
from lmtransfer.data.token_cache import prepare, tokenizer_for
from lmtransfer.data.token_frequencies import part_shares, token_shares
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.plain import to_plain
from lmtransfer.launch.short_forms import expand_parts
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.objectives.rows.mixture import MixedPlan, quotas
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.data import validate
from lmtransfer.pretraining.text import build_corpus
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.trackers.base import Jsonl

TOKENIZER = NumberTokenizer()
#: The tokens of each part, disjoint, so that a token identifies its part.
RANGES = {"large": (4, 30), "middle": (30, 60), "small": (60, 90)}


def documents(part: str, count: int) -> list[list[list[int]]]:
    low, high = RANGES[part]
    draw = np.random.default_rng(low)
    return [[draw.integers(low, high, draw.integers(3, 20)).tolist() for _ in range(6)] for _ in range(count)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MixedStore:
    folder, counts = tmp_path_factory.mktemp("mixture"), {"large": 120, "middle": 30, "small": 4}
    return MixedStore({name: store_of(folder / name, documents(name, n)) for name, n in counts.items()}, Sampling(0.5))


def source(store: MixedStore | TokenStore, rows: Rows | None = None) -> PretrainingSource:
    return PretrainingSource(
        store=store,
        rows=rows or LanguageStream(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_prob=0.15, tokenizer=TOKENIZER),
        seed=3,
        output_positions={"masked"},
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_proportions_are_the_closed_form(alpha: float) -> None:
    sizes = [9000, 900, 100]
    weights = [(size / 10000) ** alpha for size in sizes]
    expected = [weight / sum(weights) for weight in weights]
    assert smooth(np.array(sizes), alpha) == pytest.approx(expected)
    rows = {name: np.full(size, 32) for name, size in zip("abc", sizes, strict=True)}
    counts = np.array(list(quotas(rows, Sampling(alpha)).values()))
    assert counts.sum() == 10000
    assert np.abs(counts - 10000 * np.array(expected)).max() < 1
    assert smooth(np.array([5, 0, 5]), alpha).tolist() == [0.5, 0.0, 0.5]


def level_filled(shares: np.ndarray, total: float, most: np.ndarray) -> np.ndarray:
    """The fixed point under caps by bisection: each part gets ``level * share``, but at most ``most``."""
    low, high = 0.0, total / shares.min()
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(level * shares, most).sum() < total else (low, level)
    return np.minimum(high * shares, most)


@pytest.mark.parametrize("seed", range(5))
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


def test_an_epoch_has_the_smoothed_proportions_of_rows(store: MixedStore) -> None:
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)
    sizes = {name: -(-(part.num_tokens + part.num_documents) // 30) for name, part in store.parts.items()}
    roots = {name: size**0.5 for name, size in sizes.items()}
    for epoch in range(3):
        plan = MixedPlan(rows, store, seed=1, epoch=epoch)
        assert len(plan.lengths) == sum(sizes.values())
        drawn = Counter(np.array(list(store.parts))[plan.parts].tolist())
        for name, root in roots.items():
            assert drawn[name] == pytest.approx(sum(sizes.values()) * root / sum(roots.values()), abs=1)
        of_tokens = Counter(next(n for n, (low, high) in RANGES.items() if low <= _text(plan, i)[0] < high)
                            for i in range(len(plan.lengths)))  # fmt: skip
        assert of_tokens == drawn


def _text(plan: MixedPlan, index: int) -> list[int]:
    return [token for token in plan.row(index).tokens.tolist() if token > 3]


@pytest.mark.parametrize(
    "rows",
    [
        LanguageStream(max_length=24, tokenizer=TOKENIZER),
        FullSentences(max_length=40, tokenizer=TOKENIZER),
        SentencePairs(max_length=40, tokenizer=TOKENIZER),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_a_row_is_of_one_part_as_its_key_says(rows: Rows, store: MixedStore) -> None:
    plan = MixedPlan(rows, store, seed=1, epoch=1)
    assert len(set(plan.parts.tolist())) == 3
    for index in range(len(plan.lengths)):
        row = plan.row(index)
        low, high = RANGES[row.key.partition(":")[0]]
        assert len(row.tokens) == plan.lengths[index]
        assert all(low <= token < high for token in row.tokens.tolist() if token > 3)
        assert row.labels.keys() == rows.label_names.keys()


def test_no_row_comes_again_before_all_others_of_its_part(store: MixedStore) -> None:
    rows = FullSentences(max_length=40, tokenizer=TOKENIZER)  # with the same rows in every pass
    seen: dict[str, list[str]] = {name: [] for name in store.parts}
    for epoch in range(6):
        plan = MixedPlan(rows, store, seed=1, epoch=epoch)
        for index in range(len(plan.lengths)):
            seen[plan.row(index).key.partition(":")[0]].append(plan.row(index).key)
    for name, part in store.parts.items():
        size = len(rows.plan(part, seed=0, epoch=0).lengths)
        assert len(seen[name]) > size
        for start in range(0, len(seen[name]), size):
            whole = seen[name][start : start + size]
            assert len(set(whole)) == len(whole)


def _two(store: MixedStore) -> dict[str, TokenStore]:
    return {name: store.parts[name] for name in ("large", "small")}


def test_a_part_is_repeated_at_most_as_often_as_its_cap_says(store: MixedStore) -> None:
    rows, stores = FullSentences(max_length=40, tokenizer=TOKENIZER), _two(store)
    equal = {"large": 1.0, "small": 1.0}
    for passes in (None, 3.0):
        caps = {} if passes is None else {"small": passes}
        mixed = MixedStore(stores, Sampling(weights=equal, max_epochs=caps))
        for epoch in range(3):
            plan = MixedPlan(rows, mixed, seed=1, epoch=epoch)
            seen = Counter(plan.row(index).key for index in range(len(plan.lengths)))
            of_small = [count for key, count in seen.items() if key.startswith("small: ")]
            tokens = [int(plan.lengths[plan.parts == part].sum()) for part in range(2)]
            if passes is None:
                assert tokens[0] / sum(tokens) == pytest.approx(0.5, abs=0.02)
                assert min(of_small) > 5
            else:
                assert set(of_small) == {3}
        assert mixed.proportions()["small"] == pytest.approx(tokens[1] / sum(tokens), abs=0.02)


def test_every_epoch_is_a_function_of_seed_and_number(store: MixedStore) -> None:
    mixed = MixedStore(_two(store), Sampling(weights={"large": 1, "small": 2}, max_tokens={"small": 500}))
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)

    def keys(epoch: int, seed: int = 1) -> list[str]:
        plan = MixedPlan(rows, mixed, seed=seed, epoch=epoch)
        return [plan.row(index).key for index in range(len(plan.lengths))]

    assert keys(2) == keys(2)
    assert keys(2) != keys(3)
    assert keys(2) != keys(2, seed=7)


def test_a_cap_below_one_row_is_refused(store: MixedStore) -> None:
    rows = LanguageStream(max_length=32, tokenizer=TOKENIZER)
    for caps, named in (
        (Sampling(max_tokens={"small": 10}), "corpus.max_tokens.small=10"),
        (Sampling(max_epochs={"small": 0.001}), "corpus.max_epochs.small=0.001"),
    ):
        with refuses(ConfigError, named, "row"):
            MixedPlan(rows, MixedStore(_two(store), caps), seed=0, epoch=0)


def steps(stream: PlannedStream, count: int, start: int = 0) -> list[tuple[Any, ...]]:
    found, made = [], stream.steps(start)
    for _ in range(count):
        step = next(made)
        batches = [(b.keys, b.inputs.tokens_T.tolist(), b.targets_M.tolist()) for b in step.micro_batches]
        found.append((step.number, step.epoch, batches))
    return found


def test_steps_are_the_same_with_workers_and_from_any_step_on(store: MixedStore) -> None:
    def stream(num_workers: int = 0) -> PlannedStream:
        return PlannedStream(source(store), seed=3, batch_tokens=2048, micro_batch_tokens=512, num_workers=num_workers)

    count = stream().steps_per_epoch + 3  # into the second epoch
    alone = steps(stream(), count)
    assert steps(stream(3), count) == alone
    for start in (1, count - 4, count - 1):
        assert steps(stream(), count - start, start) == alone[start:]
    parts = [{key.partition(":")[0] for keys, _, _ in batches for key in keys} for _, _, batches in alone]
    assert all(len(found) > 1 for found in parts)  # a step has rows of several parts


def test_validation_by_part_is_that_of_each_part_alone(store: MixedStore) -> None:
    encoder: Encoder = bert()
    torch.manual_seed(0)
    learner = PretrainingLearner(encoder, [MaskedLanguageModel()])

    def measure(part: TokenStore, most_tokens: int | None) -> dict[str, float]:
        batches = evaluation_batches(source(part), micro_batch_tokens=512, max_tokens=most_tokens)
        return evaluate_losses(learner, batches)

    together = validate(measure, store, most_tokens=1500)
    alone = {name: validate(measure, part, most_tokens=500) for name, part in store.parts.items()}
    for name, losses in alone.items():
        for loss, value in losses.items():
            assert together[f"{loss}/{name}"] == value
    assert together["mlm"] == pytest.approx(sum(losses["mlm"] for losses in alone.values()) / 3)
    assert len({together[f"mlm/{name}"] for name in store.parts}) == 3


def test_rows_that_go_on_from_one_another_are_refused(store: MixedStore) -> None:
    rows = LanguageStream(max_length=32, frame="none", contiguous=True, tokenizer=TOKENIZER)
    with refuses(ConfigError, "objective.rows.contiguous=true", "objective/rows=stream"):
        source(store, rows).plan(0)


def test_a_part_that_has_too_little_for_its_rows_is_named(store: MixedStore, tmp_path: Path) -> None:
    single = store_of(tmp_path / "single", documents("small", 1))
    mixed = MixedStore({**store.parts, "single": single}, Sampling(1.0))
    with refuses(DataError, "corpus.parts.single", "2 documents", "objective=mlm"):
        MixedPlan(SentencePairs(max_length=40, tokenizer=TOKENIZER), mixed, seed=0, epoch=0)


def test_shares_of_tokens_and_of_the_vocabulary(store: MixedStore) -> None:
    shares = token_shares(store)
    by_part = {name: shares[low:high].sum() for name, (low, high) in RANGES.items()}
    assert by_part == pytest.approx(store.proportions())
    tokens = {name: part.num_tokens for name, part in store.parts.items()}
    found = part_shares(store, TOKENIZER)
    for name, (low, high) in RANGES.items():
        assert found[name].share == pytest.approx(tokens[name] / sum(tokens.values()))
        assert found[name].own == pytest.approx((high - low) / 86)
        assert 0 < found[name].vocabulary <= found[name].own
        assert found[name].unknown_rate == 0


def corpora(folder: Path) -> dict[str, FileCorpus]:
    made = {}
    for name, count in (("one", 150), ("two", 12)):
        text = [document.replace("a", name[0]) for document in made_up_documents(count, seed=len(made))]
        path = write_text(folder / f"{name}.txt", text)
        made[name] = FileCorpus(path=str(path), name=name, validation_fraction=0.2, split_unit="document")
    return made


def test_each_part_is_split_and_kept_as_if_it_were_alone(tmp_path: Path) -> None:
    parts, tokenizer = corpora(tmp_path), WordTokenizer()
    mixture = MixtureCorpus(name="both", parts=parts, alpha=0.5)
    together = prepare(mixture, tokenizer, cache_dir=tmp_path / "cache", num_workers=1)
    assert isinstance(together.train, MixedStore)
    for name, part in parts.items():
        alone = prepare(part, tokenizer, cache_dir=tmp_path / "cache", num_workers=1)
        assert alone.from_cache
        assert isinstance(alone.train, TokenStore)
        assert together.train.parts[name].folder == alone.train.folder
        held_out = {document.text for document in part.documents() if part.is_validation(document)}
        of_mixture = [d for d in mixture.documents() if d.key.startswith(f"{name}: ")]
        assert {document.text for document in of_mixture if mixture.is_validation(document)} == held_out
    counted = [part.statistics.tokens for part in together.parts.values()]
    assert together.statistics.tokens == sum(counted)


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 0.0}, {"alpha": 0.5}, {"alpha": 1.0}, {"weights": {"one": 1, "two": 3}, "max_epochs": {"two": 1}}],
    ids=str,
)
def test_the_vocabulary_is_trained_on_the_smoothed_or_weighted_text(tmp_path: Path, settings: dict[str, Any]) -> None:
    parts = corpora(tmp_path)
    mixture = MixtureCorpus(name="both", parts=parts, **settings)
    own = {
        name: [line for d in part.documents() if not part.is_validation(d) for line in d.text.split("\n")]
        for name, part in parts.items()
    }
    sizes = {name: sum(map(len, lines)) for name, lines in own.items()}
    lines = list(mixture.training_lines())
    assert lines == list(mixture.training_lines())
    drawn = {name: sum(len(line) for line in lines if line in set(texts)) for name, texts in own.items()}
    assert sum(drawn.values()) == pytest.approx(sum(sizes.values()), rel=0.06)
    weights = settings.get("weights") or {name: size ** settings["alpha"] for name, size in sizes.items()}
    for name, weight in weights.items():
        assert drawn[name] / sum(drawn.values()) == pytest.approx(weight / sum(weights.values()), abs=0.03)

    class Trainer:
        fingerprint = "trainer"
        seen: Sequence[str] = ()

        def train(self, given: Any, folder: Path) -> Any:
            self.seen = list(given)
            raise DataError("enough")

    trainer = Trainer()
    with pytest.raises(DataError, match="enough"):
        tokenizer_for(mixture, trainer, cache_dir=tmp_path / "cache")
    assert trainer.seen == lines


def test_a_mixture_is_known_by_its_proportions(tmp_path: Path) -> None:
    parts = corpora(tmp_path)
    settings: list[dict[str, Any]] = [{"alpha": 0.5}, {"alpha": 0.7}, {"weights": {"one": 1, "two": 3}}]
    assert len({MixtureCorpus(name="x", parts=parts, **given).fingerprint() for given in settings}) == 3


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"parts": ["one"]}, ("corpus.parts=['one']",)),
        ({"parts": ["a/b", "two"]}, ("corpus.parts.a/b",)),
        ({"alpha": 1.5}, ("corpus.alpha=1.5",)),
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
    parts = {name: FileCorpus(path=str(path)) for name in settings.get("parts", ("one", "two"))}
    with refuses(ConfigError, *names):
        MixtureCorpus(name="x", **{**settings, "parts": parts})


def config(parts: Any) -> Any:
    node = {
        "_target_": "lmtransfer.data.corpora.mixture.MixtureCorpus",
        "name": "mixture",
        "alpha": 0.7,
        "parts": parts,
    }
    return OmegaConf.create({"corpus": node, "data_root": None})


def test_every_source_that_is_missing_is_said_with_both_ways(tmp_path: Path) -> None:
    cfg = config(["fra", "deu"])
    expand_parts(cfg, [conf_dir()])
    with refuses(DataError, "corpus=fra", "corpus=deu") as raised:
        build_corpus(Node(to_plain(cfg.corpus, "corpus")[0]), None, data_root=None, cache_dir=tmp_path)
    of_fra, of_deu = str(raised.value).split("corpus=deu", 1)
    assert all(way in said for said in (of_fra, of_deu) for way in ("data_root", "hub"))


SMALL = [
    "corpus=mixture",
    "tokenizer.vocab_size=120",
    "tokenizer.allow_fewer=true",
    "model.num_layers=1",
    "model.dim=16",
    "model.num_heads=1",
    "model.hidden_dim=32",
    "train.batch_tokens=256",
    "train.log_every=1",
    "train.eval_every=2",
    "train.save_every=1",
    "hardware.threads=1",
    "hardware.precision=fp32",
]


def test_a_run_that_goes_on_is_the_run_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    words = ["pretrain", *SMALL, "corpus.parts=[one.txt,two.txt]"]
    assert main([*words, "name=alone", "train.steps=6"]) == 0
    assert "validation  loss    mlm" in capsys.readouterr().out
    logged = Jsonl.log

    def log_and_stop(tracker: Jsonl, record: dict[str, Any]) -> None:
        logged(tracker, record)
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Jsonl, "log", log_and_stop)
        assert main([*words, "name=cut", "train.steps=6"]) == 75
    assert main([*words, "name=cut", "train.steps=6", "resume=true"]) == 0

    def records(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "runs/pretrain" / name / "metrics.jsonl").read_text().splitlines()
        kept = [json.loads(line) for line in lines]
        return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in kept]

    assert records("cut") == records("alone")
    assert [line["step"] for line in records("cut")] == [1, 2, 3, 4, 5, 6]
    assert "validation/mlm/two" in records("cut")[-1]
    result = json.loads((tmp_path / "runs/pretrain/alone/result.json").read_text())
    assert {"mlm", "mlm/one", "mlm/two", "loss/one"} <= result["metrics"].keys()
    assert result["parts"]["one"]["share"] > result["parts"]["one"]["sampled"] > 0.5


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

"""The recipes of published systems: budgets and rates are those of the papers, and each recipe trains, made small."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fakes.transfer_files import lmtransfer, sentence

from lmtransfer.config.phases import phases_of
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.launch.run_once import command_settings

STEPS, WARMUP = 20, 5


def linear(done: float) -> float:
    return 1 - done


def cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def constant(done: float) -> float:
    return 1.0


def linear_to_a_fiftieth(done: float) -> float:
    return 1 - 0.98 * done


def stable_then_linear_to_a_fiftieth(done: float) -> float:
    return 1 - 0.98 * max(0.0, done - 0.8) / 0.2


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper or its code says.

    Attributes:
        rows: for each phase its share of the steps, the rows in a step and their length.
        steps: number of steps; None if the paper gives passes over the text.
        passes: number of passes; None if the paper gives steps.
        vocabulary: number of entries.
        rate: peak learning rate.
        warmup: number of steps of the linear warm-up, or its share of the budget.
        clip: largest norm of a gradient; None: gradients are not clipped.
        decay: what follows the warm-up, by the share of the steps done.
        small: the same recipe for a small text and a small model.
    """

    rows: Sequence[tuple[float, int, int]]
    vocabulary: int
    rate: float
    warmup: float
    clip: float | None
    decay: Callable[[float], float]
    small: Sequence[str]
    steps: int | None = None
    passes: int | None = None


TRANSFORMER = ("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.hidden_dim=16", "model.max_length=32")
ONE_LENGTH = ("objective.max_length=16", "train.batch_tokens=64", "train.micro_batch_tokens=null")
PUBLISHED = {
    "albert_base": Published(  # Lan et al. 2020, section 4.1; google-research/albert
        rows=[(1.0, 4096, 512)],
        steps=125_000,
        vocabulary=30_000,
        rate=1.76e-3,
        warmup=3125,
        clip=1.0,
        decay=linear,
        small=(*TRANSFORMER, *ONE_LENGTH, "model.embedding_dim=8"),
    ),
    "bert_base": Published(  # Devlin et al. 2019, appendix A.2; google-research/bert
        rows=[(0.9, 256, 128), (0.1, 256, 512)],
        steps=1_000_000,
        vocabulary=30_522,
        rate=1e-4,
        warmup=10_000,
        clip=1.0,
        decay=linear,
        small=(
            *(*TRANSFORMER, "train.micro_batch_tokens=null"),
            *("phases.short.objective.max_length=16", "phases.short.train.batch_tokens=64"),
            *("phases.long.objective.max_length=32", "phases.long.train.batch_tokens=128"),
        ),
    ),
    "electra_small": Published(  # Clark et al. 2020, table 6; google-research/electra, configure_pretraining.py
        rows=[(1.0, 128, 128)],
        steps=1_000_000,
        vocabulary=30_522,
        rate=5e-4,
        warmup=10_000,
        clip=1.0,
        decay=linear,
        small=(*TRANSFORMER, *ONE_LENGTH, "model.embedding_dim=8"),
    ),
    "elmo": Published(  # allenai/bilm-tf, bin/train_elmo.py and bilm/training.py
        rows=[(1.0, 3 * 128, 20)],
        passes=10,
        vocabulary=793_471,
        rate=0.2,
        warmup=0,
        clip=10.0,
        decay=constant,
        small=(
            *(*ONE_LENGTH, "model.dim=16", "model.cell_dim=16", "model.char_dim=4", "model.filters=[[1,4],[2,4]]"),
            "objective.losses.bilm.num_sampled=8",
        ),
    ),
    "gpt_base": Published(  # Radford et al. 2018, section 4.1; openai/finetune-transformer-lm, train.py
        rows=[(1.0, 64, 512)],
        passes=100,
        vocabulary=40_478,
        rate=2.5e-4,
        warmup=2000,
        clip=1.0,
        decay=cosine,
        small=(*TRANSFORMER, *ONE_LENGTH),
    ),
    "modern_base": Published(  # mosaicml/examples, mosaic-bert-base-uncased.yaml, in rows of 512
        rows=[(1.0, 1024, 512)],
        steps=286_720_000 // 4096,
        vocabulary=50_368,
        rate=5e-4,
        warmup=0.06,
        clip=1.0,
        decay=linear_to_a_fiftieth,
        small=(*TRANSFORMER, *ONE_LENGTH),
    ),
    "modern_small": Published(  # JHU-CLSP/ettin-encoder-vs-decoder, encoder_mini.yaml; budget and step are ours
        rows=[(1.0, 1024, 512)],
        steps=31_250,
        vocabulary=50_368,
        rate=1e-3,
        warmup=0.02,
        clip=1.0,
        decay=stable_then_linear_to_a_fiftieth,
        small=(*TRANSFORMER, *ONE_LENGTH),
    ),
    "xlnet_base": Published(  # zihangdai/xlnet, README; the budget is BERT base's
        rows=[(1.0, 256, 512)],
        steps=328_000,
        vocabulary=32_000,
        rate=1e-4,
        warmup=10_000,
        clip=1.0,
        decay=linear,
        small=(*TRANSFORMER, *ONE_LENGTH, "model.memory_length=16", "objective.corruption.max_predictions=null"),
    ),
    "roberta_base": Published(  # fairseq, examples/roberta
        rows=[(1.0, 2048, 512)],
        steps=125_000,
        vocabulary=50_265,
        rate=5e-4,
        warmup=10_000,
        clip=None,
        decay=linear,
        small=(*TRANSFORMER, *ONE_LENGTH),
    ),
    "transformer_xl_base": Published(  # kimiyoung/transformer-xl, pytorch/run_wt103_base.sh; its vocabulary is ours
        rows=[(1.0, 60, 150)],
        steps=200_000,
        vocabulary=32_768,
        rate=2.5e-4,
        warmup=0,
        clip=0.25,
        decay=cosine,
        small=(*TRANSFORMER, *ONE_LENGTH, "model.memory_length=16"),
    ),
}
#: One of each course of the rate, one with phases, and XLNet's, which hides by its own share.
TRAINED = ("bert_base", "elmo", "modern_base", "modern_small", "transformer_xl_base", "xlnet_base")
RECIPES = pytest.mark.parametrize(("recipe", "published"), PUBLISHED.items(), ids=PUBLISHED)


@RECIPES
def test_budget_and_rates_are_those_of_the_paper(recipe: str, published: Published) -> None:
    settings = command_settings("pretrain", [f"experiment={recipe}"])
    assert isinstance(settings, PretrainSettings)
    train, rows = settings.train, []
    for phase in phases_of(settings):
        max_length = phase.objective.max_length
        tokens = (None if phase.train is None else phase.train.batch_tokens) or train.batch_tokens
        assert tokens is not None
        assert tokens % max_length == 0
        rows.append((pytest.approx(phase.ends - phase.begins), tokens // max_length, max_length))
    assert published.rows == rows
    assert (train.steps, train.epochs) == (published.steps, published.passes)
    assert (train.tokens, train.seconds) == (None, None)
    assert settings.tokenizer.trainer.get("vocab_size") == published.vocabulary
    assert train.max_grad_norm == published.clip
    rate = settings.optimizer.get("learning_rate", settings.optimizer.get("lr"))
    warmup = settings.schedule.get("warmup_steps") or settings.schedule.get("warmup_fraction")
    assert (rate, warmup) == (published.rate, published.warmup)
    assert settings.embeddings is None


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    draw = random.Random(0)
    documents = ["\n".join(sentence(k % 2, draw).capitalize() + "." for _ in range(12)) for k in range(60)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("text")
@pytest.mark.parametrize(("recipe", "published"), [(name, PUBLISHED[name]) for name in TRAINED], ids=TRAINED)
def test_it_trains_with_the_published_course_of_the_rate(recipe: str, published: Published) -> None:
    words = [
        *("pretrain", f"experiment={recipe}", "corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.2"),
        *("tokenizer.vocab_size=300", f"train.steps={STEPS}", "train.log_every=1", "train.eval_tokens=64"),
        *("hardware=exact", *published.small, *([f"schedule.warmup_steps={WARMUP}"] if published.warmup else [])),
    ]
    assert lmtransfer(*words) == 0
    lines = Path("runs/pretrain/pretrain/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert all(math.isfinite(record["loss"]) for record in records)
    for number, record in enumerate(records):
        warmup = min(1, (number + 1) / WARMUP) if published.warmup else 1
        expected = published.rate * warmup * published.decay(number / STEPS)
        assert record["learning_rate"] == pytest.approx(expected), number

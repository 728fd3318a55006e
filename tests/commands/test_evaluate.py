"""Pretraining runs evaluated on held-out text, as in training and with other memory lengths."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.transfer_files import lmtransfer, result
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.token_cache import prepare
from lmtransfer.randomness import generator

TINY = ["model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=32", "tokenizer.vocab_size=48"]
QUICK = [
    "corpus=text",
    "corpus.path=text.txt",
    "corpus.validation_fraction=0.3",
    "hardware=exact",
    "train.seconds=null",
]
QUICK += ["train.steps=3", "train.batch_tokens=128", "objective.max_length=16", "cache_dir=cache"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Transformer-XL run and a BERT run on a small text."""
    folder = tmp_path_factory.mktemp("world")
    rng = random.Random(0)
    words = [a + b for a in "bdfgklmn" for b in "aeiou"]
    documents = ["\n".join(" ".join(rng.choices(words, k=9)) for _ in range(12)) for _ in range(24)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        common = [*TINY, *QUICK]
        memory = ["model.memory_length=16"]
        assert lmtransfer("pretrain", "experiment=transformer_xl_laptop", *common, *memory, "name=txl") == 0
        assert lmtransfer("pretrain", "experiment=laptop", *common, "name=bert") == 0
        yield folder


def test_losses_are_those_of_the_runs_own_last_validation(world: Path) -> None:
    for name in ("txl", "bert"):
        words = [f"run=runs/pretrain/{name}", "hardware=exact", "eval_tokens=100000", f"name={name}"]
        assert lmtransfer("evaluate", *words) == 0
        measured, trained = result(f"runs/evaluate/{name}"), result(f"runs/pretrain/{name}")
        assert measured["metrics"] == pytest.approx(trained["metrics"], abs=1e-6)
        assert measured["task"] is None
        assert "curve" not in measured


def _text(world: Path) -> tuple[Any, list[int]]:
    """Return the run's encoder and the ids of the held-out text."""
    encoder, tokenizer, _ = load_encoder("runs/pretrain/txl")
    corpus = FileCorpus(path="text.txt", validation_fraction=0.3)
    store = prepare(corpus, tokenizer, cache_dir=Path("cache2")).validation
    ids: list[int] = []
    starts = store.sentence_starts[store.document_starts]
    for first, last in zip(starts, starts[1:], strict=False):
        ids += [*store.tokens(int(first), int(last)).tolist(), tokenizer.sep_id]
    return encoder, ids


def test_the_curve_is_the_loss_with_each_memory_on_the_same_tokens(world: Path) -> None:
    words = ["run=runs/pretrain/txl", "hardware=exact", "memory_lengths=[0,8,64]", "segment_length=8"]
    assert lmtransfer("evaluate", *words, "eval_tokens=null") == 0
    measured = result("runs/evaluate/pretrain-txl-memory")
    assert measured["curve"]["key"] == "memory_length"
    assert measured["curve"]["values"] == [0, 8, 64]
    assert measured["metrics"]["loss"] == measured["curve"]["losses"][-1]
    encoder, ids = _text(world)
    by_hand = [_by_hand(encoder.eval(), ids, memory=memory) for memory in (0, 8, 64)]
    assert measured["curve"]["losses"] == pytest.approx(by_hand, rel=1e-5)
    assert len(set(by_hand)) == 3


def test_few_tokens_still_count_a_window_of_each_stream(world: Path) -> None:
    words = ["run=runs/pretrain/txl", "hardware=exact", "memory_lengths=[0,8,64]", "segment_length=8"]
    assert lmtransfer("evaluate", *words, "eval_tokens=null", "name=all") == 0
    of_all = result("runs/evaluate/all")["curve"]["losses"]
    assert lmtransfer("evaluate", *words, "eval_tokens=30", "name=few") == 0
    few = result("runs/evaluate/few")["curve"]["losses"]
    assert few == pytest.approx(of_all, rel=0.3)


def _by_hand(encoder: Any, ids: list[int], *, memory: int, segment: int = 8, longest: int = 64) -> float:
    """Compute each window of each stream separately, in order; the first windows of a stream are not counted."""
    cut = int(generator(0, "stream", 0).integers(len(ids)))
    text = ids[cut:] + ids[: cut + 1]
    num_windows, warm_up = len(ids) // segment, longest // segment
    num_streams = max(min(8, num_windows // (4 * warm_up)), 1)
    in_stream = num_windows // num_streams
    assert num_streams > 1
    assert in_stream > warm_up
    encoder.stack.memory_length = memory
    total, count = 0.0, 0
    with torch.no_grad():
        for stream in range(num_streams):
            recurrent_state = None
            for window in range(in_stream):
                start = (stream * in_stream + window) * segment
                output = encoder(pack([np.array(text[start : start + segment])]), recurrent_state=recurrent_state)
                recurrent_state = output.recurrent_state
                if window >= warm_up:
                    logits = output.last @ encoder.token_embedding.weight.T
                    targets = torch.tensor(text[start + 1 : start + segment + 1])
                    total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
                    count += segment
    return total / count


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["run=runs/pretrain/bert", "memory_lengths=[0,8]"], ("memory_lengths", "BertEncoder")),
        (["run=runs/pretrain/txl", "memory_lengths=[0,-8]"], ("memory_lengths", "-8", "0 or more")),
        (["run=runs/pretrain/txl", "memory_lengths=[8]", "segment_length=5000"], ("segment_length=5000",)),
        (["run=runs/pretrain/txl", "memory_lengths=[90000]"], ("memory_lengths", "90000 tokens")),
        (["run=runs/pretrain/txl", "memory_lengths=[8]", "segment_length=some"], ("segment_length: ", "'some'")),
        (["run=runs/pretrain/txl", "segment_length=8"], ("segment_length", "memory_lengths=")),
    ],
)
def test_mistakes_are_one_message(
    world: Path, words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("evaluate", *words, "hardware=exact", "name=mistake") == 2
    captured = capsys.readouterr().err
    assert all(name in captured for name in names), captured
    assert "Traceback" not in captured
    assert not Path("runs/evaluate/mistake").exists()

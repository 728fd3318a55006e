"""Training on a GPU: against the CPU, resumed, in float16, compiled, and with too little memory."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import NumberTokenizer, bert, random_documents, store_of
from fakes.training import trainer_of
from support.gpu_device import gpu

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.models.execution import compile_blocks
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.optim.schedules import Constant
from lmtransfer.training.precision import Precision
from lmtransfer.training.progress import ProgressLine

pytestmark = pytest.mark.gpu

LENGTH = 64


class _Losses:
    """A tracker that records the loss of every step."""

    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}
        self.skipped = 0

    def rewind(self, step: int) -> None:
        self.by_step = {number: loss for number, loss in self.by_step.items() if number <= step}

    def log(self, record: Mapping[str, Any]) -> None:
        self.by_step[record["step"]] = record["loss"]
        self.skipped = record["skipped"]

    def close(self) -> None:
        pass


class _Notes(ProgressLine):
    """Return the messages for the user."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("store"), random_documents(300, least_sentences=4))


def _trainer(
    store: TokenStore,
    device: torch.device,
    losses: _Losses,
    *,
    steps: int,
    precision: Precision | None = None,
    length: int = LENGTH,
    batch_tokens: int = 1024,
    capacity: int | None = None,
    compiled: bool = False,
    folder: Path | None = None,
    notes: _Notes | None = None,
    **shape: Any,
) -> Trainer:
    """BERT with masked tokens and next sentences on random text, with fixed seeds."""
    tokenizer = NumberTokenizer()
    objectives = [MaskedLanguageModel(), NextSentencePrediction()]
    torch.manual_seed(1)
    learner = PretrainingLearner(bert(**{"dim": 64, "hidden_dim": 128, "max_length": length, **shape}), objectives)
    learner.to(device)
    if compiled:
        compile_blocks(learner)
    source = PretrainingSource(
        store=store,
        rows=SentencePairs(max_length=length, tokenizer=tokenizer),
        corruption=TokenMasking(tokenizer=tokenizer, mask_prob=0.15),
        seed=0,
        output_positions=collect_output_positions(objectives),
        capacity=capacity,
    )
    stream = PlannedStream(source, seed=0, batch_tokens=batch_tokens)
    return trainer_of(
        learner=learner,
        stream=stream,
        optimizer=AdamW(learner=learner, learning_rate=1e-3),
        schedule=Constant(),
        budget=Budget(steps=steps),
        seed=0,
        device=device,
        precision=precision or Precision(device=device),
        max_grad_norm=1.0,
        checkpoints=None if folder is None else Checkpoints(folder),
        trackers=[losses],
        log_every=1,
        progress=notes or ProgressLine(quiet=True),
    )


def test_fifty_steps_in_float32_give_the_losses_of_the_cpu(store: TokenStore) -> None:
    here, there = _Losses(), _Losses()
    _trainer(store, gpu(), here, steps=50).train()
    _trainer(store, torch.device("cpu"), there, steps=50).train()
    assert len(here.by_step) == 50
    assert here.by_step == pytest.approx(there.by_step, rel=2e-3)
    assert sum(there.by_step[step] for step in range(46, 51)) < sum(there.by_step[step] for step in range(1, 6))


def test_a_resumed_run_goes_on_as_if_uninterrupted(store: TokenStore, tmp_path: Path) -> None:
    """Close, not bit-identical: a GPU's kernels add gradients in no fixed order. Other dropout masks would fail."""
    whole, resumed = _Losses(), _Losses()
    _trainer(store, gpu(), whole, steps=16, dropout=0.1).train()
    _trainer(store, gpu(), resumed, steps=8, dropout=0.1, folder=tmp_path / "run").train()
    trainer = _trainer(store, gpu(), resumed, steps=16, dropout=0.1, folder=tmp_path / "run")
    trainer.resume()
    assert trainer.state.step == 8
    trainer.train()
    assert len(whole.by_step) == 16
    assert resumed.by_step == pytest.approx(whole.by_step, rel=1e-4)


def test_float16_lowers_its_scale_until_gradients_fit_and_then_learns(store: TokenStore) -> None:
    losses, device = _Losses(), gpu()
    precision = Precision(name="fp16", device=device, init_scale=2.0**40)
    _trainer(store, device, losses, steps=60, precision=precision).train()
    assert losses.skipped > 0
    assert 1 <= precision.scale < 2.0**40
    assert min(losses.by_step.values()) < 0.97 * losses.by_step[1]


def test_compiled_blocks_of_one_size_are_not_compiled_again(store: TokenStore) -> None:
    losses, plain, device = _Losses(), _Losses(), gpu()
    precision = Precision(name="bf16", device=device)
    trainer = _trainer(store, device, losses, steps=20, precision=precision, capacity=1024, compiled=True)
    updater, steps = trainer.updater, trainer.stream.steps()
    trainer.learner.train()
    for _ in range(3):
        updater.step(next(steps), factor=lambda tokens: 1.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled = [updater.step(next(steps), factor=lambda tokens: 1.0).loss for _ in range(12)]
    _trainer(store, device, plain, steps=15, precision=Precision(name="bf16", device=device)).train()
    assert compiled == pytest.approx([plain.by_step[step] for step in range(4, 16)], rel=0.03)


def test_out_of_memory_halves_the_micro_batch_and_changes_no_loss(store: TokenStore) -> None:
    device = gpu()
    if device.type != "cuda":
        pytest.skip("only a GPU's memory can be limited")
    large: dict[str, Any] = {
        "steps": 3, "length": 256, "batch_tokens": 16384, "dim": 256, "num_heads": 4, "hidden_dim": 1024
    }  # fmt: skip
    plain, limited, notes = _Losses(), _Losses(), _Notes()
    torch.cuda.reset_peak_memory_stats(device)
    _trainer(store, device, plain, **large).train()
    peak = torch.cuda.max_memory_reserved(device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.7 * peak / torch.cuda.mem_get_info(device)[1], device)
    try:
        _trainer(store, device, limited, notes=notes, **large).train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert all(name in notes.notes[0] for name in ("memory", "train.micro_batch_tokens="))
    assert limited.by_step == pytest.approx(plain.by_step, rel=1e-3)

"""Our side: the real trainer with the real stream, which cuts, masks and packs rows during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.training_setup import prepare_encoders
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.loop import Trainer, TrainerConfig
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.optim.schedules import Constant
from lmtransfer.transfer.freezing import Freezing
from lmtransfer.transfer.heads import ClassificationHead, HeadLayers
from lmtransfer.transfer.layer_selection import OneLayer
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.pooling import EveryToken, OneToken
from lmtransfer.transfer.span_head import SpanHead

from .clock import Clock
from .setting import FINETUNING, LEARNING_RATE, Setting, num_parameters
from .text import objectives_of, stream_of


class _Timed(Callback):
    """A callback that passes each step to the clock."""

    name = "clock"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, outcome: Any, record: Any, *, fraction: float) -> Sequence[str]:
        self.clock.step(outcome.tokens)
        return ()


@dataclass(frozen=True, slots=True)
class Training:
    """The parts of a training: the learner on its device, its steps and its optimizer."""

    learner: nn.Module
    stream: PlannedStream
    optimizer: AdamW
    hardware: Hardware


def training_of(setting: Setting) -> Training:
    """Build the training of a part."""
    pretraining = setting.part not in FINETUNING
    hardware = setup(
        device=setting.device,
        threads=setting.threads,
        compile="auto" if pretraining else False,
        residual="auto" if pretraining else "float32",
        num_workers=None if pretraining else 0,
    )
    stream, tokenizer = stream_of(
        setting,
        one_size=hardware.compile,
        few_shapes=hardware.device.type == "cpu",
        num_workers=hardware.num_workers,
    )
    encoder = BertEncoder(
        vocab_size=setting.vocab_size or tokenizer.vocab_size,
        dim=setting.dim,
        num_layers=setting.num_layers,
        num_heads=setting.num_heads,
        hidden_dim=setting.hidden_dim,
        dropout=setting.dropout,
    )
    learner = PretrainingLearner(encoder, objectives_of(setting)) if pretraining else _classifier(setting, encoder)
    learner.to(hardware.device)
    prepare_encoders(learner, hardware)
    return Training(learner, stream, AdamW(learner=learner, learning_rate=LEARNING_RATE), hardware)


def measure(setting: Setting) -> dict[str, Any]:
    """Train and measure the time."""
    training = training_of(setting)
    hardware = training.hardware
    clock = Clock(warmup=setting.warmup, device=setting.device)
    Trainer(
        learner=training.learner,
        stream=training.stream,
        optimizer=training.optimizer,
        config=TrainerConfig(
            schedule=Constant(),
            budget=Budget(steps=setting.warmup + setting.steps),
            seed=0,
            device=hardware.device,
            precision=hardware.precision,
            max_grad_norm=1.0,
            log_every=math.gcd(setting.warmup, setting.steps),
        ),
        callbacks=[_Timed(clock)],
    ).train()
    flags = f"Trainer, {hardware.precision.name}" + (", compiled blocks" if hardware.compile else ", eager")
    return {
        **clock.result(),
        "flags": flags,
        "parameters": num_parameters(training.learner),
        "mean_length": training.stream.mean_length,
    }


def _classifier(setting: Setting, encoder: BertEncoder) -> nn.Module:
    reading = OneLayer(index=-1, num_layers=setting.num_layers)
    if setting.part == "finetune_spans":
        return TaskLearner(
            encoder=encoder,
            reading=reading,
            composition=EveryToken(dim=setting.dim),
            head=SpanHead(HeadLayers(input_dim=setting.dim, dropout=0.0), num_labels=0, max_answer_tokens=30),
            freezing=Freezing(),
        )
    return TaskLearner(
        encoder=encoder,
        reading=reading,
        composition=OneToken(dim=setting.dim, which="first"),
        head=ClassificationHead(HeadLayers(input_dim=setting.dim, dropout=setting.dropout), num_labels=2),
        freezing=Freezing(),
        use_pooler=True,
    )

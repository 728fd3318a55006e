"""Values out of bounds, settings that exclude each other, texts that are none."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.bad_input import FINETUNE, PREPARE, PRETRAIN, UNREAD, Answer, Case, bounded, check
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.launch import overrides
from lmtransfer.launch.composing import Composed, compose
from lmtransfer.launch.run_once import settings_of

#: Values out of bounds, by key.
BOUNDS = {
    "model.dim": ("-8", "0", "1e12", "nan"),
    "model.num_layers": ("-1", "0", "1e9"),
    "model.dropout": ("1.5", "-0.1", "nan", "1"),
    "objective.max_length": ("0", "-5"),
    "objective.mask_prob": ("0", "1.5", "nan"),
    "optimizer.learning_rate": ("0", "-1", "nan", "inf", "1e400"),
    "optimizer.weight_decay": ("-1", "nan"),
    "schedule.warmup_fraction": ("1.5", "-1"),
    "train.batch_tokens": ("0", "-1"),
    "train.max_grad_norm": ("nan", "inf", "-1"),
    "seed": ("-1", "99999999999999999999", "18446744073709551616"),
    "corpus.validation_fraction": ("2", "nan"),
    "model.num_segments": ("0",),
    "corpus.name": ("../x", "a//b"),
    "objective.losses.mlm.weight": ("-1", "nan"),
    "train.num_workers": ("-1", "100000"),
    "train.log_every": ("0", "null"),
    "train.micro_batch_tokens": ("0",),
    "hardware.threads": ("0", "100000"),
}

CASES: dict[str, Case] = {
    # 22: values out of bounds: one of each kind here; all of them below
    **{
        f"bounds.{key}={value}": bounded(key, value)
        for key, value in (
            ("model.dim", "1e12"),
            ("optimizer.learning_rate", "nan"),
            ("corpus.name", "../x"),
        )
    },
    **{
        f"bounds.adamw.{key}={value}": Case(
            (*UNREAD, f"optimizer.{key}={value}", "optimizer=adamw"), (f"optimizer.{key}",)
        )
        for key, value in (("betas", "[0.9,1.0]"), ("eps", "0"))
    },
    "bounds.seconds=inf": Case((*UNREAD, "train.steps=null", "train.seconds=inf"), ("train.seconds",)),
    "bounds.epochs=0": Case((*UNREAD, "train.steps=null", "train.epochs=0"), ("train.epochs",)),
    "bounds.finetune_rate": Case((*FINETUNE, "optimizer.learning_rate=nan", "learning_rates=null"), ("learning_rate",)),
    # 22: settings that exclude each other
    "both.warmups": Case(
        (*UNREAD, "schedule.warmup_steps=5", "schedule.warmup_fraction=0.5"),
        ("schedule.warmup_steps=5", "schedule.warmup_fraction=0.5"),
    ),
    "both.models": Case((*UNREAD, "model=gpt_mini"), ("model=bert_tiny", "model=gpt_mini")),
    # 24: a start that fails leaves nothing
    **{
        f"start.batch_tokens={value}": Case((*PRETRAIN, f"train.batch_tokens={value}"), ("train.batch_tokens",))
        for value in (1, 31)
    },
    "start.rows_too_long": Case(
        (*PRETRAIN, "objective.max_length=64", "train.batch_tokens=32"), ("train.batch_tokens",)
    ),
    "start.not_finite": Case(
        (*PRETRAIN, "train.steps=50", "optimizer.learning_rate=1e38"), ("optimizer.learning_rate",)
    ),
    # 24: no text
    "text.empty": Case((*PREPARE, "corpus.path=a.txt"), ("a.txt", "empty"), {"a.txt": b""}),
    "text.empty_jsonl": Case((*PREPARE, "corpus.path=a.jsonl"), ("a.jsonl", "empty"), {"a.jsonl": b""}),
    **{
        f"text.binary{name}": Case((*PREPARE, f"corpus.path=a{name}"), (f"a{name}", what), {f"a{name}": content})
        for name, content, what in (
            (".docx", b"PK\x03\x04\x14\x00\x06\x00word/document.xml", "ZIP"),
            (".pdf", b"%PDF-1.7\nstream\nhello there\n", "PDF"),
            (".bin", bytes(range(7)) * 3 + bytes(500), "binary"),
            (".txt", "hello there".encode("utf-16-le") + b"\n\0", "UTF-16"),
            (".gzip", b"\x1f\x8b\x08\x00" + bytes(20), "gzip"),
        )
    },
    "text.binary_replaced": Case(
        (*PREPARE, "corpus.path=a.odt", "corpus.encoding_errors=replace"),
        ("a.odt",),
        {"a.odt": b"PK\x03\x04\x14\x00\xff\xfe"},
    ),  # fmt: skip
    "task.binary": Case((*FINETUNE, "task.train=t.docx"), ("t.docx",), {"t.docx": b"PK\x03\x04\x14\x00"}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_bad_value_is_refused(name: str, world: Path, answer: Answer) -> None:
    check(CASES[name], world, answer)


@pytest.fixture(scope="module")
def composed() -> Composed:
    """The settings of a pretraining whose corpus cannot be read, composed once."""
    words = ["~experiment" if word == "experiment=null" else word for word in UNREAD[1:]]
    return compose("pretrain", words)


@pytest.mark.parametrize("key", list(BOUNDS))
def test_every_value_out_of_bounds_is_refused_by_its_key(key: str, composed: Composed) -> None:
    for value in BOUNDS[key]:
        cfg = copy.deepcopy(composed.config)
        OmegaConf.update(cfg, key, overrides.parse(f"{key}={value}").value(), force_add=True)
        with refuses(ConfigError, f"{key}:"):
            settings_of(replace(composed, config=cfg))

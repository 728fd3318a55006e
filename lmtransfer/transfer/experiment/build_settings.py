"""Build the settings of a probe or finetuning command: its complete config, and what its training runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from torch import Tensor

from lmtransfer.config.component import build
from lmtransfer.config.effective import effective_train
from lmtransfer.config.overrides import override_keys
from lmtransfer.interop.importing import attention_of
from lmtransfer.interop.open_run import open_saved, origin_of
from lmtransfer.models.base import Encoder
from lmtransfer.runs.saved import SavedRun, new_encoder, pretraining_seed, pretraining_seeds, read_encoder
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.tasks.base import Task
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.transfer.convex_fit import MOST_ROWS
from lmtransfer.transfer.experiment.data import read_task_data, task_notes
from lmtransfer.transfer.experiment.setting import Part, Setting
from lmtransfer.transfer.joint.text import read_joint_text
from lmtransfer.transfer.method import TransferMethod


def open_start(cfg: DictConfig) -> SavedRun:
    """Open the run in ``init`` or ``tokenizer_from``, and set its path and, for ``init``, its model in the config."""
    key = "init" if cfg.get("init") else "tokenizer_from"
    source = open_saved(cfg[key], key=key)
    with open_dict(cfg):
        cfg[key] = source.reference
        if key == "init":
            cfg.model = source.model_node
    return source


def build_settings(
    cfg: DictConfig, source: SavedRun, *, command: str, hardware: Hardware, console: Console
) -> list[Setting]:
    """Read everything that the runs share; wrong method or task settings raise errors here, before any training.

    Args:
        cfg: the config; values determined here are written to it.
        source: the run in ``init`` or ``tokenizer_from``.
        command: "probe" or "finetune".

    Returns:
        One setting per pretraining seed, with different weights; a single setting without ``init``.
    """
    train = effective_train(cfg, primary=command)
    cache_dir = default_cache_dir() if cfg.cache_dir is None else Path(cfg.cache_dir).expanduser().absolute()
    task: Task = build(cfg.task, data_root=cfg.data_root, cache_dir=str(cache_dir))
    if task.zero_shot:
        _ = task.head  # raises an error if there is nothing to train
    if cfg.task.get("labels", "") is None:
        cfg.task.labels = list(task.labels)  # as discovered in the training file; saved with the run by name
    if cfg.task.get("scheme", "") is None:
        cfg.task.scheme = getattr(task, "scheme", None)  # likewise
    # Check the weights against the configs before building an encoder of that size.
    held = [(one, read_encoder(one)) for one in pretraining_seeds(source)] if cfg.get("init") else []
    encoder = new_encoder(cfg.model, source.tokenizer, seed=0)
    if held and cfg.transfer.get("attention") == "auto":
        ended = attention_of(source, encoder)
        if ended != encoder.attention:
            cfg.transfer.attention = ended  # this run's attention, also when it is loaded later
    method: TransferMethod = build(cfg.transfer)
    method.attend(encoder)
    has_started = []
    for one, weights in held:
        console.print(f"encoder: {short_path(one.checkpoint())}, on {hardware}", soft_wrap=True)
        has_started.append((one, with_trained_start(weights, encoder, one.tokenizer, one.config)))
    text = None
    if method.text is not None:
        with console.status("reading the text"):
            text = read_joint_text(cfg, source, method.text, cache_dir=cache_dir)
    if "pieces" in cfg.transfer:
        cfg.transfer.pieces = method.resolved_pieces(encoder)  # this run's pieces, also when it is loaded later
    seeds = range(cfg.seed, cfg.seed + cfg.seeds)
    with console.status(f"reading {task.name}"):
        data = read_task_data(task, source.tokenizer, encoder, seeds=seeds, split=cfg.split)
    for line in task_notes(task):
        console.print(f"note: {line}", markup=False, soft_wrap=True)
    setting = Setting(
        task=task,
        tokenizer=source.tokenizer,
        model_node=cfg.model,
        weights=None,
        method=method,
        data=data,
        train=train,
        hardware=hardware,
        optimizer=cfg.optimizer,
        schedule=cfg.schedule,
        checkpoint=cfg.checkpoint,
        cache_dir=cache_dir,
        text=text,
    )
    setting = replace(setting, solves=_solves(cfg, setting, console))
    settings = [
        replace(
            setting,
            weights=weights,
            init=one.reference,
            origin=origin_of(one),
            pretraining_seed=pretraining_seed(one),
            features={},
            text=None if text is None else text.with_heads_of(one),
        )
        for one, weights in has_started
    ] or [setting]
    for started_from in settings:
        first = Part(started_from, "pretrained", cfg.seed, None)
        learner = first.new_learner()  # raises an error if method or weights do not suit the encoder
        if started_from.text is not None:
            heads = started_from.text.heads_over(learner.encoder)
            console.print(f"{started_from.text}; {heads}", soft_wrap=True)
    if text is not None and cfg.control:
        console.print("the control reads the same text: joint training too, but from random weights and heads")
    return settings


def _solves(cfg: DictConfig, setting: Setting, console: Console) -> bool:
    """Decide whether heads are fitted to their optimum; if so, set training settings to null in the config and say so.

    All runs of a command share the decision, so that a run and its control are fitted alike.
    """
    if setting.method.fit == "trainer" or not Part(setting, "pretrained", cfg.seed, None).new_learner().is_convex:
        return False
    train = setting.data.train
    rows = max(len(train.target_rows(train.sequences_of(part.train))) for part in setting.data.whole.values())
    if rows > MOST_ROWS:
        console.print(f"{rows:,} training rows are more than {MOST_ROWS:,}: the head is trained in batches")
        return False
    keys = ("checkpoint", "learning_rates", "optimizer", "schedule", "train")
    named = sorted(key for key in override_keys() if key.partition(".")[0] in keys)
    if named:
        console.print(
            f"note: a linear head on fixed features is fitted to its optimum, so {', '.join(named)} "
            f"{'has' if len(named) == 1 else 'have'} no effect; set transfer.fit=trainer to train it",
            soft_wrap=True,
        )
    with open_dict(cfg):
        cfg.update(dict.fromkeys(keys))
    return True


def with_trained_start(
    weights: Mapping[str, Tensor], encoder: Encoder, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return a pretrained encoder's weights, in which an untrained [CLS] is a copy of [SEP].

    Tasks read "[CLS] text [SEP]". Pretraining rows without a frame (``lm_contiguous``, ``skipgram``, ``cbow``, ELMo's
    and XLNet's contiguous streams) have no [CLS], so its vector is still random. Such an encoder has read the [SEP] of
    the previous document before every document. Therefore [CLS] starts as a copy of [SEP] and is trained from there.

    Args:
        weights: weights of the encoder, by name.
        encoder: any encoder with the same config.
        config: config of the run. The weights are unchanged if the run continued another run, was imported, or is not a
            pretraining run.
    """
    weights = dict(weights)
    rows = (config.get("objective") or {}).get("rows") or {}
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus") or "task" in config:
        return weights
    character_table = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    has_started, ended = (
        encoder.input_rows(token, None if character_table is None else character_table[token])
        for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    if has_started is None or ended is None:
        return weights
    (table, starts), (_, ends) = has_started, ended
    differ = [(start, end) for start, end in zip(starts, ends, strict=True) if start != end]
    key = next(f"{name}.weight" for name, module in encoder.named_modules() if module is table)
    table_VD = weights[key].clone()
    table_VD[[start for start, _ in differ]] = weights[key][[end for _, end in differ]]
    return {**weights, key: table_VD}

"""The settings of a probe or finetuning command: the complete config, and the runs' shared settings."""

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
from lmtransfer.transfer.convex_fit import MAX_ROWS
from lmtransfer.transfer.experiment.data import read_task_data, task_notes
from lmtransfer.transfer.experiment.setting import Part, Setting
from lmtransfer.transfer.joint.text import read_joint_text
from lmtransfer.transfer.method import TransferMethod


def open_start(cfg: DictConfig) -> SavedRun:
    """Open the run in ``init`` or ``tokenizer_from``; write its path and, for ``init``, its model to the config."""
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
    """Build the settings that the runs share; invalid method or task settings raise errors here, before any training.

    Args:
        cfg: the config, to which the values determined here are written.
        source: the run in ``init`` or ``tokenizer_from``.
        command: "probe" or "finetune".

    Returns:
        One setting per pretraining seed, each with its own weights; a single setting without ``init``.
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
    runs = [(run, read_encoder(run)) for run in pretraining_seeds(source)] if cfg.get("init") else []
    encoder = new_encoder(cfg.model, source.tokenizer, seed=0)
    if runs and cfg.transfer.get("attention") == "auto":
        last_attention = attention_of(source, encoder)
        if last_attention != encoder.attention:
            cfg.transfer.attention = last_attention  # this run's attention, also when it is loaded later
    method: TransferMethod = build(cfg.transfer)
    method.attend(encoder)
    starts = []
    for run, weights in runs:
        console.print(f"encoder: {short_path(run.checkpoint())}, on {hardware}", soft_wrap=True)
        starts.append((run, with_trained_start(weights, encoder, run.tokenizer, run.config)))
    text = None
    if method.text is not None:
        with console.status("reading the text"):
            text = read_joint_text(cfg, source, method.text, cache_dir=cache_dir)
    if "pieces" in cfg.transfer:
        cfg.transfer.pieces = method.resolve_pieces(encoder)  # this run's pieces, also when it is loaded later
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
            init=run.reference,
            origin=origin_of(run),
            pretraining_seed=pretraining_seed(run),
            features={},
            text=None if text is None else text.with_run_heads(run),
        )
        for run, weights in starts
    ] or [setting]
    for seed_setting in settings:
        first = Part(seed_setting, "pretrained", cfg.seed, None)
        learner = first.new_learner()  # raises an error if method or weights do not suit the encoder
        if seed_setting.text is not None:
            heads = seed_setting.text.loaded_heads(learner.encoder)
            console.print(f"{seed_setting.text}; {heads}", soft_wrap=True)
    if text is not None and cfg.control:
        console.print("the control is also trained jointly on the same text, but from random weights and heads")
    return settings


def _solves(cfg: DictConfig, setting: Setting, console: Console) -> bool:
    """Decide whether heads are fitted to their optimum; if so, set the training settings in the config to null.

    All runs of a command share the decision, so that a run and its control are fitted in the same way.
    """
    if setting.method.fit == "trainer" or not Part(setting, "pretrained", cfg.seed, None).new_learner().is_convex:
        return False
    train = setting.data.train
    rows = max(len(train.target_rows(train.sequences_of(part.train))) for part in setting.data.whole.values())
    if rows > MAX_ROWS:
        console.print(f"there are more than {MAX_ROWS:,} training rows ({rows:,}), so the head is trained in batches")
        return False
    keys = ("checkpoint", "learning_rates", "optimizer", "schedule", "train")
    user_keys = sorted(key for key in override_keys() if key.partition(".")[0] in keys)
    if user_keys:
        console.print(
            f"note: a linear head on fixed features is fitted to its optimum, so {', '.join(user_keys)} "
            f"{'has' if len(user_keys) == 1 else 'have'} no effect; set transfer.fit=trainer to train the head",
            soft_wrap=True,
        )
    with open_dict(cfg):
        cfg.update(dict.fromkeys(keys))
    return True


def with_trained_start(
    weights: Mapping[str, Tensor], encoder: Encoder, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return a pretrained encoder's weights; the vector of an untrained [CLS] is replaced by that of [SEP].

    Tasks read "[CLS] text [SEP]". Pretraining rows without a frame (``lm_contiguous``, ``skipgram``, ``cbow``, ELMo's
    and XLNet's contiguous streams) have no [CLS], so the vector of [CLS] is still random. Such an encoder has read the
    [SEP] of the previous document before every document. Therefore [CLS] starts as a copy of [SEP].

    Args:
        weights: weights of the encoder, by name.
        encoder: any encoder with the same config.
        config: the run's config. The weights are unchanged if the run continued another run, was imported, or is not a
            pretraining run.
    """
    weights = dict(weights)
    rows = (config.get("objective") or {}).get("rows") or {}
    if rows.get("frame") != "none" or config.get("init") or not config.get("corpus") or "task" in config:
        return weights
    character_table = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    cls_rows, sep_rows = (
        encoder.input_rows(token, None if character_table is None else character_table[token])
        for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    if cls_rows is None or sep_rows is None:
        return weights
    (table, targets), (_, sources) = cls_rows, sep_rows
    copies = [(target, origin) for target, origin in zip(targets, sources, strict=True) if target != origin]
    key = next(f"{name}.weight" for name, module in encoder.named_modules() if module is table)
    table_VD = weights[key].clone()
    table_VD[[target for target, _ in copies]] = weights[key][[origin for _, origin in copies]]
    return {**weights, key: table_VD}

"""Suggestions for misspelled names and for names from other tools, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_NAMES = 24

#: Other tools' names for settings, with the corresponding keys here.
_ELSEWHERE = {
    "lr": ("optimizer.learning_rate",),
    "learning_rate": ("optimizer.learning_rate",),
    "wd": ("optimizer.weight_decay",),
    "weight_decay": ("optimizer.weight_decay",),
    "adam_epsilon": ("optimizer.eps",),
    "optim": ("optimizer",),
    "scheduler": ("schedule",),
    "lr_scheduler_type": ("schedule",),
    "warmup": ("schedule.warmup_fraction",),
    "warmup_ratio": ("schedule.warmup_fraction",),
    "epochs": ("train.epochs",),
    "num_epochs": ("train.epochs",),
    "max_epochs": ("train.epochs",),
    "num_train_epochs": ("train.epochs",),
    "steps": ("train.steps",),
    "max_steps": ("train.steps",),
    "num_steps": ("train.steps",),
    "total_steps": ("train.steps",),
    "batch_size": ("train.batch_examples", "train.batch_tokens"),
    "train_batch_size": ("train.batch_examples", "train.batch_tokens"),
    "per_device_train_batch_size": ("train.micro_batch_tokens",),
    "gradient_accumulation_steps": ("train.micro_batch_tokens",),
    "grad_clip": ("train.max_grad_norm",),
    "save_steps": ("train.save_every",),
    "eval_steps": ("train.eval_every",),
    "logging_steps": ("train.log_every",),
    "early_stopping_patience": ("train.patience",),
    "dataloader_num_workers": ("train.num_workers",),
    "fp16": ("hardware.precision",),
    "bf16": ("hardware.precision",),
    "dtype": ("hardware.precision",),
    "torch_dtype": ("hardware.precision",),
    "device": ("hardware.device",),
    "gradient_checkpointing": ("hardware.activation_checkpointing",),
    "model_name_or_path": ("init", "run", "source"),
    "pretrained_model_name_or_path": ("init", "run", "source"),
    "model_path": ("init", "run", "source"),
    "checkpoint_path": ("init", "run"),
    "run_name": ("name",),
    "output_dir": ("output_root", "to", "output"),
    "dataset": ("task", "corpus"),
    "dataset_name": ("task", "corpus"),
    "train_file": ("task.train", "task.files.train", "corpus.path"),
    "validation_file": ("task.dev", "task.files.dev"),
    "test_file": ("task.test", "task.files.test"),
    "data_dir": ("data_root",),
    "random_seed": ("seed",),
    "max_seq_length": ("task.max_length", "transfer.max_length", "objective.max_length"),
    "mlm_probability": ("objective.mask_prob",),
    "mask_ratio": ("objective.mask_prob",),
    "hidden_size": ("model.dim",),
    "d_model": ("model.dim",),
    "intermediate_size": ("model.hidden_dim",),
    "num_hidden_layers": ("model.num_layers",),
    "n_layers": ("model.num_layers",),
    "num_attention_heads": ("model.num_heads",),
    "n_heads": ("model.num_heads",),
}


def translate_word(word: str) -> str:
    """Return the full key of the setting that other tools call ``word``; ``word`` itself if unknown or ambiguous."""
    keys = _ELSEWHERE.get(word.lower(), ())
    return keys[0] if len(keys) == 1 else word


def translate_key(key: str, names: Iterable[str]) -> str | None:
    """Return the key in ``names`` for which other tools use the last part of ``key``; None if there is none."""
    called = key.rpartition(".")[2].replace("-", "_").lower()
    names = set(names)
    return next((name for name in _ELSEWHERE.get(called, ()) if name in names), None)


def nearest_name(word: str, names: Iterable[str]) -> str | None:
    """Return the name in ``names`` that is most similar to ``word``; None if no name is similar.

    The last part of a dotted key is also compared on its own, so ``mask_porb`` finds ``objective.mask_prob``.
    """
    names = list(names)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if matches:
        return matches[0]
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    matches = difflib.get_close_matches(word.rpartition(".")[2], by_last, n=1, cutoff=0.75)
    return by_last[matches[0]] if matches else None


def list_names(names: Iterable[str]) -> str:
    """List at most two dozen names, separated by commas."""
    names = list(names)
    more = f", ... ({len(names) - _MAX_NAMES} more)" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def hint(word: str, names: Iterable[str], *, what: str) -> str:
    """Return a hint that suggests the nearest name and lists the existing names.

    Args:
        what: a plural noun for the names ("keys of train").
    """
    names = list(names)
    name = nearest_name(word, names)
    suggestion = f"did you mean '{name}'? " if name else ""
    exists = f"{what}: {list_names(names)}" if names else f"there are no {what}"
    return suggestion + exists

"""Check the config of a probe or of finetuning before any data is read."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.component import build
from lmtransfer.config.in_short import expand_parts
from lmtransfer.errors import ConfigError
from lmtransfer.runs.tracking import tracker_nodes
from lmtransfer.transfer.joint.text import given_nodes
from lmtransfer.transfer.method import TransferMethod


def check_transfer(cfg: DictConfig, command: str) -> None:
    """Check everything that needs the config only.

    Raises:
        ConfigError: all problems together.
    """
    expand_parts(cfg)
    nodes = {
        "task": {"data_root", "cache_dir"},
        "transfer": set[str](),
        "optimizer": {"learner", "lr_scales"},
        "schedule": set[str](),
        **tracker_nodes(cfg),
        **({"model": {"vocab_size"}} if cfg.get("model") is not None else {}),
        **given_nodes(cfg),
    }
    check(cfg, primary=command, nodes=nodes)
    problems = []
    if cfg.get("init") and cfg.get("model") is not None:
        problems.append("model= and init= are both given: the model comes from the run; leave model= out")
    if cfg.get("init") and cfg.get("tokenizer_from"):
        problems.append(
            "tokenizer_from= and init= are both given: the tokenizer comes from the run; leave tokenizer_from= out"
        )
    if not cfg.get("init") and (cfg.get("model") is None or not cfg.get("tokenizer_from")):
        problems.append(
            "init: set the run directory of a pretrained encoder (init=runs/pretrain/<name>); to train from random "
            "initialisation only, set model=<model> tokenizer_from=<run directory>"
        )
    if not cfg.get("init") and cfg.control:
        problems.append("control=true without init: the run itself starts from random initialisation already")
    if cfg.checkpoint == "last" and cfg.train.patience is not None:
        problems.append("train.patience stops training when held-out scores stop improving: it needs checkpoint=best")
    if cfg.learning_rates is not None and not cfg.learning_rates:
        problems.append("learning_rates=[]: names no rate; use a list such as [1e-4,3e-4], or null")
    if "learning_rate" not in cfg.optimizer:
        problems.append("optimizer.learning_rate: the optimiser has no such setting; choose another optimizer=")
    problems += _problems_of_folds(cfg)
    if problems:
        raise ConfigError(problems)
    for group in ("transfer", "schedule"):
        build(cfg[group])  # they need only their settings, and raise if these are wrong
    method: TransferMethod = build(cfg.transfer)
    factors = cfg.optimizer.get("rates") or {}
    if method.freezing.frozen and any(factor != 1 for factor in factors.values()):
        raise ConfigError(
            [
                f"optimizer.rates.{part}={factor:g} with transfer.freeze=frozen: only the head is trained; set "
                "optimizer.learning_rate, and leave this factor at 1"
                for part, factor in factors.items()
                if factor != 1
            ]
        )
    given = [group for group in ("corpus", "objective") if cfg.get(group) is not None]
    if method.text is None and given:
        raise ConfigError(
            [f"{group}=: only transfer=joint uses text; choose transfer=joint, or leave it out" for group in given]
        )


def _problems_of_folds(cfg: DictConfig) -> list[str]:
    """Settings that do not go with cross-validation."""
    folds = cfg.task.get("folds")
    if folds is None:
        return []
    problems = []
    if cfg.learning_rates is not None:
        problems.append(
            f"learning_rates with task.folds={folds}: a rate that is chosen on all folds has seen the examples it is "
            "scored on; set one rate, optimizer.learning_rate"
        )
    if cfg.split != "dev":
        problems.append(f"split={cfg.split} with task.folds={folds}: the folds are scored; leave split out")
    if cfg.task.get("dev_from_train") is None and cfg.checkpoint == "best":
        problems.append(
            f"task.dev_from_train=null with task.folds={folds}: no examples are left to choose a checkpoint; set a "
            "fraction, such as 0.1, or checkpoint=last"
        )
    return problems

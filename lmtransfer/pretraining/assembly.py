"""What pretraining is assembled from: corpus, tokenizer, encoder, rows, corruption and objectives of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lmtransfer.config.build import build
from lmtransfer.config.check import check
from lmtransfer.config.parts import settle_parts
from lmtransfer.config.target import resolve
from lmtransfer.data.documents import Corpus
from lmtransfer.data.store.cache import PreparedCorpus, prepare, tokenizer_for
from lmtransfer.errors import ConfigError
from lmtransfer.importing.opening import open_saved
from lmtransfer.interop.added_words import grown_weights, with_words
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.corruption.base import Corruption
from lmtransfer.objectives.fit import check_fit, check_order
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.objectives.rows.mixed import CONTIGUOUS_MIXTURE
from lmtransfer.pretraining.corpus import build_corpus
from lmtransfer.pretraining.going_on import go_on_from
from lmtransfer.pretraining.untrained_tokenizer import UntrainedTokenizer
from lmtransfer.runs.saved import SavedRun, hold_encoder, new_encoder
from lmtransfer.runs.training import build_optimizer
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.weights import load_weights, read_weights


@dataclass(frozen=True, slots=True)
class Text:
    """A corpus as token ids.

    Attributes:
        corpus: the documents.
        tokenizer: trained from them, or that of the run which is gone on with.
        prepared: the tokens.
        notes: what there is to say of the tokenizer.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    prepared: PreparedCorpus
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """What learns, and what it learns from.

    Attributes:
        encoder: with random weights, or those of ``init``.
        rows: how rows are cut.
        corruption: what is hidden.
        objectives: what is predicted.
        heads: weights of the heads of ``init`` by name (``mlm.dense.weight``), for ``_going_on.take_heads``.
    """

    encoder: Encoder
    rows: Rows
    corruption: Corruption
    objectives: Sequence[Objective]
    heads: Mapping[str, Tensor] = field(default_factory=dict)


def check_pretraining(cfg: DictConfig, *, primary: str, more_nodes: Mapping[str, Set[str]] | None = None) -> None:
    """Check the whole config before any work.

    Args:
        cfg: the config; with ``init``, its model becomes that of the run which is gone on with, and its losses have
            the heads of that run.
        primary: the command.
        more_nodes: further components of the command, with the arguments it supplies.

    Raises:
        ConfigError: all problems at once.
    """
    settle_parts(cfg)
    losses = cfg.objective.get("losses") or {}
    nodes: dict[str, Set[str]] = {
        "corpus": {"data_root", "cache_dir"},
        "tokenizer": set(),
        "model": {"vocab_size"},
        "objective.rows": {"tokenizer"},
        "objective.corruption": {"tokenizer"},
        **{f"objective.losses.{name}": {"tokenizer"} for name in losses},
        **(more_nodes or {}),
    }
    check(cfg, primary=primary, nodes=nodes)
    nulls = [key for key in nodes if OmegaConf.select(cfg, key) is None]
    if nulls:
        raise ConfigError([f"{key}=null: there must be one; leave it as it is, or choose another" for key in nulls])
    if not losses:
        raise ConfigError("objective.losses: lists no loss; choose an objective (lmtransfer list objectives)")
    if cfg.corpus.get("parts") and cfg.objective.rows.get("contiguous"):
        raise ConfigError(CONTIGUOUS_MIXTURE)
    if cfg.get("init"):
        go_on_from(open_saved(cfg.init, key="init"), cfg)
    else:
        _check_characters(cfg)
    _check_parts(cfg)


def _check_characters(cfg: DictConfig) -> None:
    """Refuse a model that reads characters with a tokenizer that spells no words."""
    model, tokenizer = (resolve(cfg[key]._target_, key=key) for key in ("model", "tokenizer"))
    if issubclass(model, Encoder) and model.reads_characters and not getattr(tokenizer, "gives_characters", False):
        raise ConfigError(
            f"tokenizer: {tokenizer.__name__} makes pieces of words, and {model.__name__} reads words as characters: "
            "use tokenizer=words, or model=elmo_subword_laptop with this tokenizer"
        )


def read_text(cfg: DictConfig, *, num_workers: int | None = None) -> Text:
    """Tokenise the corpus, or find it tokenised."""
    cache_dir = default_cache_dir() if cfg.cache_dir is None else Path(cfg.cache_dir).expanduser().absolute()
    corpus = build_corpus(cfg, cache_dir=cache_dir)
    words = (cfg.get("tokenizer") or {}).get("add")
    if cfg.get("init"):
        tokenizer = open_saved(cfg.init, key="init").tokenizer
    else:
        trainer = {key: value for key, value in cfg.tokenizer.items() if key != "add"}
        tokenizer = tokenizer_for(corpus, build(OmegaConf.create(trainer)), cache_dir=cache_dir)
    notes: tuple[str, ...] = ()
    if words is not None:
        tokenizer, notes = with_words(tokenizer, Path(str(words)).expanduser().absolute())
    prepared = prepare(
        corpus, tokenizer, cache_dir=cache_dir, num_workers=num_workers, min_tokens=int(cfg.objective.max_length)
    )
    return Text(corpus, tokenizer, prepared, notes)


def with_absolute_paths(config: dict[str, Any]) -> dict[str, Any]:
    """The config with every path that the user gave made absolute, so that it means the same from anywhere."""
    given = {key: _absolute(config[key]) for key in ("init", "data_root", "output_root") if config.get(key)}
    tokenizer = dict(config["tokenizer"])
    if tokenizer.get("add"):
        tokenizer["add"] = _absolute(tokenizer["add"])
    return {**config, **given, "corpus": absolute_corpus(config["corpus"]), "tokenizer": tokenizer}


def absolute_corpus(node: Mapping[str, Any]) -> dict[str, Any]:
    """A corpus, or a mixture of some, with absolute paths."""
    corpus = _with_absolute_path(node)
    if isinstance(corpus.get("parts"), Mapping):
        corpus["parts"] = {name: _with_absolute_path(part) for name, part in corpus["parts"].items()}
    return corpus


def _with_absolute_path(corpus: Mapping[str, Any]) -> dict[str, Any]:
    if not corpus.get("path"):
        return dict(corpus)
    paths = corpus["path"] if isinstance(corpus["path"], list) else [corpus["path"]]
    return {**corpus, "path": [_absolute(str(path)) for path in paths]}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def build_parts(cfg: DictConfig, tokenizer: Tokenizer) -> Parts:
    """Build what learns.

    Raises:
        ConfigError: parts that do not fit one another.
        CheckpointError: ``init`` holds no weights that fit.
    """
    heads: dict[str, Tensor] = {}
    if cfg.get("init"):
        hold_encoder(open_saved(cfg.init, key="init"))
    encoder = new_encoder(cfg.model, tokenizer, seed=cfg.seed)
    if cfg.get("init"):
        heads = _load_encoder(encoder, open_saved(cfg.init, key="init"), tokenizer, cfg)
    parts = _parts(cfg, encoder, tokenizer, heads)
    if parts.corruption.uses_mask and "mask" in tokenizer.lacks:
        raise ConfigError(
            "objective.corruption hides tokens behind [MASK], and the tokenizer has no such token: use an objective "
            "that hides none (objective=lm)"
        )
    return parts


def _parts(cfg: DictConfig, encoder: Encoder, tokenizer: Tokenizer, heads: Mapping[str, Tensor]) -> Parts:
    """The parts beside the encoder, all of which fit one another."""
    parts = Parts(
        encoder=encoder,
        rows=build(cfg.objective.rows, tokenizer=tokenizer),
        corruption=build(cfg.objective.corruption, tokenizer=tokenizer),
        objectives=[build(node, tokenizer=tokenizer) for node in cfg.objective.losses.values()],
        heads=heads,
    )
    check_fit(encoder=encoder, objectives=parts.objectives, rows=parts.rows, corruption=parts.corruption)
    return parts


def _check_parts(cfg: DictConfig) -> None:
    """Build all that learns, without memory for its numbers, to see whether it can be and whether the parts fit.

    Raises:
        ConfigError: what the parts say, before any text is read.
    """
    tokenizer = cast(Tokenizer, UntrainedTokenizer(cfg.tokenizer))
    with torch.device("meta"):
        parts = _parts(cfg, new_encoder(cfg.model, tokenizer, seed=0), tokenizer, {})
        learner = PretrainingLearner(parts.encoder, list(parts.objectives))
        build_optimizer(cfg.optimizer, learner)
    check_order(objectives=parts.objectives, rows=parts.rows)
    if not any(objective.weight for objective in parts.objectives):
        raise ConfigError("objective.losses: every loss has weight=0, so there is nothing to learn; raise one of them")
    build(cfg.schedule)


def _load_encoder(encoder: Encoder, saved: SavedRun, tokenizer: Tokenizer, cfg: DictConfig) -> dict[str, Tensor]:
    """Give the encoder a run's weights, for a tokenizer that may have more words; the weights of the run's heads."""

    def learner_of(vocab_size: int) -> PretrainingLearner:
        nodes = cfg.objective.losses.values()
        return PretrainingLearner(
            build(cfg.model, vocab_size=vocab_size), [build(node, tokenizer=tokenizer) for node in nodes]
        )

    tensors = read_weights(saved.checkpoint())
    tensors = grown_weights(tensors, base=saved.tokenizer, tokenizer=tokenizer, module_of=learner_of)
    encoder_tensors, heads = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in ("encoder.", "objectives.")
    )
    load_weights(encoder, encoder_tensors, source=str(saved.path))
    return heads

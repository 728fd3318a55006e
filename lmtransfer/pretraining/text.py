"""The text of a pretraining run as token ids: one corpus, or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.component import build
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus
from lmtransfer.data.screening.screening import ScreenedCorpus
from lmtransfer.data.store.cache import PreparedCorpus, prepare, tokenizer_for
from lmtransfer.data.stream.stream import PlannedStream
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.interop.added_tokens import add_words
from lmtransfer.interop.open_run import open_saved
from lmtransfer.pretraining.screening import build_screening, notes_on
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.tokenizers.base import Tokenizer


def keep_commits(corpus: Any, saved: Mapping[str, Any]) -> None:
    """Set each ``revision=null`` in a resumed run to the commit with which the run began.

    Args:
        corpus: config node of the corpus; changed in place.
        saved: the same node in the run's own configuration.
    """
    if "revision" in corpus and corpus.revision is None:
        corpus.revision = saved.get("revision")
    for name, part in (corpus.get("parts") or {}).items():
        keep_commits(part, (saved.get("parts") or {}).get(name) or {})


def with_commits(node: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Return a corpus's config node with the commit of each streamed data set as its ``revision``."""
    if isinstance(corpus, MixtureCorpus):
        parts = {name: with_commits(part, corpus.parts[name]) for name, part in node["parts"].items()}
        return {**node, "parts": parts}
    return dict(node) if corpus.commit is None else {**node, "revision": corpus.commit}


@dataclass(frozen=True, slots=True)
class Text:
    """A corpus as token ids.

    Attributes:
        corpus: the documents.
        tokenizer: trained on the corpus, or taken from the continued run.
        prepared: the tokens.
        notes: messages on words that were added to the tokenizer, and on the screening.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    prepared: PreparedCorpus
    notes: tuple[str, ...] = ()

    def tokens_per_word(self, stream: PlannedStream) -> float:
        """Return the number of training tokens per word of the training text; special tokens count, as in the loop.

        Args:
            stream: the training steps.

        Raises:
            ConfigError: the corpus is a mixture, which reads some parts more often than others.
        """
        if self.prepared.parts:
            raise ConfigError(
                f"train.words and train.save_at_words need a single corpus, but corpus={self.corpus.name} is a "
                "mixture: set train.tokens and train.save_at, or put the text into one corpus"
            )
        statistics = self.prepared.statistics
        return stream.tokens_per_epoch / max(1, statistics.words - statistics.validation_words)


def read_text(cfg: DictConfig, *, num_workers: int | None = None) -> Text:
    """Tokenize the corpus, or read its tokens from the cache."""
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
        tokenizer, notes = add_words(tokenizer, Path(str(words)).expanduser().absolute())
    prepared = prepare(
        corpus, tokenizer, cache_dir=cache_dir, num_workers=num_workers, min_tokens=int(cfg.objective.max_length)
    )
    return Text(corpus, tokenizer, prepared, (*notes, *notes_on(corpus)))


def build_corpus(cfg: DictConfig, *, cache_dir: Path) -> Corpus:
    """Build ``cfg.corpus``; a single corpus or each part of a mixture gets ``data_root`` and ``cache_dir``.

    With ``cfg.screening``, the corpus, or each part of a mixture, is screened separately.

    Raises:
        ConfigError: a setting does not fit.
        DataError: a source is missing; the message says how to get it.
    """
    arguments: dict[str, Any] = {"data_root": cfg.data_root, "cache_dir": str(cache_dir)}
    screening = build_screening(cfg, cache_dir=cache_dir)

    def screen(corpus: Corpus) -> Corpus:
        return corpus if screening is None else ScreenedCorpus(corpus, screening)

    parts: Any = cfg.corpus.get("parts")
    if not parts:
        return screen(build(cfg.corpus, **arguments))
    corpora, missing = {}, []
    for name, node in parts.items():
        try:
            corpora[str(name)] = screen(build(node, **arguments))
        except DataError as error:
            missing.append(f"corpus.parts.{name}: {error}")
    if missing:
        raise DataError("\n".join(missing))
    mixture: Corpus = build(cfg.corpus, parts=corpora)
    return mixture


def with_absolute_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with all paths absolute, so that it does not depend on the current folder."""
    paths = {key: _absolute(config[key]) for key in ("init", "data_root", "output_root") if config.get(key)}
    tokenizer = dict(config["tokenizer"])
    if tokenizer.get("add"):
        tokenizer["add"] = _absolute(tokenizer["add"])
    return {**config, **paths, "corpus": absolute_corpus(config["corpus"]), "tokenizer": tokenizer}


def absolute_corpus(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a corpus or a mixture with absolute paths."""
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

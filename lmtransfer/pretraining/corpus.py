"""The corpus of a configuration: one source of documents, or a mixture of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig

from lmtransfer.config.build import build
from lmtransfer.data.documents import Corpus
from lmtransfer.errors import DataError


def build_corpus(cfg: DictConfig, *, cache_dir: Path) -> Corpus:
    """Build ``cfg.corpus``; the parts of a mixture are told where data and caches are, as a single corpus is.

    Raises:
        ConfigError: a setting that does not fit.
        DataError: sources that are not at hand; the message says how they can be had.
    """
    known = {"data_root": cfg.data_root, "cache_dir": str(cache_dir)}
    parts: Any = cfg.corpus.get("parts")
    if parts:
        built, missing = {}, []
        for name, node in parts.items():
            try:
                built[str(name)] = build(node, **known)
            except DataError as error:
                missing.append(f"corpus.parts.{name}: {error}")
        if missing:
            raise DataError("\n".join(missing))
        return cast(Corpus, build(cfg.corpus, parts=built))
    return cast(Corpus, build(cfg.corpus, **known))

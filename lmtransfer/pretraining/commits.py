"""The commits of streamed data sets: a run keeps those that it began with, also when the hub has newer ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus


def keep_commits(corpus: Any, saved: Mapping[str, Any]) -> None:
    """Set each ``revision=null`` of a resumed run to the commit that the run began with.

    Args:
        corpus: config node of the corpus; changed in place.
        saved: the same node in the run's own configuration.
    """
    if "revision" in corpus and corpus.revision is None:
        corpus.revision = saved.get("revision")
    for name, part in (corpus.get("parts") or {}).items():
        keep_commits(part, (saved.get("parts") or {}).get(name) or {})


def with_commits(node: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """The config node of a corpus with the commit of each streamed data set as its ``revision``."""
    if isinstance(corpus, MixtureCorpus):
        parts = {name: with_commits(part, corpus.parts[name]) for name, part in node["parts"].items()}
        return {**node, "parts": parts}
    return dict(node) if corpus.commit is None else {**node, "revision": corpus.commit}

"""Starting or resuming a pretraining run: its run directory, and the checks that its config and text are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtransfer.config.settings import PretrainSettings
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus
from lmtransfer.data.token_frequencies import token_shares
from lmtransfer.errors import ConfigError
from lmtransfer.interop.open_run import open_saved, origin_of
from lmtransfer.pretraining.text import Text
from lmtransfer.runs.create_or_resume import check_resumable
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.trust import is_own, mark_as_own
from lmtransfer.system.machine import naming
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import process_group

#: Patterns of the keys that contain the paths of the text.
TEXT_PATHS = ("corpus.path", "corpus.parts.*.path")


def run_to_resume(
    settings: PretrainSettings, name: str, config: Mapping[str, Any], *, resume: bool
) -> RunDirectory | None:
    """Return the run to resume; None if there is no run of this name."""
    path = Path(settings.output_root) / "pretrain" / name
    if not (path / "config.yaml").is_file():
        return None
    directory = RunDirectory.create(settings.output_root, "pretrain", name, resume=resume)
    check_resumable(directory.read_config(), config, allowed=_movable_keys(directory, _origin(settings.init)))
    return directory


def _origin(init: str | None) -> str | None:
    """Return the repository and commit of ``init``; None if ``init`` is not from the hub."""
    return origin_of(open_saved(init, key="init")) if init else None


def _movable_keys(directory: RunDirectory, origin: str | None) -> list[str]:
    """Return the keys that may change when a run is resumed elsewhere, because the content itself is compared."""
    data = directory.read_versions().get("data") or {}
    texts = TEXT_PATHS if data.get("corpus") and not is_own(directory.path) else ()
    return [*texts, *(["init"] if origin is not None and data.get("init") == origin else [])]


def new_run(settings: PretrainSettings, name: str, config: Mapping[str, Any], text: Text) -> RunDirectory:
    """Create the run directory; called last, so that an error in the corpus or in a part leaves no directory."""
    directory = RunDirectory.create(settings.output_root, "pretrain", name)
    if process_group.is_main():
        with naming(directory.tokenizer):
            text.tokenizer.save(directory.tokenizer)
        directory.write_token_shares(token_shares(text.prepared.train))
    origin = _origin(settings.init)
    prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
    directory.write_versions(versions(data={**prints, **({"init": origin} if origin else {})}))
    directory.write_config(config)
    mark_as_own(directory.path)
    return directory


def check_text(run: RunDirectory, text: Text) -> None:
    """Check that a run is resumed with the same text and the same tokenizer."""
    fingerprint = (run.read_versions().get("data") or {}).get("corpus")
    if fingerprint is not None and fingerprint != text.corpus.fingerprint():
        raise ConfigError(
            f"corpus: the files have changed since {run.path} started: restore the files, or start a new run with "
            "name=..."
        )
    if run.tokenizer.is_dir() and load_tokenizer(run.tokenizer).fingerprint != text.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer differs from that of {run.path}, because the files of corpus, init or tokenizer.add have "
            "changed since the run started: restore the files, or start a new run with name=..."
        )


def keep_commits(corpus: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node of a resumed run's corpus, with the commits of the start in place of each ``revision=null``."""
    kept = dict(corpus)
    if "revision" in corpus and corpus["revision"] is None:
        kept["revision"] = saved.get("revision")
    if corpus.get("parts"):
        before = saved.get("parts") or {}
        kept["parts"] = {name: keep_commits(part, before.get(name) or {}) for name, part in corpus["parts"].items()}
    return kept


def with_commits(node: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Return the config node of a corpus, with the commit of each streamed data set as its ``revision``."""
    if isinstance(corpus, MixtureCorpus):
        parts = {name: with_commits(part, corpus.parts[name]) for name, part in node["parts"].items()}
        return {**node, "parts": parts}
    return dict(node) if corpus.commit is None else {**node, "revision": corpus.commit}

"""The directory of a pretraining run: a new one, or that of a run to resume with the same settings and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lmtransfer.data.store.token_shares import token_shares
from lmtransfer.errors import ConfigError
from lmtransfer.interop.open_run import open_saved, origin_of
from lmtransfer.pretraining.text import Text
from lmtransfer.runs.resume import check_resumable
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.trust import is_own, mark_as_own
from lmtransfer.runs.versions import versions
from lmtransfer.system.machine import naming
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import process_group

#: Patterns of the keys that name the folders of the text.
TEXT_PATHS = ("corpus.path", "corpus.parts.*.path")


def run_to_resume(cfg: DictConfig, name: str, plain: dict[str, Any], *, resume: bool) -> RunDirectory | None:
    """Return the run to resume, or None if there is no run of this name."""
    path = Path(cfg.output_root) / "pretrain" / name
    if not (path / "config.yaml").is_file():
        return None
    directory = RunDirectory.create(cfg.output_root, "pretrain", name, resume=resume)
    check_resumable(directory.read_config(), plain, allowed=_movable_keys(directory, _origin(cfg)))
    return directory


def _origin(cfg: DictConfig) -> str | None:
    """Return the repository and commit of ``init``; None if it is not from the hub."""
    return origin_of(open_saved(cfg.init, key="init")) if cfg.init else None


def _movable_keys(directory: RunDirectory, origin: str | None) -> list[str]:
    """Return the keys whose paths may change if a run continues on another machine, because content is compared."""
    data = directory.read_versions().get("data") or {}
    texts = TEXT_PATHS if data.get("corpus") and not is_own(directory) else ()
    return [*texts, *(["init"] if origin is not None and data.get("init") == origin else [])]


def new_run(cfg: DictConfig, name: str, plain: dict[str, Any], text: Text) -> RunDirectory:
    """Create the run directory, after reading the corpus and building all parts, so that errors leave no folder."""
    directory = RunDirectory.create(cfg.output_root, "pretrain", name)
    if process_group.is_main():
        with naming(directory.tokenizer):
            text.tokenizer.save(directory.tokenizer)
        directory.write_token_shares(token_shares(text.prepared.train))
    origin = _origin(cfg)
    prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
    directory.write_versions(versions(data={**prints, **({"init": origin} if origin else {})}))
    directory.write_config(plain)
    mark_as_own(directory)
    return directory


def check_text(run: RunDirectory, text: Text) -> None:
    """Check that the run is resumed with the text and the tokenizer with which it started.

    Raises:
        ConfigError: the settings are the same, but the text or the tokenizer has changed.
    """
    fingerprint = (run.read_versions().get("data") or {}).get("corpus")
    if fingerprint is not None and fingerprint != text.corpus.fingerprint():
        raise ConfigError(
            f"corpus: the text differs from the text with which {run.path} started: the files have changed since then; "
            "restore the files, or start a run with another name="
        )
    if run.tokenizer.is_dir() and load_tokenizer(run.tokenizer).fingerprint != text.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {run.path} differs from the tokenizer that corpus, init and tokenizer.add give now: the "
            "files have changed since the run started; restore the files, or start a run with another name="
        )

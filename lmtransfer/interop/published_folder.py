"""Finds a published model or someone else's run: in a local folder, or in a repository on the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lmtransfer.errors import CheckpointError, HubError
from lmtransfer.interop.hub import cached_copy, download
from lmtransfer.system import door
from lmtransfer.system.safe_files import check_folder

#: Prefix that distinguishes a published model from a run directory: ``init=hf:bert-base-uncased``.
PREFIX = "hf:"

#: Key of the commit among the data hashes of an imported run.
COMMIT = "commit"

#: Patterns of the files to read from a model's folder; ELECTRA's generator may be in a subfolder.
_CONFIG = ("config.json", "generator/config.json", "options.json")
_RUN_CONFIG = "config.yaml"
_SAFETENSORS = ("model*.safetensors", "model*.safetensors.index.json", "generator/model*.safetensors")
_LEGACY = ("pytorch_model*.bin", "pytorch_model*.bin.index.json", "generator/pytorch_model*.bin", "*.hdf5")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)
_VECTORS = ("modules.json", "sentence_*_config.json", "config_sentence_transformers.json", "*/config.json")
_HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*(?:@[\w./-]+)?")


def is_hub_name(text: str) -> bool:
    """Whether a text has the form of a name on the hub: ``name`` or ``owner/name``, with or without ``@revision``."""
    return _HUB_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class PublishedFolder:
    """The files of a published model, or of a run."""

    path: Path
    source: str  #: the folder, or the name on the hub, to be recorded in the run
    commit: str | None = None

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run directory, as opposed to a published model."""
        return _is_run(self.path)

    @property
    def name(self) -> str:
        """A short name that is valid as a folder name."""
        last = self.source.partition("@")[0].rstrip("/").rpartition("/")[2]
        return re.sub(r"[^\w.-]+", "-", last).strip(".-") or "model"

    @property
    def files(self) -> list[str]:
        """The files to read, relative to ``path``."""
        return _files_to_read(self.path)


def find_published(path: str, *, key: str) -> PublishedFolder:
    """Return the folder at the user's path, or the local copy of a hub repository, which is downloaded if needed.

    Args:
        path: a folder, or ``owner/name`` on the hub with an optional ``@revision``; the prefix ``hf:`` is optional.
        key: the setting to name in messages.
    """
    text = path.removeprefix(PREFIX)
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not _is_run(folder) and not any((folder / name).is_file() for name in _CONFIG):
            raise CheckpointError(
                f"{key}={path} has no config.json; give a folder with config.json, model.safetensors (or "
                "pytorch_model.bin) and the tokenizer's files (such as tokenizer.json or vocab.txt)"
            )
        check_folder(folder, error=CheckpointError)
        return PublishedFolder(folder.resolve(), str(folder.absolute()))
    if folder.exists():
        raise CheckpointError(f"{key}={path} is a file; give the folder that holds config.json and the weights")
    if not _HUB_NAME.fullmatch(text):
        raise CheckpointError(
            f"{key}={path}: there is no such folder; give a folder with config.json, the weights and the tokenizer's "
            "files, or the name of a model on the hub (owner/name)"
        )
    return _from_hub(text, f"{key}={path}")


def select_files(names: Iterable[str]) -> list[str]:
    """Return the files to read, in sorted order: all files of a run directory, or the files that a model needs.

    If a model has safetensors files, other weight files are skipped.
    """
    names = sorted(names)
    if _RUN_CONFIG in names and not set(names) & set(_CONFIG):
        return names
    weights = _matching(names, _SAFETENSORS) or _matching(names, _LEGACY)
    vectors = _VECTORS if "modules.json" in names else ()
    return sorted({*_matching(names, (*_CONFIG, *_TOKENIZER, *vectors)), *weights})


def _files_to_read(folder: Path) -> list[str]:
    return select_files(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    patterns = tuple(patterns)
    # In fnmatch "*" also matches "/", but a pattern must match only files of its own folder.
    return [name for name in names if any(fnmatchcase(name, p) and name.count("/") == p.count("/") for p in patterns)]


def _from_hub(text: str, setting: str) -> PublishedFolder:
    """Return the copy of a hub repository in the cache of the hub's client; download the repository if needed.

    A complete copy of a model is used without querying the hub. For a run, the hub is always queried for the newest
    state, and the copy is used only if the hub cannot be reached.
    """
    name, _, revision_text = text.partition("@")
    revision = revision_text or None
    with door.requesting(name):
        copy = cached_copy(name, revision)
    if copy is not None:
        door.admit(copy)
    if copy is not None and _is_whole(copy):
        return PublishedFolder(copy, text, copy.name)
    try:
        folder = download(name, revision, setting=setting, choose=select_files)
    except HubError as error:
        if copy is None or not _is_run(copy):
            raise HubError(
                f"{error}. There is no such folder on this machine either: give a folder with config.json, the weights "
                "and the tokenizer's files, or the name of a model on the hub (owner/name)"
            ) from error
        folder = copy
    if folder is None:
        raise CheckpointError(
            f"{setting}: this repository on the hub holds neither a model (config.json and weights) nor a run "
            "(config.yaml); give the name of another repository"
        )
    door.admit(folder)
    return PublishedFolder(folder, text, folder.name)


def _is_run(folder: Path) -> bool:
    return (folder / _RUN_CONFIG).is_file() and not any((folder / name).is_file() for name in _CONFIG)


def _is_whole(folder: Path) -> bool:
    """Whether a model's copy has the config, the tokenizer and all of the weights."""
    files = _files_to_read(folder)
    if "config.json" not in files or not _matching(files, _TOKENIZER):
        return False
    weights = [name for name in files if name.endswith((".safetensors", ".bin"))]
    for index in (name for name in files if name.endswith(".index.json")):
        try:
            shards = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        if not shards <= set(files):
            return False
    return bool(weights)

"""Finds a published model or someone else's run: in a local folder, or in a repository on the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from lmtransfer.config.revisions import split_revision
from lmtransfer.errors import CheckpointError, HubError, RunDirectoryError
from lmtransfer.interop.hub import cached_copy, cached_repository, download
from lmtransfer.runs.create_or_resume import check_run_folder
from lmtransfer.system import door
from lmtransfer.system.safe_files import check_folder, is_lfs_pointer, read_json

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
#: The file that marks a folder of the library peft.
_ADAPTER = "adapter_config.json"
#: Maximum number of folders or models that a message suggests.
_MAX_NAMES = 3
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
            raise CheckpointError(f"{key}={path} has no config.json: {_advice(folder, path)}")
        check_folder(folder, error=CheckpointError)
        pointers = [name for name in _files_to_read(folder) if is_lfs_pointer(folder / name)]
        if pointers:
            raise CheckpointError(
                f"{key}={path}: Git LFS has not fetched {', '.join(pointers)}: the folder holds only pointers to these "
                "files; run `git lfs pull` in it"
            )
        return PublishedFolder(folder.resolve(), str(folder.absolute()))
    if folder.exists():
        raise CheckpointError(f"{key}={path} is a file; give the folder that holds config.json and the weights")
    if not _HUB_NAME.fullmatch(text):
        raise CheckpointError(
            f"{key}={path}: there is no such folder; give a folder with config.json, the weights and the tokenizer's "
            "files, or the name of a model on the hub (owner/name)"
        )
    return _from_hub(text, f"{key}={path}")


def find_run(path: str, *, key: str) -> Path:
    """Return the folder of the run at the user's path, which may end with a revision (``@1M``)."""
    location, _ = split_revision(path)
    folder = Path(location).expanduser().absolute()
    try:
        check_run_folder(folder)
    except RunDirectoryError as error:
        before, at, revision = location.rpartition("@")
        if at and Path(before).expanduser().is_dir():
            raise RunDirectoryError(
                f"{key}={path}: {revision!r} is not a revision of a run: give a number of tokens, such as {before}@1M"
            ) from None
        raise RunDirectoryError(f"{key}: {error}{_as_published(path, key)}") from None
    return folder


def _as_published(path: str, key: str) -> str:
    """Return a hint to add the prefix if the path may name a published model; otherwise an empty string."""
    if (Path(path).expanduser() / "config.json").is_file():
        return f"; this folder holds a published model: write {key}=hf:{path}"
    if is_hub_name(path) and not Path(Path(path).parts[0]).exists():
        return f"; for a model on the Hugging Face hub, write {key}=hf:{path}"
    return ""


def _advice(folder: Path, path: str) -> str:
    """Say what a folder without config.json holds, and which folder or name to give instead."""
    if (folder / _ADAPTER).is_file():
        base = read_json(folder / _ADAPTER, dict[str, Any], error=CheckpointError).get("base_model_name_or_path")
        return (
            f"the folder holds a PEFT adapter of the model {str(base)[:80]!r}, not a model. Merge the adapter with "
            "peft (merge_and_unload), save the result with save_pretrained, and give its folder"
        )
    caches = (cache for cache in (folder, folder / "hub") if cache.is_dir())
    entries = [folder.absolute(), *(entry for cache in caches for entry in sorted(cache.iterdir()))]
    if names := [name for name in map(cached_repository, entries) if name]:
        return (
            f"the folder is part of the hub's cache; give the name of a model, {_or(PREFIX + name for name in names)}"
        )
    inside = sorted(
        (entry.parent for name in ("config.json", "options.json") for entry in folder.glob(f"*/{name}")), key=_by_number
    )
    if inside:
        return f"a folder inside has one; give {_or(f'{path}/{entry.name}' for entry in reversed(inside))}"
    return (
        "give a folder with config.json, model.safetensors (or pytorch_model.bin) and the tokenizer's files (such as "
        "tokenizer.json or vocab.txt)"
    )


def _by_number(folder: Path) -> tuple[int, str]:
    """Sort checkpoints by their steps: ``checkpoint-500`` before ``checkpoint-1000``."""
    number = re.search(r"\d+$", folder.name)
    return int(number[0]) if number else -1, folder.name


def _or(names: Iterable[str]) -> str:
    first = list(islice(names, _MAX_NAMES + 1))
    return " or ".join(first[:_MAX_NAMES]) + (" or another" if len(first) > _MAX_NAMES else "")


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

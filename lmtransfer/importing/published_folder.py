"""Finding a published model: a folder on this machine, or a model of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from lmtransfer.errors import CheckpointError

#: Prefix that marks a published model where a run directory is also allowed: ``init=hf:bert-base-uncased``.
PREFIX = "hf:"

#: The files of a model's folder that are read; ELECTRA's generator may be in a subfolder.
_CONFIG = ("config.json", "generator/config.json", "options.json")
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
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*(?:@[\w./-]+)?")


@dataclass(frozen=True, slots=True)
class PublishedFolder:
    """The files of a published model.

    Attributes:
        path: absolute path of the folder.
        source: the source to record: that folder, or the name on the hub.
    """

    path: Path
    source: str

    @property
    def name(self) -> str:
        """A short name that is valid as a folder name."""
        last = self.source.partition("@")[0].rstrip("/").rpartition("/")[2]
        return re.sub(r"[^\w.-]+", "-", last).strip(".-") or "model"

    @property
    def files(self) -> list[str]:
        """The files that are read, relative to ``path``."""
        return _wanted_in(self.path)


def find_published(given: str, *, key: str) -> PublishedFolder:
    """Return the folder that the user named, or the local copy of a hub model, which is downloaded if it is missing.

    Args:
        given: a folder, or ``owner/name`` on the hub with an optional ``@revision``; the prefix ``hf:`` is optional.
        key: the configuration key that the user set, for messages.

    Raises:
        CheckpointError: there is no such folder, and no such model can be downloaded.
    """
    text = given.removeprefix(PREFIX)
    folder = Path(text).expanduser()
    if folder.is_dir():
        if (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{key}={given}: is a run directory of lmtransfer, not a published model: use it directly, such as "
                f"init={text}"
            )
        if not any((folder / name).is_file() for name in _CONFIG):
            raise CheckpointError(
                f"{key}={given}: has no config.json; a published model is a folder with config.json, model.safetensors "
                "(or pytorch_model.bin) and its tokenizer's files (tokenizer.json, or vocab.txt and the like)"
            )
        return PublishedFolder(folder.resolve(), str(folder.absolute()))
    if folder.exists():
        raise CheckpointError(f"{key}={given}: is a file; give the folder that holds config.json and the weights")
    if not _HUB_NAME.fullmatch(text):
        raise CheckpointError(
            f"{key}={given}: there is no such folder; give one that holds config.json, the weights and the tokenizer's "
            "files, or the name of a model on the hub (owner/name)"
        )
    name, _, revision = text.partition("@")
    return PublishedFolder(_from_hub(name, revision or None, f"{key}={given}"), text)


def wanted_files(names: Iterable[str]) -> list[str]:
    """Select the files that are read, sorted; if there are safetensors files, other weight files are skipped."""
    names = sorted(names)
    weights = _matching(names, _SAFETENSORS) or _matching(names, _LEGACY)
    return sorted({*_matching(names, (*_CONFIG, *_TOKENIZER)), *weights})


def _wanted_in(folder: Path) -> list[str]:
    """Apply ``wanted_files`` to the files in a folder."""
    return wanted_files(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    patterns = tuple(patterns)
    # "*" of fnmatch also matches "/", but a pattern must match only files of its own folder.
    return [name for name in names if any(fnmatchcase(name, p) and name.count("/") == p.count("/") for p in patterns)]


def _from_hub(name: str, revision: str | None, shown: str) -> Path:
    """Return the hub's model as a folder in the hub's cache; without a network request if the copy is complete.

    Raises:
        CheckpointError: the model is not in the cache and cannot be downloaded.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # The hub's errors derive from those of its HTTP library and from OSError.
    faults = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, OSError, ValueError))
    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if _is_whole(cached):
            return cached
    except faults:
        pass  # not in the cache yet
    try:
        wanted = wanted_files(HfApi().list_repo_files(name, revision=revision))
        if not wanted:
            raise CheckpointError(f"{shown}: this model on the hub has no config.json and no readable weights")
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except faults as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"{shown}: there is no such folder, and the model could not be downloaded from the hub ({reason[0]}). Give "
            "a folder that holds config.json, the weights and the tokenizer's files, or the name of a model on the "
            "hub (owner/name). The download needs a network connection; a model that was downloaded before does not"
        ) from error


def _is_whole(folder: Path) -> bool:
    """Whether a copy has a configuration, a tokenizer and all of its weights."""
    files = _wanted_in(folder)
    if "config.json" not in files or not set(files) & set(_TOKENIZER):
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

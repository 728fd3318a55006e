"""Whose run it is, and so whether the data that its ``config.yaml`` names may be read.

A run may come from anyone, and what its configuration names is for the user to name: a file of this machine, a data set
of the hub. A run that was made here names what the user named then. It is known by a seal, ``made_here``: a digest of
its configuration with a key that lies in the user's cache, and that nobody else has. It can be moved and copied, and
holds no longer once the configuration is changed. ``trust=true`` says the same of any run.

Of other runs, which those of versions without seals are, no more is read than cannot do harm: text that is word for
word what the run was trained on, by the digest in its ``versions.json``, and the files of a task that lie below the
folder where the command is started, or below ``data_root``. Nothing is asked of the hub.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmtransfer.config.build import build
from lmtransfer.data.documents import Corpus
from lmtransfer.errors import LmtransferError, RunDirectoryError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.durable import write_text
from lmtransfer.training import distributed
from lmtransfer.untrusted.files import read_bytes

SEAL = "made_here"
_KEY = "made_here.key"
#: Arguments of corpora and tasks that name files and data sets.
_FILES = ("path", "files", "folder", "train", "dev", "test")
_HUB = ("dataset", "hub_dataset", "hub")
#: Stands for the name of a file.
_NOT_READ = "(not read, since the run was not made here)"


def seal(directory: RunDirectory) -> None:
    """Mark a run, whose configuration is written, as made by this user. On rank 0; elsewhere nothing happens."""
    if not distributed.is_main():
        return
    with suppress(OSError):  # a cache that cannot be written keeps no key
        write_text(directory.path / SEAL, _digest(directory, _key(make=True)) + "\n")


def is_own(directory: RunDirectory) -> bool:
    """Whether the run was made by this user, and its configuration is as it was."""
    try:
        noted = read_bytes(directory.path / SEAL, error=RunDirectoryError, most=1024)
        return hmac.compare_digest(noted.strip(), _digest(directory, _key(make=False)).encode())
    except (LmtransferError, OSError):
        return False


def _digest(directory: RunDirectory, key: bytes) -> str:
    content = read_bytes(directory.config_path, error=RunDirectoryError)
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _key(*, make: bool) -> bytes:
    path = default_cache_dir() / _KEY
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_hex(32).encode())
    key = read_bytes(path, error=RunDirectoryError, most=1024)
    if len(key) < 64:
        raise RunDirectoryError(f"{path}: is no key: delete it")
    return key


def without_data(node: Mapping[str, Any]) -> dict[str, Any]:
    """A task's component node for its labels and its head alone: what it would read is not there, and says why."""
    changed: dict[str, Any] = {name: _NOT_READ for name in ("train", "dev", "test") if node.get(name)}
    if node.get("hub"):
        changed["hub"] = None
    files = node.get("files")
    if isinstance(files, Mapping) or node.get("hub"):
        named = files if isinstance(files, Mapping) else {}
        changed["files"] = {"train": _NOT_READ} | {split: _NOT_READ for split in named if named[split]}
    return {**node, **changed}


def local_task(node: Mapping[str, Any], config: Path, *, key: str) -> dict[str, Any]:
    """The node of a task of others, with files below the folders that the user is at, and without the hub.

    Args:
        node: component node of the run's configuration.
        config: the configuration's file.
        key: that named the run, for messages.

    Raises:
        RunDirectoryError: it names files of its own.
    """
    named = {name: node[name] for name in _FILES if node.get(name)}
    named = {name: value for name, value in named.items() if not all(map(_is_below, _names(value)))}
    has_files = bool(node.get("files")) or not node.get("hub")
    if not named and has_files:
        return {name: None if name in _HUB else value for name, value in node.items()}
    raise _refused("task", named or {"hub": node.get("hub")}, config, key)


def same_text(node: Mapping[str, Any], versions: Mapping[str, Any], config: Path, *, data_root: str | None) -> None:
    """See that the text which a run of others names is, word for word, the one that it was trained on.

    Args:
        node: component node of its corpus.
        versions: its ``versions.json``.
        config: its configuration's file.
        data_root: the data folder that the user names.

    Raises:
        RunDirectoryError: it is another one, is not there, or is on the hub.
    """
    parts = node.get("parts")
    single = list(parts.values()) if isinstance(parts, Mapping) else [node]
    named = {
        name: part[name] for part in single if isinstance(part, Mapping) for name in (*_FILES, *_HUB) if part.get(name)
    }
    if not named:
        return  # it is made of what is installed here
    try:
        corpora = {str(place): _local(part, data_root) for place, part in enumerate(single)}
        if isinstance(parts, Mapping):
            corpora = dict(zip(map(str, parts), corpora.values(), strict=True))
            found = build(OmegaConf.create(dict(node)), parts=corpora).fingerprint()
        else:
            found = corpora["0"].fingerprint()
    except (LmtransferError, OSError, TypeError, ValueError):
        found = None
    if found is None or found != (versions.get("data") or {}).get("corpus"):
        raise _refused("corpus", named, config, "run")


def _local(node: Mapping[str, Any], data_root: str | None) -> Corpus:
    """A corpus of files, which is never fetched.

    Raises:
        LmtransferError: it is not there.
    """
    if node.get("dataset"):
        raise RunDirectoryError("is on the hub")
    known = {name: None if name == "hub_dataset" else value for name, value in node.items()}
    corpus: Corpus = build(OmegaConf.create(known), data_root=data_root, cache_dir=None)
    return corpus


def _names(value: Any) -> list[str]:
    """The names of files in the value of an argument."""
    if isinstance(value, Mapping | list):
        return [name for item in (value.values() if isinstance(value, Mapping) else value) for name in _names(item)]
    return [] if value is None else [str(value)]


def _is_below(name: str) -> bool:
    """Whether a file lies in the folder where the command is started, or in the data folder, and is not hidden."""
    return not name.startswith(("/", "~")) and not any(part.startswith(".") for part in Path(name).parts)


def _refused(what: str, named: Mapping[str, Any], config: Path, key: str) -> RunDirectoryError:
    (name, value), *_ = named.items()
    return RunDirectoryError(
        f"{config}: {what}.{name} names {str(value)[:80]!r}, and the run was not made here, or not as it is now: what "
        f"others name is not read. Name the data yourself, such as {what}=<name> {what}.{name}=<file>, or trust the "
        f"run that {key}= names, with all that its configuration names: trust=true"
    )

"""Trust in a run: whether the user produced it, and thus whether the data named in its ``config.yaml`` may be read.

A run may come from anyone, and its configuration may name a file on this machine or a data set on the hub. Only the
user may decide to read those. In a run that was produced here, the user has named them. Such a run has a seal, the file
``made_here``: a digest of its configuration with a key from the user's cache, which nobody else has. The run can be
moved and copied; the seal becomes invalid when the configuration changes. ``trust=true`` trusts any run in the same
way.

Runs without a valid seal, including those of versions without seals, are restricted to harmless reads: text that is,
by the digest in ``versions.json``, exactly the text that the run was trained on; and task files in the current folder
or in ``data_root``. Nothing is requested from the hub.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmtransfer.config.component import build
from lmtransfer.data.documents import Corpus
from lmtransfer.data.files import find_file
from lmtransfer.errors import LmtransferError, RunDirectoryError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import default_cache_dir, is_address
from lmtransfer.system.safe_files import check_folder, read_bytes
from lmtransfer.training import process_group

OWN_MARK = "made_here"
_KEY = "made_here.key"
#: Arguments of corpora and tasks that name files or data sets.
_FILES = ("path", "files", "folder", "train", "dev", "test")
_HUB = ("dataset", "hub_dataset", "hub")
#: Replaces the name of a file that may not be read.
_NOT_READ = "(not read, because the run was not produced here)"


def mark_as_own(directory: RunDirectory) -> None:
    """Mark a run as produced by this user, after its configuration is written; only rank 0 writes."""
    if not process_group.is_main():
        return
    with suppress(OSError):  # without a writable cache there is no key, and so no seal
        write_text(directory.path / OWN_MARK, _digest(directory, _key(make=True)) + "\n")


def is_own(directory: RunDirectory) -> bool:
    """Whether this user produced the run and its configuration has not changed since."""
    try:
        saved = read_bytes(directory.path / OWN_MARK, error=RunDirectoryError, most=1024)
        return hmac.compare_digest(saved.strip(), _digest(directory, _key(make=False)).encode())
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
        raise RunDirectoryError(f"{path} is not a valid key: delete this file")
    return key


def strip_data(node: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a task's component node to its labels and head; an explanation replaces each file name."""
    changed: dict[str, Any] = {name: _NOT_READ for name in ("train", "dev", "test") if node.get(name)}
    if node.get("hub"):
        changed["hub"] = None
    files = node.get("files")
    if isinstance(files, Mapping) or node.get("hub"):
        named = files if isinstance(files, Mapping) else {}
        changed["files"] = {"train": _NOT_READ} | {split: _NOT_READ for split in named if named[split]}
    return {**node, **changed}


def restrict_task(node: Mapping[str, Any], directory: RunDirectory, *, data_root: str | None) -> dict[str, Any]:
    """Restrict the node of someone else's task to files in the allowed folders, without requests to the hub."""
    named = {name: node[name] for name in _FILES if node.get(name)}
    roots = [Path.cwd(), *([] if data_root is None else [Path(data_root).expanduser()])]
    named = {name: value for name, value in named.items() if not all(_is_below(file, roots) for file in _names(value))}
    has_files = bool(node.get("files")) or not node.get("hub")
    if not named and has_files:
        return {name: None if name in _HUB else value for name, value in node.items()}
    raise _refuse("task", named or {"hub": node.get("hub")}, directory)


def check_same_text(config: Mapping[str, Any], directory: RunDirectory, *, data_root: str | None) -> None:
    """Check that the text of someone else's run is exactly the text that the run was trained on."""
    if (config.get("screening") or {}).get("action") == "drop":
        raise RunDirectoryError(
            f"{directory.config_path}: screening.action=drop: the run was not produced here, or was changed since, and "
            "its text could only be checked by a screening that reads the files named in the run. Choose a corpus of "
            "your own (corpus=<name>). If you trust the run and everything that its configuration names, set trust=true"
        )
    node = config["corpus"]
    parts = node.get("parts")
    single = list(parts.values()) if isinstance(parts, Mapping) else [node]
    named = {
        name: part[name] for part in single if isinstance(part, Mapping) for name in (*_FILES, *_HUB) if part.get(name)
    }
    if not named:
        return  # the corpus names no files: it uses only what is installed
    try:
        corpora = {str(place): _local(part, data_root) for place, part in enumerate(single)}
        if isinstance(parts, Mapping):
            corpora = dict(zip(map(str, parts), corpora.values(), strict=True))
            fingerprint = build(OmegaConf.create(dict(node)), parts=corpora).fingerprint()
        else:
            fingerprint = corpora["0"].fingerprint()
    except (LmtransferError, OSError, TypeError, ValueError):
        fingerprint = None
    if fingerprint is None or fingerprint != (directory.read_versions().get("data") or {}).get("corpus"):
        raise _refuse("corpus", named, directory)


def _local(node: Mapping[str, Any], data_root: str | None) -> Corpus:
    if node.get("dataset") or any(map(is_address, _names(node.get("path")))):
        raise RunDirectoryError("the corpus is on the hub or at another address")
    known = {name: None if name == "hub_dataset" else value for name, value in node.items()}
    corpus: Corpus = build(OmegaConf.create(known), data_root=data_root, cache_dir=None)
    return corpus


def _names(value: Any) -> list[str]:
    if isinstance(value, Mapping | list):
        return [name for item in (value.values() if isinstance(value, Mapping) else value) for name in _names(item)]
    return [] if value is None else [str(value)]


def _is_below(name: str, roots: Sequence[Path]) -> bool:
    """Whether a relative path is not hidden and, with links resolved, stays inside each of the folders."""
    if name.startswith(("/", "~")) or any(part.startswith(".") for part in Path(name).parts):
        return False
    for root in roots:
        path = find_file(root / name) or root / name
        if not path.resolve().is_relative_to(root.resolve()):
            return False
        try:
            check_folder(path, error=RunDirectoryError)
        except RunDirectoryError:
            return False
    return True


def _refuse(what: str, named: Mapping[str, Any], directory: RunDirectory) -> RunDirectoryError:
    (name, value), *_ = named.items()
    return RunDirectoryError(
        f"{directory.config_path}: {what}.{name} names {str(value)[:80]!r}, but the run was not produced here, or was "
        "changed since, and data named by other people are not read. Set the data yourself, for example with "
        f"{what}=<name> {what}.{name}=<file>. If you trust the run and everything that its configuration names, set "
        "trust=true"
    )

"""Machine failures (disk space, permissions, memory, a missing file) and bugs, each reported as a single message.

Other code lets system errors pass. At the end of a command, this module turns them into messages: the setting that
holds the path, the system's message, the path, and a remedy. Code that writes a file names it with ``naming``, because
the error of a failed write does not contain the path.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmtransfer.errors import DataError, MachineError
from lmtransfer.system.addresses import redact
from lmtransfer.system.validation import texts, value_at

#: If set to anything but 0, the traceback of a bug is shown.
TRACEBACK = "LMTRANSFER_TRACEBACK"

_LIMIT = "raise the limit (ulimit), or lower num_workers"
#: Remedies; errors without a path are the machine's fault only if they are among these.
_WAYS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space there, or choose another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "correct its permissions, or choose another place"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.EAGAIN), _LIMIT),
    errno.ENOENT: "correct the path, or restore it",
}
_OF_RUST = re.compile(r"\(os error (\d+)\)")
_OF_NUMPY = re.compile(r"^\d+ requested and \d+ written$")
_OF_RESOLVING = re.compile(r"^Symlink loop from '(.*)'$")
_OF_MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory|cannot allocate memory", re.IGNORECASE)
_BYTES = re.compile(r"(\d+) bytes")
_SIZES = ("model.dim", "model.num_layers", "model.hidden_dim", "tokenizer.vocab_size")
#: Settings that never hold a path.
_NO_PATHS = frozenset({"name", "text", "text_b", "_target_", "command", "title"})
_LONGEST_PATH, _LONGEST_MESSAGE, _MOST = 160, 600, 1 << 14


def is_address(path: str) -> bool:
    """Whether a path is an address, such as ``s3://bucket/folder``, and not a path on this machine."""
    return "://" in path


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add ``path`` to system errors that the block raises without a path, such as a failed write."""
    try:
        yield
    except BrokenPipeError:  # concerns the output, not a file
        raise
    except Exception as error:
        os_error = _os_error_of(error)
        if os_error is not None and os_error.filename is None:
            os_error.filename = str(path)
        if os_error is None or os_error is error:
            raise
        raise os_error from error


def fault(error: BaseException, settings: Mapping[str, Any] | None = None) -> MachineError | None:
    """Return the error to show for a failure of the machine, with the setting that holds the path; None for a bug."""
    message: str | None = None
    if _is_of_memory(error):
        message = _memory(error, settings or {})
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        message = f"the system can start no more threads: {_LIMIT}"
    elif isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        message = (
            "a process that builds batches has ended, often for lack of memory: set train.num_workers=0. "
            f"PyTorch's message: {' '.join(str(error).split())}"
        )
    else:
        os_error = _os_error_of(error)
        if os_error is not None and (os_error.filename is not None or os_error.errno in _WAYS):
            message = _describe(os_error, settings or {})
    if message is None:
        return None
    described = MachineError(message)
    described.__cause__ = error
    return described


def bug(error: BaseException, words: Sequence[str]) -> str:
    """Return a line about an unexpected exception and how to get its traceback, or the traceback if requested."""
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        shown = redact("".join(traceback.format_exception(error)).rstrip())
        return shown + "\nThis is a bug in lmtransfer: please report it"
    message, command = (" ".join(redact(text).split()) for text in (str(error), shlex.join(["lmtransfer", *words])))
    message, command = (
        text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..." for text in (message, command)
    )
    return (
        f"{type(error).__name__}{f': {message}' if message else ''}. This is a bug in lmtransfer; to get the traceback "
        f"for a report: {TRACEBACK}=1 {command}"
    )


def _os_error_of(error: BaseException) -> OSError | None:
    """Return the system error behind an exception: the exception itself, or one that a library's message describes."""
    if isinstance(error, OSError) and error.errno is not None:
        return None if isinstance(error, BrokenPipeError) else error
    loop = _OF_RESOLVING.match(str(error))
    if loop:
        return OSError(errno.ELOOP, os.strerror(errno.ELOOP), loop[1])
    of_rust = _OF_RUST.search(str(error))
    number = int(of_rust[1]) if of_rust else errno.ENOSPC if _OF_NUMPY.match(str(error)) else None
    return None if number is None else OSError(number, os.strerror(number))


def _describe(error: OSError, settings: Mapping[str, Any]) -> str:
    reason = error.strerror or str(error)
    reason = reason[:1].lower() + reason[1:]
    way = _WAYS.get(error.errno or 0, "correct this, or choose another place")
    path = "" if error.filename is None else _text(error.filename)
    if not os.path.isabs(path) and _absolute("here") == "here":
        return "the folder in which the command was started no longer exists: change to another folder (cd), and retry"
    if not path:
        return f"{reason}: {way}"
    key, value = _setting_of(path, settings)
    if key is None:
        return f"{_printable_path(path)}: {reason}; {way}"
    where = "" if _absolute(path) == _absolute(value) else f" ({_printable_path(path)})"
    return f"{key}={_printable_path(value)}: {reason}{where}; {way}"


def _text(filename: object) -> str:
    return os.fsdecode(filename) if isinstance(filename, str | bytes | os.PathLike) else str(filename)


def _printable_path(path: str) -> str:
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."


def _absolute(path: str) -> str:
    """Return the absolute path; unchanged if the current folder is gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def _setting_of(path: str, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the key and value of the setting that holds ``path`` or a parent of it; the longest match wins."""
    setting: tuple[str | None, str] = (None, "")
    target, longest = _absolute(path), 1
    for key, value in texts(settings):
        if key.rpartition(".")[2] in _NO_PATHS or not value or len(value) > _MOST or "\0" in value:
            continue
        place = _absolute(value)
        if target.endswith("/" + value) and not os.path.isabs(value):  # the path was searched for in another folder
            place = target
        if len(place) > longest and (target == place or target.startswith(place + "/")):
            setting, longest = (key, value), len(place)
    return setting


def _is_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and bool(_OF_MEMORY.search(str(error)))


def _memory(error: BaseException, settings: Mapping[str, Any]) -> str:
    """Explain what was too large, and which setting to lower."""
    requested = _BYTES.search(str(error))
    more = f" ({int(requested[1]) / 1e9:,.1f} GB more were requested)" if requested else ""
    sizes = [f"{key}={value}" for key in _SIZES if (value := value_at(settings, key)) is not None]
    of_model = f"; the model has {', '.join(sizes)}" if sizes else ""
    train = settings.get("train")
    lower = "lower train.micro_batch_tokens" if isinstance(train, Mapping) else "process less data at once"
    return f"there is not enough memory{more}{of_model}: choose a smaller model, or {lower}"


def default_cache_dir() -> Path:
    """Return the path of the cache folder: ``LMTRANSFER_CACHE``, or ``~/.cache/lmtransfer``."""
    place = os.environ.get("LMTRANSFER_CACHE") or "~/.cache/lmtransfer"
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise DataError(
            f"{place}: the folder of the cache is unknown, because HOME is not set: set HOME, cache_dir or "
            "LMTRANSFER_CACHE"
        ) from None


def cache_folder(named: str | None) -> Path:
    """Return the cache that the setting ``cache_dir`` names; the default one if it is null."""
    return default_cache_dir() if named is None else Path(named).expanduser().absolute()

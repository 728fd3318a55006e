"""The door: what may be opened, listed and requested while a command handles someone else's run.

The configuration of a run can name any file, folder, address or repository. From the moment a command opens a run that
the user did not produce (see ``runs.trust``), the door is closed until the command ends. The command then reads only
the run, what the user named in this command, the data folder, the cache, Python and the installed packages, the
libraries of the system, and what it has created itself. It requests only what the user named. ``trust=true`` keeps the
door open.

The readers of files and addresses ask ``check`` and ``requesting``. Whatever they forget is stopped by an audit hook,
which Python calls before it opens a file, lists a folder, looks up a host or connects. The hook sees all threads, but
not files that a library opens in native code, so the readers must ask before they call such a library. Worker processes
take the door over (``state``). Other child processes are not watched, because no configuration can start one.
"""

from __future__ import annotations

import os
import re
import site
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from glob import has_magic
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from lmtransfer.errors import RunDirectoryError

_PACKAGE = Path(__file__).resolve().parents[1]
#: Folders and files of the system that hold no data of users.
_SYSTEM = (
    *(f"{root}/{name}" for root in ("/usr", "/usr/local") for name in ("bin", "include", "lib", "libexec", "share")),
    *("/bin", "/lib", "/lib64", "/sbin", "/usr/lib64", "/usr/local/cuda", "/opt/rocm", "/sys", "/System", "/Library"),
    *("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/etc/hosts", "/etc/localtime", "/etc/mime.types", "/etc/os-release", "/etc/pki", "/etc/resolv.conf", "/etc/ssl"),
)
_OF_PROCESSES = re.compile(
    r"/proc/((\d+/(task/\d+/)?)?(cgroup|cpuset|io|limits|maps|mountinfo|mounts|smaps|smaps_rollup|stat|statm|status)"
    r"|\d+(/task)?|cpuinfo|driver/nvidia/.*|loadavg|meminfo|sys/.*|uptime|version|vmstat)"
)
#: Caches of compilers, which a library reads and writes while a model trains.
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": f"{os.sep}tmp/torchinductor_{{user}}", "TRITON_CACHE_DIR": "~/.triton"}
_OPEN, _LIST = "open", ("os.listdir", "os.scandir")
_HOSTS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
_PEERS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_WATCHED = frozenset({_OPEN, *_LIST, *_HOSTS, *_PEERS, "os.mkdir", "os.rename"})
_NEW = os.O_EXCL | os.O_TRUNC


class Refused(RunDirectoryError, PermissionError):
    """A file, folder or request that someone else's run may not cause; libraries take it for a missing permission."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.strerror = message


@dataclass(slots=True)
class Door:
    """What a command may read and request.

    Attributes:
        named: returns the paths and the names (of repositories, addresses) that the user named; called when the door
            closes.
        has_trust: whether the command has the setting ``trust``.
        paths: files and folders, with links resolved; everything below them may be read.
        own_paths: the same without links resolved: the user's folders, in which links may lead elsewhere.
        names: repositories and addresses that may be requested.
        runs: the folders of other people's runs; the door is closed while there is one.
    """

    named: Callable[[], tuple[Iterable[Path], Iterable[str]]] | None
    has_trust: bool = False
    is_trusting: bool = False
    paths: set[str] = field(default_factory=set)
    own_paths: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)

    def admit(self, path: Path | str) -> None:
        """Allow a file or folder of the user's, with everything below it."""
        self.own_paths.add(os.path.abspath(path))
        self.paths.add(os.path.realpath(path))

    def close(self, run: Path) -> None:
        """Close the door for a run, whose folder may be read."""
        if self.named is not None:
            paths, names = self.named()
            for path in (*map(str, paths), *_of_python(), *_SYSTEM):
                self.admit(path)
            self.names.update(names)
            self.named = None
        real = Path(os.path.realpath(run))
        self.paths.update(map(str, (real, *blobs_of(real))))
        self.runs.append(str(run))
        _watch()

    def allows(self, path: str) -> bool:
        """Whether a path may be read."""
        real = os.path.realpath(path)
        if _is_below(real, self.paths) or _OF_PROCESSES.fullmatch(real):
            return True
        # Without "..", the absolute path is the one that the system follows.
        return ".." not in Path(path).parts and _is_below(os.path.abspath(path), self.own_paths)

    def allows_request(self, name: str) -> bool:
        """Whether a repository or an address may be requested."""
        return name in self.names or any(
            "://" in known and name.startswith(f"{known.rstrip('/')}/") for known in self.names
        )

    def refusal(self, what: str) -> Refused:
        """Return the error for a path, repository or address."""
        return Refused(
            f"{what}: this is neither in the run {self.runs[-1]} nor in data_root nor named in this command, and the "
            f"run was not produced here, or was changed since, so it is not read. Name the data yourself{way_out()}"
        )


#: The door of the running command; a global, because all threads must obey it.
_door: Door | None = None
#: Number of blocks that request what the user named, and the threads that work for the user's services.
_requests = 0
_free_threads: set[int] = set()


@contextmanager
def command(named: Callable[[], tuple[Iterable[Path], Iterable[str]]], *, has_trust: bool = False) -> Iterator[None]:
    """Let a command have its own door inside the block; afterwards the outer command's door, if any, is back."""
    global _door
    outer = _door
    _door = Door(named, has_trust)
    try:
        yield
    finally:
        _door = outer


@contextmanager
def handling(run: Path, *, data_root: str | None) -> Iterator[None]:
    """Close the door for a run inside the block only, for commands that read many runs; ``data_root`` may be read."""
    global _door
    outer = _door
    _door = outer or Door(lambda: ((), ()))
    before = len(_door.runs)
    if data_root is not None:
        _door.admit(data_root)
    close(run)
    try:
        yield
    finally:
        del _door.runs[before:]
        _door = outer


def close(run: Path) -> None:
    """Close the door of the running command for someone else's run, until the command ends."""
    if _door is not None and not _door.is_trusting:
        _door.close(run)


def trust() -> None:
    """Keep the door of the running command open, because the user trusts the run."""
    if _door is not None:
        _door.is_trusting = True


def is_trusting() -> bool:
    """Whether the user trusts the runs of this command."""
    return _door is not None and _door.is_trusting


def admit(path: Path | str) -> None:
    """Allow a file or folder that is the command's own output, or a copy of what the user named."""
    if _door is not None:
        _door.admit(path)


def admit_names(names: Iterable[str]) -> None:
    """Allow requests of addresses that belong to one that the user named."""
    if _door is not None:
        _door.names.update(names)


def allows(path: Path | str) -> bool:
    """Whether a file or folder may be read."""
    door = _closed()
    return door is None or door.allows(os.fspath(path))


def allows_request(name: str) -> bool:
    """Whether a repository or an address may be requested."""
    door = _closed()
    if os.path.isdir(name):
        return allows(name)
    return door is None or door.allows_request(start_of(name))


def way_out() -> str:
    """Return the end of a message that advises to trust a run; empty if the command has no setting for it."""
    has_trust = _door is None or _door.has_trust
    return "; or, if you trust the run and everything that its configuration names, set trust=true" * has_trust


def check(path: Path | str) -> None:
    """Raise an error if a file may not be opened, or a folder listed."""
    door = _closed()
    if door is not None and not door.allows(os.fspath(path)):
        raise door.refusal(os.fspath(path))


def check_request(name: str) -> None:
    """Raise an error if a repository (or a local copy) or an address may not be requested."""
    door = _closed()
    if door is not None and not allows_request(name):
        raise door.refusal(name)


@contextmanager
def requesting(name: str) -> Iterator[None]:
    """Request a repository or an address, which the user must have named.

    Inside the block, libraries may connect and read their credentials, settings and caches.
    """
    global _requests
    check_request(name)
    _requests += 1
    try:
        yield
    finally:
        _requests -= 1


@contextmanager
def free_thread() -> Iterator[None]:
    """Exempt the current thread, which works for a service that the user chose."""
    _free_threads.add(threading.get_ident())
    try:
        yield
    finally:
        _free_threads.discard(threading.get_ident())


def state() -> Door | None:
    """Return the closed door, to be passed to a worker process; None if it is open."""
    return _closed()


def take_over(door: Door | None) -> None:
    """Use the door of the parent process."""
    global _door
    if door is not None:
        _door = door
        _watch()


def start_of(pattern: str) -> str:
    """Return a path or an address, or the folder in which the search for a pattern (or ``{language}.json``) starts."""
    parts = pattern.split("/")
    wild = next((place for place, part in enumerate(parts) if has_magic(part) or "{" in part), len(parts))
    if wild == len(parts) or os.path.exists(pattern):
        return pattern
    return "/".join(parts[:wild]) or ("/" if pattern.startswith("/") else ".")


def blobs_of(real: Path) -> list[Path]:
    """Return the folder to which links lead in a copy in the hub's cache; empty for other folders."""
    return [above.parent / "blobs" for above in real.parents if above.name == "snapshots"][:1]


def _closed() -> Door | None:
    return _door if _door is not None and _door.runs and not _door.is_trusting else None


def _is_below(path: str, folders: set[str]) -> bool:
    while path not in folders:
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above
    return True


@cache
def _of_python() -> tuple[str, ...]:
    """Return the folders of Python, of the installed packages and of this package, and the caches of compilers."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages(), str(_PACKAGE), str(_PACKAGE.parent / "conf")}
    found |= {folder for folder in (sys.prefix, sys.base_prefix) if _is_environment(Path(folder))}
    for variable, default in _CACHES.items():
        user = os.environ.get("USER") or "root"
        found.add(os.path.expanduser(os.environ.get(variable) or default.format(user=user)))
    return tuple(found)


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir()


@cache
def _watch() -> None:
    sys.addaudithook(_audit)  # once: a hook cannot be removed


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    door = _closed()
    if door is None or _requests or threading.get_ident() in _free_threads:
        return
    if event in _HOSTS:
        if not _is_this_machine(arguments[0]) and not _is_importing():
            raise door.refusal(str(arguments[0]))
    elif event in _PEERS:
        peer, address = arguments[0], arguments[1]
        if isinstance(address, tuple) and peer.family in (socket.AF_INET, socket.AF_INET6):
            raise door.refusal(":".join(map(str, address[:2])))
    elif isinstance(arguments[0], str | bytes | os.PathLike):  # not a descriptor
        _audit_path(door, event, os.fsdecode(arguments[0]), arguments[1:])


def _audit_path(door: Door, event: str, path: str, rest: tuple[Any, ...]) -> None:
    if event == "os.mkdir":
        if not os.path.lexists(path):
            door.paths.add(os.path.realpath(path))
        return
    if event == "os.rename":
        if _is_below(os.path.realpath(path), door.paths):
            door.paths.add(os.path.realpath(os.fsdecode(rest[0])))
        return
    if event == _OPEN:
        mode, flags = rest
        if mode is None and (not os.path.isabs(path) or os.path.isdir(path)):
            return  # os.open: the path may be relative to another folder, or the folder is only flushed
        if flags & (os.O_WRONLY | os.O_RDWR) and (flags & _NEW or not os.path.lexists(path)):
            if not os.path.isdir(path):  # the folder of a temporary file
                door.paths.add(os.path.realpath(path))  # the command creates the file
            return
        if flags & os.O_WRONLY:
            return
    if not door.allows(path) and not _is_importing():
        raise door.refusal(path)


def _is_this_machine(host: Any) -> bool:
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if not name or name in ("localhost", socket.gethostname()):
        return True
    try:
        ip_address(str(name))
    except ValueError:
        return False
    return True


def _is_importing() -> bool:
    """Whether a module is being imported, rather than a function of this package running."""
    frame: Any = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        if code.co_filename.startswith(str(_PACKAGE)) and code.co_filename != __file__ and code.co_name != "<module>":
            return False
        frame = frame.f_back
    return False

"""Files at addresses such as ``s3://bucket/folder/file.jsonl.gz``, which fsspec lists and opens.

The user installs the protocol's package (s3fs for ``s3://``, gcsfs for ``gs://``) and stores the credentials where that
package looks for them. An address that contains credentials is refused, because addresses appear in run directories and
messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from hashlib import blake2b, file_digest
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias, cast

from lmtransfer.errors import DataError
from lmtransfer.system import door
from lmtransfer.system.addresses import REMEDY, has_credentials
from lmtransfer.system.machine import is_address
from lmtransfer.system.printable import first_line

#: Keys of fsspec's file information that change with the content; the names depend on the protocol.
_VERSIONS = ("ETag", "etag", "md5Hash", "Content-MD5", "blob_id", "mtime", "LastModified", "last_modified", "created")
_BLOCK_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at an address, with the attributes of ``Path`` that reading needs."""

    address: str

    def __post_init__(self) -> None:
        check_address(self.address, key="address of a file")

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.address).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.address).stem

    @property
    def suffix(self) -> str:
        """The last suffix of the name, such as ``.gz``."""
        return PurePosixPath(self.address).suffix

    def is_dir(self) -> bool:
        """Whether this is a folder: never."""
        return False

    def size(self) -> int:
        """Return the file's size in bytes; 0 if the server does not tell it."""
        return int(self._information().get("size") or 0)

    def open(self) -> BinaryIO:
        """Open the file for reading bytes."""
        with reaching(self.address):
            system, path = _system(self.address)
            return cast(BinaryIO, system.open(path, "rb", block_size=_BLOCK_BYTES))

    def digest(self) -> str:
        """Return a hex digest of the size and version that the server tells or, without a version, of the bytes."""
        information = self._information()
        version = next((str(information[key]) for key in _VERSIONS if information.get(key)), None)
        if version is not None:
            return blake2b(f"{information.get('size')} {version}".encode(), digest_size=16).hexdigest()
        with self.open() as file, reaching(self.address):
            return file_digest(cast(FileIO, file), lambda: blake2b(digest_size=16)).hexdigest()

    def _information(self) -> dict[str, Any]:
        with reaching(self.address):
            system, path = _system(self.address)
            return dict(system.info(path))


def check_address(address: str, *, key: str) -> None:
    """Check that an address, the value of ``key``, names one protocol and contains no credentials and no query."""
    if has_credentials(address):
        raise DataError(f"{key}: {REMEDY}")
    if "::" in address:
        raise DataError(f"{key}: an address that chains protocols (::) is not supported; use the address of the files")


#: A file that can be read: on this machine, or at an address.
SourceFile: TypeAlias = Path | RemoteFile


def source_file(path: str) -> SourceFile:
    """Return the file that a path or an address names."""
    return RemoteFile(path) if is_address(path) else Path(path)


def file_size(file: SourceFile) -> int:
    """Return the size of a file in bytes; 0 if a server does not tell it."""
    return file.size() if isinstance(file, RemoteFile) else file.stat().st_size


def list_files(address: str, *, key: str) -> tuple[list[str], bool, list[str]]:
    """Return the addresses of the files that an address, the value of ``key``, refers to, and whether it is a folder.

    The address is that of a file, of a folder, which is searched recursively, or a pattern with ``*``. The hidden files
    of a folder are returned apart.
    """
    check_address(address, key=key)
    with reaching(address, what=f"{key}={address}"):
        system, path = _system(address)
        is_folder = not has_magic(path) and system.info(path)["type"] == "directory"
        found = system.find(path, detail=True) if is_folder else system.glob(path, detail=True)
        names = sorted(name for name, information in found.items() if information["type"] == "file")
        hidden = [name for name in names if is_folder and "/." in name.removeprefix(path)]
        names = [name for name in names if name not in hidden]
        if not names:
            raise FileNotFoundError
        addresses = [system.unstrip_protocol(name) for name in names]
        door.admit_names(addresses)  # the protocol may have another prefix than the address
        return addresses, is_folder, hidden


def _system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it; fsspec keeps one file system per protocol."""
    import fsspec

    return cast(tuple[Any, str], fsspec.url_to_fs(address))


@contextmanager
def reaching(address: str, *, what: str | None = None) -> Iterator[None]:
    """Request an address, which the user must have named if someone else's run is handled; see ``naming_failures``."""
    with door.requesting(door.start_of(address)), naming_failures(what or address):
        yield


@contextmanager
def naming_failures(what: str) -> Iterator[None]:
    """Turn a failure to reach ``what``, whose class depends on the protocol's package, into a ``DataError``."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{what}: there is no such file or folder") from None
    except ImportError as error:
        raise DataError(f"{what}: the protocol needs a package: {first_line(error)} (with pip)") from None
    except Exception as error:
        raise DataError(
            f"{what}: cannot be read ({type(error).__name__}: {first_line(error)}); check the address, the credentials "
            "and the network, and run the same command again: completed work is kept"
        ) from error

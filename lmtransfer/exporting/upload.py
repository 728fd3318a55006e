"""The upload of an export to the hub, or the list of what an upload would send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lmtransfer.errors import HubError
from lmtransfer.exporting.parts import Part
from lmtransfer.interop.hub import Target, files_in
from lmtransfer.system.printable import short_path


def listed_files(target: Target, parts: Sequence[Part], root: Path) -> Iterator[str]:
    """Lines on what an upload would send.

    Args:
        target: the repository.
        parts: the parts of the export.
        root: its folder.
    """
    kind = "private" if target.private else "public"
    for part in parts:
        sizes = files_in(root / part.folder)
        yield (
            f"would send {len(sizes)} files of {sum(sizes.values()) / 1e6:,.1f} MB to {target.name}, branch "
            f"{part.branch} ({kind} if it is new); nothing was sent:"
        )
        yield from (f"{size:>14,}  {name}" for name, size in sizes.items())


def upload(target: Target, parts: Sequence[Part], root: Path, *, message: str, kept: Path | None) -> Iterator[str]:
    """Upload the parts one after the other, with a line on each.

    Args:
        target: the repository.
        parts: the parts of the export.
        root: its folder.
        message: message of the commits.
        kept: the folder that stays on this machine; None: none.

    Raises:
        HubError: the hub refuses, or does not answer; the message says where the export is kept.
    """
    for part in parts:
        of = f" ({part.folder})" if part.folder else ""
        try:
            uploaded = target.upload(root / part.folder, branch=part.branch, message=f"{message}{of}")
        except HubError as error:
            if kept is None:
                raise
            raise HubError(f"{error}; the export is kept in {short_path(kept)}") from error
        yield f"uploaded to {uploaded.url}, commit {uploaded.commit}"

"""Reading the file of an offline run of wandb: a log of protocol buffers, in the format of LevelDB's log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, struct.Struct("<IHB")
_FULL, _LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file, as wandb's own messages; a record cut by a kill ends them.

    Each block of 32 KiB holds pieces (checksum, length, kind, bytes); a record is one piece, or several in a row.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, whole = path.read_bytes(), _FILE_HEADER, b""
    assert content[:4] == b":W&B"
    while place + _HEADER.size <= len(content):
        if _BLOCK - place % _BLOCK < _HEADER.size:  # too little of the block is left for a piece
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(content, place)
        place += _HEADER.size
        whole += content[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield Record.FromString(whole)
            whole = b""

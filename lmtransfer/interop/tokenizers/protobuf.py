"""Read protocol buffers without their schema: fields by number, as in the wire format.

The wire format is that of https://protobuf.dev/programming-guides/encoding; groups, which are obsolete, are refused.
"""

from __future__ import annotations

import struct
from typing import Final

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


class Message:
    """One message: for each field number the values in the order in which they were written.

    If a field is read as a single value, the last written value counts, as the format requires.

    Args:
        data: the serialised message.

    Raises:
        ValueError: the data are damaged, or are not a message.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        place = 0
        while place < len(data):
            tag, place = _varint(data, place)
            number, kind = tag >> 3, tag & 7
            value: int | bytes
            if kind == _VARINT:
                value, place = _varint(data, place)
            elif kind in (_BYTES, _FOUR_BYTES, _EIGHT_BYTES):
                size = 4 if kind == _FOUR_BYTES else 8
                if kind == _BYTES:
                    size, place = _varint(data, place)
                if size > len(data) - place:
                    raise ValueError(f"field {number} is incomplete")
                value, place = data[place : place + size], place + size
            else:
                raise ValueError(f"field {number} has the unsupported wire type {kind}")
            self._fields.setdefault(number, []).append(value)

    def integer(self, number: int, default: int) -> int:
        """A field of type int32, bool or enum.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, default)
        if not isinstance(value, int):
            raise ValueError(f"field {number} is not an integer")
        return value - (1 << 64) if value >= 1 << 63 else value

    def real(self, number: int, default: float) -> float:
        """A field of type float.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, None)
        if value is None:
            return default
        if not isinstance(value, bytes) or len(value) != 4:
            raise ValueError(f"field {number} is not a float")
        return float(struct.unpack("<f", value)[0])

    def data(self, number: int) -> bytes:
        """A field of type bytes, string or message; empty if it is missing.

        Raises:
            ValueError: the field has another type.
        """
        value = self._last(number, b"")
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is not a string of bytes")
        return value

    def messages(self, number: int) -> list[Message]:
        """A repeated field of messages.

        Raises:
            ValueError: the field has another type, or a message is damaged.
        """
        values = self._fields.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise ValueError(f"field {number} is not a message")
        return [Message(value) for value in values if isinstance(value, bytes)]

    def _last(self, number: int, default: int | bytes | None) -> int | bytes | None:
        return self._fields[number][-1] if number in self._fields else default


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if place >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number is longer than 10 bytes")

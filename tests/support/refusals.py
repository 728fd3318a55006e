"""How a test asserts a refusal: by its class and by the keys, values and places that the message names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refuses(
    kind: type[BaseException] | tuple[type[BaseException], ...], *names: str
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """The block must raise ``kind`` with a message that names each of ``names``, whatever words stand around them.

    Args:
        kind: the class of the error, or several.
        names: configuration keys, values, files, ``file:line``, allowed choices, numbers.

    Yields:
        The error, as ``pytest.raises`` does.
    """
    with pytest.raises(kind) as raised:
        yield raised
    message = str(raised.value)
    missing = [name for name in names if name not in message]
    assert not missing, f"the message does not name {missing}:\n{message}"

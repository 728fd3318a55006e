"""The cache folder for data shared between runs: prepared corpora, tokenizers, imported models, the user's key."""

from __future__ import annotations

import os
from pathlib import Path

from lmtransfer.errors import DataError


def default_cache_dir() -> Path:
    """Return the path of the cache folder: ``LMTRANSFER_CACHE``, or ``~/.cache/lmtransfer``.

    Raises:
        DataError: there is no home folder.
    """
    place = os.environ.get("LMTRANSFER_CACHE") or "~/.cache/lmtransfer"
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise DataError(
            f"{place}: the cache has no home folder, because HOME is not set: set HOME, cache_dir= or LMTRANSFER_CACHE"
        ) from None

"""The files of a saved tokenizer of any kind: a model file, and ``tokenizer.json``, which describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Required

from typing_extensions import TypedDict

from lmtransfer.config.types import LargeCount
from lmtransfer.errors import CheckpointError
from lmtransfer.system.safe_files import LARGEST_BYTES, read_bytes, read_json

#: Ids 0 to 3 of every trained vocabulary.
SPECIALS: Final = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
DESCRIPTION_FILE: Final = "tokenizer.json"

_MULTIPLE = 64  # embedding rows: matrix products are faster if sizes are multiples of 64


class Description(TypedDict, total=False):
    """The content of ``tokenizer.json``."""

    kind: Required[str]
    sha256: str
    fingerprint: str
    base: str
    num_pieces: LargeCount
    vocab_size: LargeCount
    lowercase: bool
    specials: dict[str, str]
    training: dict[str, Any] | None


def padded_size(num_pieces: int) -> int:
    """Return the number of embedding rows for ``num_pieces`` pieces, rounded up to a multiple of 64."""
    return -(-num_pieces // _MULTIPLE) * _MULTIPLE


def write_model(folder: Path, file: str, model: bytes, description: Mapping[str, Any]) -> None:
    """Write ``file`` and ``tokenizer.json`` to ``folder`` (created if missing)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(model)
    described = {"kind": description["kind"], "sha256": sha256(model).hexdigest(), **description}
    (folder / DESCRIPTION_FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def read_model(folder: Path, file: str) -> tuple[bytes, Description]:
    """Read the model file and the description written by ``write_model``."""
    description = read_description(folder)
    path = Path(folder) / file
    model = read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
    checksum = sha256(model).hexdigest()
    if checksum != description.get("sha256"):
        raise CheckpointError(
            f"{path}: its sha256 is {checksum}, but {DESCRIPTION_FILE} has {description.get('sha256')}; the file is "
            "damaged or belongs to another tokenizer: copy both files again"
        )
    return model, description


def read_description(folder: Path) -> Description:
    """Read ``tokenizer.json`` in ``folder``."""
    path = Path(folder) / DESCRIPTION_FILE
    if not path.exists():
        raise CheckpointError(f"{path}: is missing, so this folder has no tokenizer")
    return read_json(path, Description, error=CheckpointError)

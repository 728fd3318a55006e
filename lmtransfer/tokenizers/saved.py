"""What the tokenizers of all kinds share on disk: a model file, and ``tokenizer.json`` that describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from lmtransfer.errors import CheckpointError

#: Ids 0 to 3 of every trained vocabulary.
SPECIALS: Final = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
DESCRIPTION_FILE: Final = "tokenizer.json"

_MULTIPLE = 64  # embedding rows: matrices whose sizes are multiples of 64 are multiplied faster


def padded_size(num_pieces: int) -> int:
    """Rows of an embedding for so many pieces."""
    return -(-num_pieces // _MULTIPLE) * _MULTIPLE


def write_model(folder: Path, file: str, model: bytes, description: Mapping[str, Any]) -> None:
    """Write ``file`` and ``tokenizer.json`` into ``folder`` (made if missing).

    Args:
        folder: where to.
        file: name of the model file.
        model: its content.
        description: the ``kind`` and whatever else is to be known.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(model)
    described = {"kind": description["kind"], "sha256": sha256(model).hexdigest(), **description}
    (folder / DESCRIPTION_FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def read_model(folder: Path, file: str) -> tuple[bytes, dict[str, Any]]:
    """The model file and the description that ``write_model`` wrote.

    Raises:
        CheckpointError: a file is missing or unreadable, or ``file`` does not have the recorded checksum.
    """
    description = read_description(folder)
    path = Path(folder) / file
    try:
        model = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); copy the tokenizer again") from None
    checksum = sha256(model).hexdigest()
    if checksum != description.get("sha256"):
        raise CheckpointError(
            f"{path}: its sha256 is {checksum}, but {DESCRIPTION_FILE} says {description.get('sha256')}; "
            "the file is torn or from another tokenizer: copy both files again"
        )
    return model, description


def read_description(folder: Path) -> dict[str, Any]:
    """The content of ``tokenizer.json`` in ``folder``.

    Raises:
        CheckpointError: it is missing or no JSON object.
    """
    path = Path(folder) / DESCRIPTION_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); this folder holds no tokenizer") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: is not JSON ({error}); copy the tokenizer again") from None
    if not isinstance(description, dict):
        raise CheckpointError(f"{path}: must hold a JSON object; copy the tokenizer again")
    return description

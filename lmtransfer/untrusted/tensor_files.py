"""The header of a safetensors file, checked against the file before tensors are read or memory is allocated.

https://github.com/huggingface/safetensors: eight bytes with the length of the header; the header in JSON with the
type, shape and place of each tensor; then the tensors, one after the other.
"""

from __future__ import annotations

import math
from pathlib import Path

from lmtransfer.errors import LmtransferError
from lmtransfer.untrusted.documents import parse_json
from lmtransfer.untrusted.files import opened
from lmtransfer.untrusted.schema import Entries, Fields, Items, Text, Whole

#: The same limit as in the library.
LONGEST_HEADER = 100_000_000

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_METADATA = "__metadata__"
_HEADER = Entries(
    Fields({"dtype": Text(tuple(_BITS)), "shape": Items(Whole()), "data_offsets": Items(Whole())}),
)


def check_tensor_file(path: Path, *, error: type[LmtransferError]) -> None:
    """Check that a safetensors file matches its header.

    Raises:
        LmtransferError: of the class ``error``: the file cannot be read, it has no valid header, or the header
            describes an impossible tensor; the message names file and tensor.
    """
    with opened(path, error=error) as (file, size):
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, LONGEST_HEADER):
            raise error(
                f"{path}: is damaged or incomplete, or is not a safetensors file: its header should have {length:,} "
                f"bytes, but the file has {size:,}"
            )
        header = parse_json(file.read(length), path=path, what="its header", error=error)
    if not isinstance(header, dict):
        raise error(f"{path}: its header is not a mapping of tensors")
    tensors = {name: entry for name, entry in header.items() if name != _METADATA}
    problem = _HEADER.problem(tensors, "")
    if problem is not None:
        raise error(f"{path}: its header: {problem}")
    num_bytes = size - 8 - length
    for name, entry in tensors.items():
        begins, *ends = entry["data_offsets"]
        wanted = math.prod(entry["shape"]) * _BITS[entry["dtype"]] // 8
        if len(ends) != 1 or not begins <= ends[0] <= num_bytes or ends[0] - begins != wanted:
            raise error(
                f"{path}: is damaged or incomplete, or is not a safetensors file: {name[:80]} of shape "
                f"{str(entry['shape'])[:80]} ({entry['dtype']}) does not fit its data_offsets "
                f"{str(entry['data_offsets'])[:80]} in {num_bytes:,} bytes"
            )

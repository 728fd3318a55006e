"""Whether published tensors are those that a module of ours is made of; all that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from lmtransfer.errors import CheckpointError, listed
from lmtransfer.interop.families.key_map import Rewrite, to_theirs


def expected_tensors(
    module: nn.Module,
    key_map: Sequence[Rewrite],
    *,
    num_heads: int | None,
    prefix: str = "",
    without: Sequence[str] = (),
) -> dict[str, Tensor]:
    """What a published file must hold for a module of ours, by published names; only shapes count.

    Args:
        module: whose tensors; one that is shared counts under its first name. It may be on the device ``meta``.
        key_map: published names.
        num_heads: see ``to_theirs``.
        prefix: of its tensors in the key map.
        without: prefixes (after ``prefix``) of tensors that are published elsewhere.
    """
    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen and not name.startswith(tuple(without)):
            own[f"{prefix}{name}"] = tensor.detach()
        seen.add(id(tensor))
    return to_theirs(own, key_map, num_heads=num_heads)


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, source: str) -> None:
    """Compare names and shapes.

    Raises:
        CheckpointError: a tensor is missing, not expected, of another shape, or holds no floating-point numbers.
    """
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is not expected" for name in found if name not in expected]
    for name, tensor in found.items():
        if name not in expected:
            continue
        if tensor.shape != expected[name].shape:
            shape, wanted = list(tensor.shape), list(expected[name].shape)
            problems.append(f"{name} has shape {shape}, the settings say {wanted}")
        elif not tensor.is_floating_point():
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers")
    if problems:
        raise CheckpointError(listed(f"{source}: its tensors do not fit its settings:", problems))

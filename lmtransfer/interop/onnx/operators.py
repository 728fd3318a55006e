"""Operators of our layers that PyTorch's tracing ONNX exporter does not know, in terms of those that it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic


@symbolic_helper.parse_args("v", "is", "v", "f")
def _rms_norm(graph: Any, states: Any, shape: list[int], weight: Any, eps: float) -> Any:
    """Zhang & Sennrich 2019, equation 4, with epsilon as ``torch.nn.functional.rms_norm`` has it."""
    axes = [-1 - axis for axis in range(len(shape))]
    means = graph.op("ReduceMean", graph.op("Mul", states, states), axes_i=axes, keepdims_i=1)
    roots = graph.op("Sqrt", graph.op("Add", means, graph.op("Constant", value_t=torch.tensor(eps))))
    return graph.op("Mul", graph.op("Div", states, roots), weight)


def _or(graph: Any, left: Any, right: Any) -> Any:
    """``left |= right``, in place no more when it is asked for."""
    return graph.op("Or", left, right)


_OPERATORS: dict[str, Callable[..., Any]] = {"aten::rms_norm": _rms_norm, "aten::__ior_": _or}


@contextmanager
def missing_operators(opset: int) -> Iterator[None]:
    """Let the exporter know them for a while.

    Args:
        opset: version of the operators that it writes.
    """
    for name, operator in _OPERATORS.items():
        register_custom_op_symbolic(name, operator, opset)
    try:
        yield
    finally:
        for name in _OPERATORS:
            unregister_custom_op_symbolic(name, opset)

"""The types of settings that have a range, for the signatures of components and the settings of commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le, Lt

#: The number or size of something: layers' widths, tokens of a text, pieces of a vocabulary.
Count: TypeAlias = Annotated[int, Ge(1), Le(1 << 24)]
#: A small number, such as that of layers, heads or threads.
SmallCount: TypeAlias = Annotated[int, Ge(1), Le(4096)]
#: A number of candidates for one answer.
TopK: TypeAlias = Annotated[int, Ge(1), Le(100_000)]
#: A number of steps, tokens or examples of a whole run.
LargeCount: TypeAlias = Annotated[int, Ge(1), Le(2**63 - 1)]
#: A number that may be 0, such as a seed or the steps of a warm-up.
Whole: TypeAlias = Annotated[int, Ge(0), Le(2**63 - 1)]
#: A number of parts of a cross-validation.
Folds: TypeAlias = Annotated[int, Ge(2), Le(1 << 24)]
#: A probability or a share.
Prob: TypeAlias = Annotated[float, Ge(0), Le(1)]
#: A share that is not 0.
PositiveProb: TypeAlias = Annotated[float, Gt(0), Le(1)]
#: A probability of less than 1, such as that of dropout.
DropoutProb: TypeAlias = Annotated[float, Ge(0), Lt(1)]
#: A share that is neither 0 nor 1.
OpenShare: TypeAlias = Annotated[float, Gt(0), Lt(1)]
#: A number greater than 0, such as a learning rate.
Positive: TypeAlias = Annotated[float, Gt(0)]
#: A number of 0 or more, such as a weight.
NonNegative: TypeAlias = Annotated[float, Ge(0)]
